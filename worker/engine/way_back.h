#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/engine/resident.h"

namespace lorad::worker {

// The way of results from the device to the reports. Operations are enqueued and the host goes on,
// so what they give passes through stages; the engine says how far each must have come:
//
//   stage     | microbatches                     | batches that end together
//   ----------|----------------------------------|------------------------------------------------
//   collected |                                  | norms and steps that were asked for: several
//             |                                  | jobs' small kernels run as one
//   enqueued  | forward, backward, log p or      | sums of squares, overflow marks; AdamW
//             | logits read back                 |
//   read      | losses, in their batches; tokens | the reading of a slot
//             | chosen                           |
//   reported  | EvaluateDone, Generated,         | StepDone
//             | MicrobatchDone                   |
//
// At most one microbatch is enqueued to its end and unread, and one read and not reported: a
// microbatch is read when the next one has come to its end, and reported when the device has its
// next work. So the device waits for the host only while the norms of a window's batches decide
// their steps. Losses are read on the stage that has the head, and reported from there.
// Threads: the engine's one.
class WayBack {
 public:
  struct Environment {
    kernels::Backend* backend = nullptr;
    kernels::AdapterTable* table = nullptr;
    std::function<void(v1::Report)> report;
    bool has_head = true;
    // A validation loss is not finite; called between the reports of its microbatch.
    std::function<void(const std::string& job, int64_t step, const std::vector<int64_t>& sequences)>
        on_loss_not_finite;
  };
  // A slot's norm as the device has read it back.
  struct NormReading {
    std::span<const double> sums;  // of squares, of each matrix in the order of the slot's list
    bool overflow = false;
  };
  // Moments of a microbatch that are marked on the device.
  enum Moment { kForwardBegins, kForwardEnds, kBackwardBegins, kBackwardEnds, kMoments };

  explicit WayBack(Environment environment) : environment_(std::move(environment)) {}

  // Memory for what is read back, before all else. RESOURCE_EXHAUSTED where there is none.
  // vocabulary: of the head.
  absl::Status Reserve(const GroupShape& shape, int64_t matrices_max, int64_t vocabulary);

  // ---- to the first stage ----

  // A microbatch takes a lane until it is reported: marks and memory for log p of its own.
  int TakeLane();
  void Mark(int lane, Moment moment);
  float* log_p(int lane) { return log_p_[lane]; }  // [capacity_tokens]
  // Of the microbatch that comes next to its end: REQUIRES that the one before is read.
  float* logits() { return logits_; }  // [kLogitRows, vocabulary]
  // From logits() the tokens of the flight's next rows, as many as lie there.
  void ChooseTokens(Flight* flight) const;
  // All of its kernels are enqueued. The microbatch before it is read.
  void Add(Flight flight);
  // REQUIRES: `resident` has a batch and a slot, and stays until its norm is enqueued.
  void AddNorm(const Resident* resident) { norms_.push_back(resident); }
  // `done`: reported behind it; or nothing.
  void AddStep(const kernels::StepRequest& request, std::optional<v1::Report> done);

  // ---- from stage to stage; each does nothing where nothing is there ----

  void EnqueueNorms();
  // And reports them, after what was read before.
  void EnqueueSteps();
  // Waits for the microbatch, if one is unread.
  void ReadMicrobatch();
  // Waits for the newest norms.
  NormReading ReadNorm(const Resident& resident);
  // Reports what has been read.
  void Report();
  // All of it, to the end.
  void Finish();

  // The slot's mark of overflow (kernels::Backend::TakeOverflow), for ReadNorm; clears it.
  void TakeOverflow(const Resident& resident);

 private:
  // A microbatch is read while others are in flight: one lane more than these. One mark more is
  // behind the newest norms.
  static constexpr int kLanesMax = sizes::kInFlightMax + 1;
  static constexpr int kNormsEnqueued = kLanesMax * kMoments;
  static_assert(kNormsEnqueued < kernels::Backend::kMarks);
  static int MarkOf(int lane, Moment moment) { return lane * kMoments + moment; }

  double* SumsOf(const Resident& resident) const { return sums_ + resident.index * matrices_max_; }
  // One a span.
  std::vector<SequenceLoss> LossesOf(const Flight& flight) const;
  void ReportEvaluations(const Flight& flight, const std::vector<SequenceLoss>& losses);
  void ReportTokens(const Flight& flight);
  void ReportMicrobatch(const Flight& flight);

  const Environment environment_;
  std::unique_ptr<kernels::Arena> arena_;  // of the host
  std::vector<float*> log_p_;              // [in_flight + 1]
  std::vector<bool> lane_taken_;           // likewise
  float* logits_ = nullptr;                // [kLogitRows, vocabulary_]
  int64_t vocabulary_ = 0;
  int64_t matrices_max_ = 0;                 // of a slot
  double* sums_ = nullptr;                   // [slots_max, matrices_max]
  int32_t* overflows_ = nullptr;             // [slots_max]
  std::vector<const Resident*> norms_;       // collected
  std::vector<kernels::StepRequest> steps_;  // collected
  std::vector<v1::Report> steps_done_;       // of steps_
  std::optional<Flight> enqueued_;
  std::optional<std::pair<Flight, std::vector<SequenceLoss>>> read_;
};

}  // namespace lorad::worker
