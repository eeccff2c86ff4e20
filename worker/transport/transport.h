#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor.h"

namespace lorad::worker {

// Which way tensors go: activations to the next stage, their gradients to the one before.
enum class Lane { kActivations, kGradients };

// Rows of a microbatch on their way over a border.
struct Passage {
  int64_t microbatch = 0;
  int64_t rows = 0;  // 0: the microbatch has none here, or no gradient
  std::vector<int32_t> lost =
      {};                 // segments whose results are void, by their place in the microbatch
  bool in_place = false;  // the rows are there already (Transport::Offer),
  int64_t took_us = 0;    // and were on their way for so long; told to Landing, not to the receiver

  bool operator==(const Passage&) const = default;
};

// A tensor that has come.
struct Landing {
  Passage passage;
  // While its rows moved: from when both sides were ready for it to its last byte.
  std::chrono::steady_clock::time_point begin, end;
};

// The way from one stage of a model to the others, for one epoch of a group. Two kinds of things
// travel, and neither waits for the other:
//
//   tensors  between neighbours, [T', H] of the activation type. A rendezvous: a tensor leaves once
//            the other side has memory for it, and lands in that memory. A lane delivers in the
//            order of its Sends; on each side at most one of them is on its way.
//   notes    between stage 0 and each other one, some kilobytes, host to host. Delivered in the
//            order in which they were sent; any number may be on their way.
//
// Every connection was opened with (epoch, stage, stages, numerics id), the same on both sides, or
// refused. Waits end with UNAVAILABLE where the other stage is gone, as soon as that is known, and
// with what Interrupt was given. A stage that lives is waited for: it may have to wait for others
// itself, for a slot's content or for a checkpoint on its way up, and only the coordinator knows
// for how long; it calls Interrupt where that is too long. A limit (DEADLINE_EXCEEDED) is the last
// resort, far behind all of that. After any of these the transport is of no more use, and each
// later call gives that first error again. Errors of what the other side sent (another microbatch's
// place, more rows than there is memory) are INTERNAL.
//
// Memory: belongs to the caller. From Send to WaitSent, and from PostReceive to WaitReceived, it is
// the transport's. The host's is at rest when it is handed over: what is sent is written, what is
// received into is read. A device's (device_transport.h) is handed over and back in the order of
// the device's operations: a Send gives what those before it write, and those behind a WaitReceived
// read what it has brought.
// Threads: one calls for each end of a lane and for the notes, so one may for all; Interrupt and
// GiveUpReceive may come from any.
class Transport {
 public:
  virtual ~Transport() = default;

  // Gives the first passage.rows rows of `memory` on their way. REQUIRES: none of the lane is on
  // its way from here (WaitSent).
  virtual absl::Status Send(Lane lane, const Passage& passage,
                            const kernels::TensorView& memory) = 0;
  // Until what was sent last has left its memory; at once where nothing was.
  virtual absl::Status WaitSent(Lane lane) = 0;
  // Where the lane's next tensor lands. REQUIRES: none is awaited on the lane.
  virtual absl::Status PostReceive(Lane lane, const kernels::TensorView& memory) = 0;
  // Until it has landed, or nothing: it was given up, and its memory stays posted. REQUIRES:
  // PostReceive.
  virtual absl::StatusOr<std::optional<Landing>> WaitReceived(Lane lane) = 0;
  // One WaitReceived of the lane, under way or the next, does not wait any more: what it is for is
  // never sent. REQUIRES: so it is; it would end otherwise.
  virtual void GiveUpReceive(Lane lane) = 0;

  // ---- for those who write into the other side's memory themselves ----

  // As PostReceive, for a tensor of the shape of `memory` whose rows do not come this way: the
  // other side learns `name`, writes the rows where it says, and then sends the passage alone,
  // in_place.
  virtual absl::Status Offer(Lane lane, const kernels::TensorView& memory, std::string name) = 0;
  // Until the other side has memory for the lane's next tensor; its name, "" without an Offer.
  virtual absl::StatusOr<std::string> WaitRoom(Lane lane) = 0;
  // The passage of the tensor that was offered last, as soon as it has come and until the next
  // Offer, whether WaitReceived has given it or not: for those who fetch the rows themselves, ahead
  // of their stage. Has no limit, for nothing may be due for hours.
  virtual absl::StatusOr<Passage> WaitComing(Lane lane) = 0;
  // OK, or the error that every call gives. Threads: any.
  virtual absl::Status broken() = 0;

  // REQUIRES, of both: one of the two stages is 0.
  virtual absl::Status SendNote(int stage, std::string note) = 0;
  // The next note of that stage.
  virtual absl::StatusOr<std::string> WaitNote(int stage) = 0;

  // Ends all waits, those under way and those to come. `why` is not OK.
  virtual void Interrupt(absl::Status why) = 0;
};

}  // namespace lorad::worker
