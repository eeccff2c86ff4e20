#include "worker/core/saves.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <string>
#include <utility>

#include "storage/files/errors.h"

namespace lorad::worker {
namespace {

// A try: the time of a coordinator that has much to write, and of the slowest line in use.
constexpr int64_t kTryMs = 15'000;
constexpr int64_t kBytesPerMs = 4096;
// One that ran out of time gets twice as much, up to eight times.
constexpr int kDoublingsMax = 3;
constexpr double kPauseFirstMs = 100;
constexpr double kPauseLastMs = 5000;

// What fails for longer is told.
constexpr double kTellAfterMs = 10'000;

// Whether another try may end otherwise: not where the coordinator does not want the shard, or its
// bytes are wrong. All else is mended some day, a clock by which a certificate is over too, and a
// job that is to be saved waits for that.
bool Passes(const absl::Status& status) {
  if (absl::IsInvalidArgument(status) || absl::IsDataLoss(status)) return false;
  const std::string reason = storage::ReasonOf(status);
  return reason != "STALE_EPOCH" && reason != "NOT_A_WORKERS_GROUP";
}

bool IsKnownToCoordinator(const absl::Status& status) {
  const std::string reason = storage::ReasonOf(status);
  return reason == "CHECKPOINT_NOT_WRITTEN" || reason == "STEP_NOT_REPORTED";
}

}  // namespace

int64_t Saves::Shard::timeout_ms() const {
  return (kTryMs + bytes / kBytesPerMs) << std::min(late_tries, kDoublingsMax);
}

int64_t Saves::Add(const std::string& job, int64_t step, int64_t bytes, double now_ms) {
  assert(Find(job) == nullptr);
  Shard& shard = shards_[++last_number_];
  shard.job = job;
  shard.step = step;
  shard.bytes = bytes;
  shard.staged_ms = shard.next_try_ms = now_ms;
  return last_number_;
}

Saves::Shard* Saves::FindMutable(const std::string& job) {
  for (auto& [number, shard] : shards_) {
    if (shard.job == job) return &shard;
  }
  return nullptr;
}

const Saves::Shard* Saves::Find(const std::string& job) const {
  return const_cast<Saves*>(this)->FindMutable(job);
}

std::vector<int64_t> Saves::Begin(double now_ms) {
  auto free = kTriesAtOnce - std::ranges::count_if(
                                 shards_, [](const auto& entry) { return entry.second.under_way; });
  std::vector<int64_t> begun;
  for (auto& [number, shard] : shards_) {
    if (free == 0) break;
    if (shard.under_way || shard.next_try_ms > now_ms) continue;
    shard.under_way = true;
    if (shard.failed_tries == 0) shard.begun_ms = now_ms;
    begun.push_back(number);
    --free;
  }
  return begun;
}

Saves::Ended Saves::End(int64_t number, const absl::Status& status, double now_ms) {
  const auto found = shards_.find(number);
  assert(found != shards_.end() && found->second.under_way);
  Shard& shard = found->second;
  shard.under_way = false;
  Outcome outcome = Outcome::kGivenUp;
  if (shard.abandoned) {
    outcome = Outcome::kAbandoned;
  } else if (status.ok()) {
    outcome = Outcome::kSaved;
  } else if (Passes(status) && !shard.last_try) {
    const double pause_ms =
        kPauseFirstMs * static_cast<double>(1 << std::min(shard.failed_tries, 20));
    shard.next_try_ms = now_ms + std::min(pause_ms, kPauseLastMs);
    ++shard.failed_tries;
    if (absl::IsDeadlineExceeded(status)) ++shard.late_tries;
    const bool tell =
        !shard.told && !IsKnownToCoordinator(status) && now_ms - shard.begun_ms >= kTellAfterMs;
    shard.told = shard.told || tell;
    return {shard, Outcome::kAgain, tell};
  }
  Ended ended{std::move(shard), outcome};
  shards_.erase(found);
  return ended;
}

bool Saves::LastTry(const std::string& job) {
  Shard* shard = FindMutable(job);
  if (shard == nullptr) return false;
  shard->last_try = true;
  if (shard->under_way || shard->failed_tries == 0) return false;
  std::erase_if(shards_, [&](const auto& entry) { return entry.second.job == job; });
  return true;
}

void Saves::Abandon() {
  std::erase_if(shards_, [](const auto& entry) { return !entry.second.under_way; });
  for (auto& [number, shard] : shards_) shard.abandoned = true;
}

double Saves::FirstTryEnds(const std::string& job) const {
  const Shard* shard = Find(job);
  if (shard == nullptr || shard->failed_tries > 0) return 0;
  return shard->staged_ms + static_cast<double>(shard->timeout_ms());
}

bool Saves::any_under_way() const {
  return std::ranges::any_of(shards_, [](const auto& entry) { return entry.second.under_way; });
}

bool Saves::under_way(int64_t number) const {
  const auto found = shards_.find(number);
  return found != shards_.end() && found->second.under_way;
}

double Saves::NextDue() const {
  double due = std::numeric_limits<double>::infinity();
  const auto under_way =
      std::ranges::count_if(shards_, [](const auto& entry) { return entry.second.under_way; });
  if (under_way == kTriesAtOnce) return due;
  for (const auto& [number, shard] : shards_) {
    if (!shard.under_way) due = std::min(due, shard.next_try_ms);
  }
  return due;
}

}  // namespace lorad::worker
