// The engine of a worker without arithmetic, also as one stage of several: it checks that what it
// is asked to do makes sense, and reports losses that are a function of job, step and sequence
// alone.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "tests/sim/worker/sim_stage.h"
#include "worker/core/effects.h"

namespace lorad::sim {

// What the loss of a step is, whoever computes it; of an evaluation, for each trained token.
double TrainLoss(const std::string& job, int64_t step);
double ValidationLoss(const std::string& job, int64_t step, int64_t sequence);
// The token behind so many, whoever computes it: of the content that a slot was loaded with (empty:
// the base model) and of the answer's seed.
int32_t NextToken(const std::string& content, uint64_t seed, int64_t tokens);
inline constexpr int32_t kTokensOfModel = 15;  // that answers have, from 1 on

// What a story makes happen in workers. One for all of them, and it may change at any time.
struct WorkerScript {
  std::map<std::string, int64_t> bad_steps;  // by job: the step whose loss is not finite
  std::set<std::string> deadly;              // jobs whose steps end the process
  // Steps of a higher learning rate are not finite; of a still higher one, they end the process.
  // Asked here, as a Step may stand in a window behind that of its norms.
  std::function<double(const std::string& job, int64_t step)> rate_of = [](const auto&, int64_t) {
    return 0.0;
  };
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
    // Between the stages of a group; null where all groups have one.
    StageNet* net = nullptr;
    SimStage::Host host = {};
    // Of either pass of so many tokens, as it is reported; `ranks`: the sum of those of their
    // adapters.
    std::function<double(int64_t tokens, int64_t ranks)> pass_ms = [](int64_t, int64_t) {
      return 1.0;
    };
    std::function<void(int64_t rank)> stepped = [](int64_t) {};  // an adapter of that rank
  };
  SimEngine(Hooks hooks, const WorkerScript& script) : hooks_(std::move(hooks)), script_(script) {}

  // Carries out an order of the worker's core. `done` is called once with what EngineDone is to
  // say: at once, or when what it waits for from other stages has come; not where the engine ends
  // first.
  using Done = SimStage::Done;
  void CarryOut(const worker::Effect& order, const Done& done);
  // The effects CancelCalls and GiveUpReceive.
  void Interrupt();
  void GiveUpReceive();
  // Bytes that are copied when a job is saved.
  static constexpr int64_t kStagedBytes = 1000;

 private:
  struct Slot {
    int64_t step = 0;
    int64_t rank = 0;                  // of its adapter
    std::string content = {};          // that it was loaded with
    bool loaded = true;                // here
    bool failed = false;               // what is left of it is void,
    bool dropped = false;              // and all stages know
    std::map<int64_t, int> sequences;  // of the batch under way, how often backwarded
    std::optional<worker::v1::Batch> batch;
  };
  // Of a base model, by its path: the blocks of a stage.
  using Weights = std::tuple<std::string, int32_t, int32_t>;
  // A microbatch between its coming and its going; the window may end before.
  struct Flight {
    std::shared_ptr<const worker::v1::Window> window;
    const worker::v1::Microbatch* microbatch = nullptr;
    bool evaluates = false;
    std::set<std::string> lost;     // jobs that have failed, here or on a stage before
    std::set<std::string> dropped;  // jobs whose batch a cut has dropped meanwhile
  };
  absl::Status Form(const worker::v1::FormGroup& order);
  void EndWindow(const std::set<std::string>& cut_jobs);
  void Execute(const worker::v1::Operation& operation, const Done& done);
  absl::StatusOr<bool> ExecuteAlone(const worker::v1::Operation& operation);
  absl::StatusOr<bool> Load(const worker::v1::Operation& operation);
  void Free(const std::string& job);
  Flight& Begin(int64_t microbatch);
  void Forward(const worker::v1::Operation& operation);
  void Backward(const worker::v1::Operation& operation);
  void Evaluate(const Flight& flight);
  void Generate(const Flight& flight);
  void Step(const worker::v1::Operation& operation);
  bool IsBad(const worker::v1::Operation& step) const;
  void ReportNotFinite(const worker::v1::Operation& operation);
  void Report(const worker::v1::Microbatch& microbatch, bool backward);
  const worker::v1::Microbatch& Find(int64_t number) const;
  Flight& InFlight(int64_t number);
  Slot& At(const std::string& job);
  bool first() const { return stage_ == nullptr || stage_->stage() == 0; }
  bool last() const { return stage_ == nullptr || stage_->stage() + 1 == stage_->stages(); }

  // ---- sim_engine_stages.cc: of several stages ----
  void Receive(const worker::v1::Operation& operation, const Done& done);
  void Send(const worker::v1::Operation& operation, const Done& done);
  void NormUp(const worker::v1::Operation& operation);
  void ClipDown(const worker::v1::Operation& operation, const Done& done);
  // Stage 0: takes the share of `stage`, then of those behind it, then decides.
  void Gather(int stage, worker::v1::Verdict verdict, const Done& done);
  bool Apply(const worker::v1::Verdict& verdict);
  worker::v1::NormShare::State ShareOf(const worker::v1::Operation& operation);

  const Hooks hooks_;
  const WorkerScript& script_;
  std::optional<Weights> weights_;  // of the group, or of the one before
  int64_t capacity_tokens_ = 0;
  std::map<std::string, Slot> slots_;
  std::shared_ptr<const worker::v1::Window> window_;
  std::map<int64_t, Flight> flights_;  // by microbatch
  size_t in_flight_max_ = 1;
  std::map<std::pair<int, std::string>, worker::v1::NormShare> shares_;  // that came early
  std::unique_ptr<SimStage> stage_;                                      // null: of one stage
};

}  // namespace lorad::sim
