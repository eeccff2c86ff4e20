// What the services stand on: the driver, and counters that keep long calls from taking all
// threads.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/driver.h"

namespace lorad::server {

// At most `places_max` at once. Any thread.
class Gate {
 public:
  // Held while inside; leaves when it goes.
  class Pass {
   public:
    explicit Pass(Gate* gate) : gate_(gate) {}
    Pass(Pass&& other) noexcept : gate_(other.gate_) { other.gate_ = nullptr; }
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_ != nullptr) gate_->inside_ -= 1;
    }

   private:
    Gate* gate_;
  };

  // `what` in the plural: "watches".
  Gate(std::string what, int places_max) : what_(std::move(what)), places_max_(places_max) {}

  // RESOURCE_EXHAUSTED (TOO_MANY_CALLS) when it is full.
  absl::StatusOr<Pass> Enter();

 private:
  const std::string what_;
  const int places_max_;
  std::atomic<int> inside_{0};
};

struct Backend {
  Backend(Driver& driver, std::vector<std::string> model_roots, bool own_workers);

  Driver& driver;
  const std::vector<std::string> model_roots;  // models lie beneath one of them
  const bool own_workers;                      // of the daemon's: one will connect
  Gate watches;
  Gate uploads;
  Gate workers;
  std::atomic<bool> stopping{false};  // long calls end when they see it
};

}  // namespace lorad::server
