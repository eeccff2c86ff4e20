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
#include "storage/model_directory.h"
#include "worker/clock.h"
#include "worker/group_engine.h"
#include "worker/model.h"
#include "worker/slot.h"

namespace lorad::worker {

struct EngineOptions {
  int64_t memory_bytes = 0;  // for group and slots together; 0: no limit
  std::string numerics_id;
};

// A formed group at work: the model's stage, the slots, and the batches that are under way. Memory
// is one arena for the model (worker/model.h) and one a slot (worker/slot.h).
//
// Operations are enqueued on the device and the host goes on: what a microbatch gave is read when
// the next one is enqueued, when a batch's norm decides its step, or when the window ends. So the
// device always has work but for the one wait for the norms of a window's batches.
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
  struct SequenceLoss {
    double sum = 0;  // of -log p
    int64_t trained_tokens = 0;
  };
  // One job's global batch between its first Forward and its Step.
  struct OpenBatch {
    v1::Batch told;
    std::map<int64_t, SequenceLoss> losses;  // by sequence index: the order they are added in
    int64_t tokens = 0;
    double started_ms = 0;
  };
  // What NormUp has the device read back, one of a slot.
  struct NormReading {
    double sum_of_squares = 0;
    int32_t overflow = 0;
  };
  // What stage 0 decides on all norms and ClipDown brings to all.
  struct Verdict {
    int64_t step = 0;
    double norm = 0;
    double clip_factor = 1;
  };
  struct Resident {
    std::unique_ptr<Slot> slot;  // null if it could not be loaded
    int32_t index = -1;          // in the adapter table
    bool failed = false;         // not finite, or not loaded: nothing of it is done any more
    std::optional<OpenBatch> batch;
    std::optional<int64_t> normed_step;  // of the batch whose norm is being read
    std::optional<Verdict> verdict;
  };
  // Consecutive loss rows of one segment.
  struct LossSpan {
    Resident* resident = nullptr;
    const v1::Segment* segment = nullptr;
    int64_t first = 0;
    int64_t count = 0;
  };
  // A microbatch is read while the next one is under way, so there are two of everything that one
  // has of its own: marks, and memory for log p. One mark more is behind the newest norms.
  static constexpr int kLanes = 2;
  enum Moment { kForwardBegins, kForwardEnds, kBackwardEnds, kMoments };
  static constexpr int kNormsRead = kLanes * kMoments;
  static_assert(kNormsRead < kernels::Backend::kMarks);
  static int MarkOf(int lane, Moment moment) { return lane * kMoments + moment; }

  // A microbatch between Forward or Evaluate and the reading of what it gave.
  struct Flight {
    const v1::Microbatch* microbatch = nullptr;
    int lane = 0;
    bool backward = false;
    int64_t rows = 0;
    int64_t squared_lengths = 0;
    std::vector<int32_t> ids;
    std::vector<kernels::Segment> segments;
    std::vector<kernels::LossRow> loss_rows;
    std::vector<LossSpan> spans;
    std::unique_ptr<kernels::Batch> batch;
  };

  Engine(const v1::FormGroup& order, const Environment& environment);

  // Memory for what is read back.
  absl::Status MakeReadings(const GroupShape& shape);

  absl::StatusOr<Resident*> Find(const std::string& job);
  absl::StatusOr<const v1::Microbatch*> FindMicrobatch(int64_t number) const;
  absl::StatusOr<Flight> Prepare(const v1::Microbatch& microbatch, bool evaluate);
  absl::Status AddSegment(const v1::Segment& segment, Resident* resident, Flight* flight);
  absl::Status OpenBatchFor(const v1::Segment& segment, Resident* resident);
  void EnqueueForward(const Flight& flight, bool gradient);
  // What is enqueued whole but not read yet is `flight` from now on; what was before is read.
  void Land(Flight flight);
  // Waits for the unread microbatch, if there is one, and takes the losses that it gave.
  void ReadLanded();
  // Reports what was read; apart, so that the device's next work can be enqueued first.
  void TellRead();
  // One per span.
  std::vector<SequenceLoss> LossesOf(const Flight& flight) const;

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

  // Enqueue what NormUp, and what Step left to be done together with that of other jobs.
  void EnqueueNorms();
  void EnqueueSteps();

  absl::Status CheckComplete(const std::string& job, const OpenBatch& batch) const;
  void FailJob(const std::string& job, Resident* resident, int64_t step,
               const std::vector<int64_t>& sequences, const std::string& what);
  void DropBatch(Resident* resident);
  void ReportEvaluations(const Flight& flight, const std::vector<SequenceLoss>& losses);
  void ReportMicrobatch(const Flight& flight);
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
  std::unique_ptr<kernels::Arena> host_arena_;  // what is read back
  float* log_p_[kLanes] = {};                   // [capacity]
  NormReading* norms_ = nullptr;                // [slots]
  // Jobs whose norms, and whose steps are told but not enqueued: those that end a batch together
  // come one after the other, and their small kernels run as one.
  std::vector<Resident*> norms_due_;
  std::vector<kernels::StepRequest> steps_due_;
  std::vector<v1::Report> step_reports_due_;
  std::optional<Flight> flight_;  // between Forward and Backward
  std::optional<Flight> landed_;  // unread
  std::optional<std::pair<Flight, std::vector<SequenceLoss>>> read_;  // not reported yet
  int next_lane_ = 0;
  const v1::Window* window_ = nullptr;
  std::map<int64_t, const v1::Microbatch*> microbatches_;  // of window_
};

// Forms engines on this backend, which must outlive them.
FormEngine MakeFormEngine(kernels::Backend* backend, EngineOptions options, Clock clock);

}  // namespace lorad::worker
