// Making what fails smaller, in processes of their own: a failed assertion, an assert, a signal or
// no end in time is a failure there, and no end here.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace lorad::sim {

// What a trial tells of itself when it goes well.
struct Tally {
  int64_t simulated_us = 0;
  int64_t deaths = 0;  // of the coordinator
  int64_t closings = 0;
  int64_t adoptions = 0;     // of groups      // of workers, by the coordinator
  uint64_t fingerprint = 0;  // of all that happened
};

// Whether `trial` went well in a child of this process, within `seconds`. Quiet: what it prints is
// lost. REQUIRES: the process has one thread.
bool GoesWell(const std::function<Tally()>& trial, bool quiet, Tally* tally, int seconds = 300);

// The fewest of `all`, in their order, that still fail: leaving out any one more makes it go well.
// After `tries_max` trials it is what was found so far. REQUIRES: `all` fails.
std::vector<int> Shrink(std::vector<int> all,
                        const std::function<bool(const std::vector<int>&)>& fails, int tries_max);

}  // namespace lorad::sim
