#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "lorad/worker/v1/worker.pb.h"
#include "storage/models/model_directory.h"
#include "worker/engine/group_engine.h"
#include "worker/engine/model.h"
#include "worker/engine/resident.h"
#include "worker/engine/way_back.h"
#include "worker/host/clock.h"

namespace lorad::worker {

struct EngineOptions {
  int64_t memory_bytes = 0;  // for group and slots together; 0: no limit
  std::string numerics_id;
};

// A formed group at work: the model's stage, the slots, and the batches that are under way. Memory
// is one arena for the model (worker/engine/model.h) and one a slot (worker/engine/slot.h).
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
  };

  // Opens the model, checks that it is the one meant and that it fits, and loads it. Reports
  // GroupFormed. Errors carry a reason for GroupFailed: MEMORY (more than the worker may use),
  // MEMORY_TAKEN (it may, but others of the machine have it), MODEL_CHANGED, STAGES_UNSUPPORTED, or
  // what storage gave.
  static absl::StatusOr<std::unique_ptr<Engine>> Form(const v1::FormGroup& order,
                                                      const Environment& environment);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  absl::Status BeginWindow(const v1::Window& window) override;
  void EndWindow() override;
  absl::StatusOr<bool> Execute(const v1::Operation& operation) override;
  void DropBatches(const std::set<std::string>& jobs) override;
  Shard Staged(const std::string& job) const override;

 private:
  Engine(const v1::FormGroup& order, const Environment& environment);

  absl::Status MakeWayBack();

  absl::StatusOr<Resident*> Find(const std::string& job);
  absl::StatusOr<const v1::Microbatch*> FindMicrobatch(int64_t number) const;
  absl::StatusOr<Flight> Prepare(const v1::Microbatch& microbatch, bool evaluate);
  absl::Status AddSegment(const v1::Segment& segment, Resident* resident, Flight* flight);
  absl::Status OpenBatchFor(const v1::Segment& segment, Resident* resident);
  void EnqueueForward(bool gradient, Flight* flight);

  absl::Status Forward(int64_t microbatch);
  absl::Status Backward(int64_t microbatch);
  absl::Status Evaluate(int64_t microbatch);
  absl::Status NormUp(Resident* resident, const v1::Operation& operation);
  absl::Status ClipDown(Resident* resident, const v1::Operation& operation);
  absl::Status Step(Resident* resident, const v1::Operation& operation);
  absl::Status Save(Resident* resident, const v1::Operation& operation);
  absl::Status LoadSlot(const v1::Operation& operation);
  absl::Status TryLoadSlot(const v1::Operation& operation, Resident* resident);
  absl::Status FetchContent(const v1::Operation& operation, Slot* slot);
  absl::Status FreeSlot(const std::string& job);

  absl::Status CheckComplete(const std::string& job, const OpenBatch& batch) const;
  void FailJob(const std::string& job, Resident* resident, int64_t step,
               const std::vector<int64_t>& sequences, const std::string& what);
  void DropBatch(Resident* resident);
  void Report(v1::Report report);

  const Environment environment_;
  const v1::FormGroup order_;
  std::optional<storage::ModelDirectory> directory_;
  int64_t group_bytes_ = 0;  // of the model's arena
  int64_t slot_bytes_ = 0;   // of all slots
  std::unique_ptr<kernels::Arena> arena_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<kernels::AdapterTable> table_;
  std::vector<bool> index_taken_;
  std::map<std::string, Resident> residents_;
  std::unique_ptr<WayBack> way_back_;
  std::optional<Flight> flight_;  // between Forward and Backward
  const v1::Window* window_ = nullptr;
  std::map<int64_t, const v1::Microbatch*> microbatches_;  // of window_
};

// Forms engines on this backend, which must outlive them.
FormEngine MakeFormEngine(kernels::Backend* backend, EngineOptions options, Clock clock);

}  // namespace lorad::worker
