// A worker without arithmetic: it executes windows as worker/ does, one operation at a time, checks
// that they make sense, and reports results that are a function of (job, step) alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::sim {

// What the loss of a step is, whoever computes it.
double LossOf(const std::string& job, int64_t step);
double EvaluationLossOf(const std::string& job, int64_t step, int64_t sequence);
inline constexpr int64_t kTrainedTokens = 7;  // of every sequence

class SimWorker {
 public:
  struct Hooks {
    // A message up the control stream.
    std::function<void(worker::v1::WorkerMessage)> say;
    // A shard on a call of its own.
    std::function<void(worker::v1::UploadShardRequest::Header)> upload;
    // The step that a slot's content starts at; fails the test where it names nothing.
    std::function<int64_t(const std::string& content)> fetch;
    // Steps whose loss is not finite.
    std::function<bool(const std::string& job, int64_t step)> is_bad;
    // Whether other processes have taken the memory that a group of such microbatches, or a slot
    // beside it, would need.
    std::function<bool(int64_t capacity_tokens, bool slot)> memory_taken;
    // Whether slots that are freed still have checkpoints to send up.
    std::function<bool()> freed_held;
  };

  // gpu_memory_bytes: 0: a CPU.
  SimWorker(std::string name, int64_t gpu_memory_bytes, Hooks hooks)
      : name_(std::move(name)), gpu_memory_bytes_(gpu_memory_bytes), hooks_(std::move(hooks)) {}

  worker::v1::Hello Hello() const;
  void Hear(const worker::v1::CoordinatorMessage& message);
  // Executes one operation, or one step of forming a group. False: nothing to do now.
  bool Step();
  // Tells of slots whose checkpoints are up.
  void TellFreed();
  // Says what nobody made it say.
  void Say(worker::v1::WorkerMessage message);
  int64_t epoch() const { return epoch_; }
  bool shut_down() const { return shut_down_; }
  // Adapters in every microbatch executed so far.
  const std::vector<int>& microbatch_adapters() const { return microbatch_adapters_; }

 private:
  struct Slot {
    int64_t step = 0;
    std::map<int64_t, int> sequences;  // of the batch under way, how often backwarded
    bool dead = false;                 // not finite: what is left of it is dropped
  };
  struct Pending {
    worker::v1::Window window;
    int next = 0;
    std::vector<bool> kept;  // after a cut, one entry an operation
  };

  void Report(worker::v1::Report report);
  void Execute(const worker::v1::Window& window, const worker::v1::Operation& operation);
  void ExecuteStep(const worker::v1::Window& window, const worker::v1::Operation& operation);
  void ExecuteEvaluate(const worker::v1::Microbatch& microbatch);
  void ReportMicrobatch(const worker::v1::Microbatch& microbatch);
  void Save(const std::string& job, int64_t step);
  void CutAt(int64_t first_dropped);
  const worker::v1::Microbatch& Find(const worker::v1::Window& window, int64_t number) const;
  bool Dropped(const worker::v1::Window& window, const worker::v1::Operation& operation) const;

  const std::string name_;
  const int64_t gpu_memory_bytes_;
  const Hooks hooks_;
  int64_t epoch_ = 0;
  int64_t capacity_tokens_ = 0;
  int64_t reports_ = 0;
  std::optional<worker::v1::FormGroup> forming_;
  std::map<std::string, Slot> slots_;
  std::vector<std::string> freed_;  // not told of
  std::deque<Pending> windows_;
  int64_t next_window_ = 1;
  int64_t first_not_enqueued_ = 1;
  std::optional<int64_t> hold_from_;
  std::set<std::string> cut_jobs_;
  bool shut_down_ = false;
  std::vector<int> microbatch_adapters_;
};

}  // namespace lorad::sim
