#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/engine/group_engine.h"
#include "worker/engine/model.h"
#include "worker/engine/model_files.h"
#include "worker/engine/resident.h"
#include "worker/engine/way_back.h"
#include "worker/engine/weights.h"
#include "worker/host/clock.h"
#include "worker/transport/transport.h"

namespace lorad::worker {

struct EngineOptions {
  int64_t memory_bytes = 0;  // for group and slots together; 0: no limit
  std::string numerics_id;
  std::shared_ptr<ModelFiles> model_files = std::make_shared<ModelFiles>();
};

// A formed group at work: the model's stage, the slots, and the batches that are under way. Memory
// is one arena for the weights, which may be those of the group before (worker/engine/weights.h),
// one for all else of the model (worker/engine/model.h) and one a slot (worker/engine/slot.h).
//
// Of several stages each has an engine, which executes its own list of a window's operations. What
// crosses a border goes through the transport at Recv and Send; the norm of a batch goes to stage 0
// at NormUp, and its decision comes to all at ClipDown. Ids are read on the first stage, labels on
// the last one, which also reports what has to do with losses and logits: StepDone, EvaluateDone,
// NotFinite, Generated. All stages report what they load, free, save and execute.
//
// Operations are enqueued on the device and the host goes on; how their results come back is in
// worker/engine/way_back.h.
class Engine : public GroupEngine {
 public:
  struct Environment {
    kernels::Backend* backend = nullptr;
    EngineContext context;
    EngineOptions options;
    Clock clock;
    KeptWeights* kept = nullptr;  // never null; outlives Form
  };

  // Opens the model, checks that it is the one meant and that it fits, and loads it, or takes the
  // weights that are kept of it. Reports GroupFormed. Errors carry a reason for GroupFailed: MEMORY
  // (more than the worker may use), MEMORY_TAKEN (it may, but others of the machine have it),
  // BAD_STAGE (the range of blocks is none of this model, or no stage with that number has it), or
  // what ModelFiles::Open and storage gave.
  static absl::StatusOr<std::unique_ptr<Engine>> Form(const v1::FormGroup& order,
                                                      const Environment& environment);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // REQUIRES: there are several stages. An error of the transport, here and later, has the reason
  // STAGE_LOST, or MEMORY_TAKEN where it finds no memory.
  absl::Status Connect(Transport* transport) override;
  absl::Status BeginWindow(std::shared_ptr<const v1::Window> window) override;
  void EndWindow() override;
  absl::StatusOr<bool> Execute(const v1::Operation& operation) override;
  void DropBatches(const std::set<std::string>& jobs) override;
  Shard Staged(const std::string& job) const override;

 private:
  Engine(const v1::FormGroup& order, const Environment& environment);

  absl::Status MakeModel(const storage::ModelDirectory& directory, StageRange range,
                         const GroupShape& shape, v1::GroupFormed* formed);
  absl::Status MakeWayBack();

  absl::StatusOr<Resident*> Find(const std::string& job);
  absl::StatusOr<const v1::Microbatch*> FindMicrobatch(int64_t number) const;
  absl::StatusOr<bool> ExecuteOfJob(const v1::Operation& operation);
  // No microbatch in flight has rows of the job, or of its batch of `step`, but of dropped batches.
  absl::Status CheckLanded(const v1::Operation& operation, bool of_step) const;

  // ---- engine_microbatch.cc ----
  absl::StatusOr<Flight*> Begin(int64_t microbatch);
  absl::StatusOr<Flight> Prepare(const v1::Microbatch& microbatch);
  // For the backend, as its segments are now.
  void PrepareRows(Flight* flight);
  absl::Status AddSegment(const v1::Segment& segment, int32_t index, Resident* resident,
                          Flight* flight);
  absl::Status AddLossRows(const v1::Segment& segment, int64_t first_row, Flight* flight,
                           LossSpan* span) const;
  absl::Status OpenBatchFor(const v1::Segment& segment, Resident* resident);
  absl::StatusOr<Flight*> FindFlight(const v1::Operation& operation);
  Model::Pass PassOf(const Flight& flight) const;
  // To the way back; its place is free.
  void Land(Flight* flight);
  void ReadBackLogits(Flight* flight);
  absl::Status Run(const v1::Operation& operation);
  absl::Status Backward(const v1::Operation& operation);

  // ---- engine_border.cc ----
  absl::Status CheckTransfer(const v1::Operation& operation) const;
  // False: it was given up.
  absl::StatusOr<bool> RecvActivations(const v1::Operation& operation);
  absl::Status SendActivations(const v1::Operation& operation);
  absl::Status RecvGradient(const v1::Operation& operation);
  absl::Status SendGradient(const v1::Operation& operation);
  void Settle();
  absl::Status PostReceive(Lane lane, const kernels::TensorView& memory);
  absl::Status Send(Lane lane, const Passage& passage, const kernels::TensorView& memory);
  absl::Status Tell(int stage, const v1::StageNote& note);
  absl::StatusOr<v1::StageNote> Hear(int stage);

  // ---- engine_step.cc ----
  v1::NormShare ShareOf(const std::string& job, const Resident& resident);
  absl::StatusOr<v1::Verdict> VerdictOn(const std::string& job, const Resident& resident);
  absl::StatusOr<v1::Verdict> GatherVerdict(const std::string& job, const Resident& resident);
  absl::StatusOr<v1::NormShare> AwaitShare(int stage, const std::string& job, int64_t step);
  std::vector<int64_t> LossesNotFinite(const Resident& resident) const;
  absl::Status NormUp(Resident* resident, const v1::Operation& operation);
  absl::Status ClipDown(Resident* resident, const v1::Operation& operation);
  absl::Status Step(Resident* resident, const v1::Operation& operation);
  v1::Report StepDone(const Resident& resident, const v1::Operation& operation) const;
  absl::Status Save(Resident* resident, const v1::Operation& operation);
  absl::Status LoadSlot(const v1::Operation& operation);
  absl::Status TryLoadSlot(const v1::Operation& operation, Resident* resident);
  absl::Status FetchContent(const v1::Operation& operation, Slot* slot);
  absl::Status FreeSlot(const std::string& job);

  absl::Status CheckComplete(const std::string& job, const OpenBatch& batch) const;
  void FailJob(const std::string& job, Resident* resident, int64_t step,
               const std::vector<int64_t>& sequences, const std::string& what);
  void DropBatch(Resident* resident);
  void DropRows(const Resident& resident, Flight* flight);
  void Report(v1::Report report);

  const Environment environment_;
  const v1::FormGroup order_;
  const int stage_;
  const int stages_;
  int64_t group_bytes_ = 0;  // of weights and arena, and what the transport takes of the device
  int64_t slot_bytes_ = 0;   // of all slots
  std::shared_ptr<const Weights> weights_;
  std::unique_ptr<kernels::Arena> arena_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<kernels::AdapterTable> table_;
  std::vector<bool> index_taken_;
  std::map<std::string, Resident> residents_;
  std::unique_ptr<WayBack> way_back_;
  std::map<int64_t, Flight> flights_;  // by microbatch
  std::vector<bool> place_taken_;      // of the model's
  std::shared_ptr<const v1::Window> window_;
  std::map<int64_t, const v1::Microbatch*> microbatches_;  // of window_

  // Of several stages.
  Transport* transport_ = nullptr;
  Model::Border before_;
  Model::Border behind_;
  // The microbatch whose output, or gradient, the model holds: a Send, or a Backward, takes it.
  std::optional<int64_t> output_of_;
  std::optional<int64_t> gradient_of_;
  std::map<std::pair<int, std::string>, v1::NormShare>
      shares_;  // that came early, by stage and job
};

// Of engines on this backend, which must outlive it.
std::unique_ptr<EngineMaker> MakeEngineMaker(kernels::Backend* backend, EngineOptions options,
                                             Clock clock);

}  // namespace lorad::worker
