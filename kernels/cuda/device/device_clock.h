#pragma once

#include <chrono>
#include <deque>
#include <optional>

#include "kernels/cuda/device/context.h"

namespace lorad::kernels::cuda {

// When a device came to its events, by the host's clock. The device tells only the time between two
// events, so
//
//   moment of an event = moment of a base event + time between base and event,
//
// and the host knows the base's moment from above: whenever it has waited for an event, its own
// clock is at most late. The least of what the newest 64 events say counts, for a host that had to
// wait for its device is late by some microseconds only. So it waits for the first base: else what
// comes before its first wait would be told late, and out of order. Each second a new base follows
// the one before, so that neither float's precision nor the drift of the two clocks adds up.
// Threads: one.
class DeviceClock {
 public:
  using Moment = std::chrono::steady_clock::time_point;

  // Before an event is recorded on the stream. Enqueues a base where one is due. Waits for the
  // first one, and for nothing ever after.
  void KeepNear(cudaStream_t stream);
  // The host has just waited for this event.
  void HasReached(const TimedEvent& event);
  // REQUIRES: HasReached, of this event or a later one.
  Moment MomentOf(const TimedEvent& event) const;

 private:
  using Ms = std::chrono::duration<double, std::milli>;

  // Since the first base, as the device counts.
  Ms DeviceTimeOf(const TimedEvent& event) const;

  TimedEvent bases_[2];
  int base_ = 0;                    // the newest that was reached
  std::optional<Moment> enqueued_;  // the newest: when
  bool awaited_ = false;            // the other base is enqueued, and may not be reached yet
  Ms base_time_{0};                 // of base_, since the first one
  std::deque<Ms> offsets_;          // of the host's clock to the device's time
};

}  // namespace lorad::kernels::cuda
