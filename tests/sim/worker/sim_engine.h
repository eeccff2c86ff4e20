// The engine of a worker without arithmetic: it checks that what it is asked to do makes sense, and
// reports losses that are a function of job, step and sequence alone.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/core/effects.h"

namespace lorad::sim {

// What the loss of a step is, whoever computes it; of an evaluation, for each trained token.
double TrainLoss(const std::string& job, int64_t step);
double ValidationLoss(const std::string& job, int64_t step, int64_t sequence);

// What a story makes happen in workers. One for all of them, and it may change at any time.
struct WorkerScript {
  std::map<std::string, int64_t> bad_steps;  // by job: the step whose loss is not finite
  std::set<std::string> deadly;              // jobs whose steps end the process
  // Steps of a higher learning rate are not finite; of a still higher one, they end the process.
  double finite_rate_max = std::numeric_limits<double>::infinity();
  double survived_rate_max = std::numeric_limits<double>::infinity();
  // Others have taken the memory of the machine, or what groups of longer microbatches than this,
  // and slots beside them, would need.
  bool memory_taken = false;
  int64_t group_tokens_most = std::numeric_limits<int64_t>::max();
  int64_t slot_tokens_most = std::numeric_limits<int64_t>::max();
  // Groups for longer rows than this are found to need more than was counted.
  int64_t longest_most = std::numeric_limits<int64_t>::max();
  int64_t peak_resident_bytes = 0;    // as heartbeats tell it
  std::set<std::string> shards_held;  // jobs whose shards stay on their way up
};

class SimEngine {
 public:
  struct Hooks {
    std::function<void(worker::v1::Report)> report;
    // The step of the checkpoint that a slot's content names.
    std::function<absl::StatusOr<int64_t>(const std::string& content)> fetch;
  };
  SimEngine(Hooks hooks, const WorkerScript& script) : hooks_(std::move(hooks)), script_(script) {}

  // Carries out an order of the worker's core; what EngineDone is to say.
  absl::StatusOr<bool> CarryOut(const worker::Effect& order);
  // Bytes that are copied when a job is saved.
  static constexpr int64_t kStagedBytes = 1000;

 private:
  struct Slot {
    int64_t step = 0;
    bool failed = false;               // what is left of it is dropped
    std::map<int64_t, int> sequences;  // of the batch under way, how often backwarded
  };
  absl::Status Form(const worker::v1::FormGroup& order);
  void EndWindow(const std::set<std::string>& cut_jobs);
  absl::StatusOr<bool> Execute(const worker::v1::Operation& operation);
  absl::StatusOr<bool> Load(const worker::v1::Operation& operation);
  void Free(const std::string& job);
  void Backward(const worker::v1::Microbatch& microbatch);
  void Evaluate(const worker::v1::Microbatch& microbatch);
  void Step(const worker::v1::Operation& operation);
  void Report(const worker::v1::Microbatch& microbatch, bool backward);
  const worker::v1::Microbatch& Find(int64_t number) const;
  Slot& At(const std::string& job);

  const Hooks hooks_;
  const WorkerScript& script_;
  int64_t capacity_tokens_ = 0;
  std::map<std::string, Slot> slots_;
  std::shared_ptr<const worker::v1::Window> window_;
};

}  // namespace lorad::sim
