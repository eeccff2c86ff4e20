// The engine of a worker without arithmetic: it checks that what it is asked to do makes sense, and
// reports losses that are a function of job, step and sequence alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"

namespace lorad::sim {

// What the loss of a step is, whoever computes it; of an evaluation, for each trained token.
double TrainLoss(const std::string& job, int64_t step);
double ValidationLoss(const std::string& job, int64_t step, int64_t sequence);

class SimEngine {
 public:
  struct Hooks {
    std::function<void(worker::v1::Report)> report;
    // The step of the checkpoint that a slot's content names.
    std::function<absl::StatusOr<int64_t>(const std::string& content)> fetch;
  };
  explicit SimEngine(Hooks hooks) : hooks_(std::move(hooks)) {}

  void Form();
  void Leave() { slots_.clear(); }
  void Begin(std::shared_ptr<const worker::v1::Window> window) { window_ = std::move(window); }
  absl::StatusOr<bool> Execute(const worker::v1::Operation& operation);
  void End(const std::set<std::string>& cut_jobs);
  // Bytes that are copied when a job is saved.
  static constexpr int64_t kStagedBytes = 1000;

 private:
  struct Slot {
    int64_t step = 0;
    std::map<int64_t, int> sequences;  // of the batch under way, how often backwarded
  };
  absl::StatusOr<bool> Load(const worker::v1::Operation& operation);
  void Step(const worker::v1::Operation& operation);
  void Evaluate(const worker::v1::Microbatch& microbatch);
  void Report(const worker::v1::Microbatch& microbatch, bool backward);
  const worker::v1::Microbatch& Find(int64_t number) const;
  Slot& At(const std::string& job);

  const Hooks hooks_;
  std::map<std::string, Slot> slots_;
  std::shared_ptr<const worker::v1::Window> window_;
};

}  // namespace lorad::sim
