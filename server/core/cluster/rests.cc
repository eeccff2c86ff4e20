// Workers that get nothing new: for a while, because they lack memory that they offered or files
// of a model, or said what does not fit, or until an operator says so.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/core/cluster/cluster.h"

namespace lorad::server {
namespace {

// A worker that said nothing wrong for so many of the longest rests starts over with a short one.
constexpr int64_t kForgottenAfter = 10;

}  // namespace

void Cluster::Prolong(const WorkerState& worker, Rest& rest, int64_t first_ms, int64_t max_ms,
                      const std::string& why) {
  const int64_t pause_ms = std::min(first_ms << std::min(rest.times, 20), max_ms);
  ++rest.times;
  rest.until_us = turn_.now_us() + pause_ms * kMillisecond;
  rest.why = why;
  turn_.Warn(absl::StrCat("worker '", worker.hello.worker(), "' rests for ", pause_ms, " ms"));
  turn_.Do(SetTimer{kRestEnds, rest.until_us});
}

void Cluster::RestForMemory(WorkerState& worker, const std::string& why) {
  // Several slots of a window fail at once.
  if (worker.memory_rest.until_us > turn_.now_us()) return;
  worker.memory_was_taken = true;
  turn_.Warn(
      absl::StrCat("worker '", worker.hello.worker(), "' lacks memory that it offered: ", why));
  Prolong(worker, worker.memory_rest, options_.rest_ms, options_.rest_max_ms, why);
}

void Cluster::RestForFiles(WorkerState& worker, const std::string& why) {
  turn_.Warn(absl::StrCat("worker '", worker.hello.worker(), "' lacks files of a model: ", why));
  Prolong(worker, worker.files_rest, options_.rest_ms, options_.rest_max_ms, why);
}

void Cluster::RestAsLiar(WorkerState& worker, const std::string& what) {
  Rest& rest = worker.lie_rest;
  const int64_t honest_us = turn_.now_us() - rest.until_us;
  if (honest_us > kForgottenAfter * options_.postpone_max_ms * kMillisecond) rest.times = 0;
  ++worker.lies;
  Prolong(worker, rest, options_.postpone_ms, options_.postpone_max_ms, what);
}

std::string Cluster::WhyEmpties(const WorkerState& worker) {
  return worker.leaving ? "was told to end"
                        : absl::StrCat("is drained (", worker.drain_reason, ")");
}

std::string Cluster::WhyRests(const WorkerState& worker) const {
  if (worker.lie_rest.until_us > turn_.now_us()) {
    return absl::StrCat("said what does not fit, and gets nothing for a while: ",
                        worker.lie_rest.why);
  }
  if (worker.memory_rest.until_us > turn_.now_us()) {
    return absl::StrCat("lacks memory that it offered and tries again: ", worker.memory_rest.why);
  }
  if (worker.files_rest.until_us > turn_.now_us()) {
    return absl::StrCat("lacks files of a model and tries again: ", worker.files_rest.why);
  }
  if (worker.leaves_epoch != 0) return "lets go of a group that was lost";
  if (IsSilent(worker)) {
    return absl::StrCat("has said nothing for more than ",
                        kSilentHeartbeats * options_.heartbeat_ms / 1000, " s");
  }
  return "";
}

bool Cluster::IsSilent(const WorkerState& worker) const {
  return worker.connection != 0 && turn_.now_us() - worker.heard_us >
                                       kSilentHeartbeats * options_.heartbeat_ms * kMillisecond;
}

std::string Cluster::WhyRest() const {
  std::string text;
  for (const auto& [name, worker] : workers_) {
    if (worker.connection == 0) continue;
    const std::string why = worker.empties() ? WhyEmpties(worker) : WhyRests(worker);
    if (why.empty()) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "worker '", name, "' ", why);
  }
  return text;
}

}  // namespace lorad::server
