// The orders of a group's windows at hand, and which of them the worker has answered already. A
// report that answers no order is a lie (report_checks.h), and a window is done once all of its
// orders are answered or given up.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::server {

// The orders of one job in one window. An answered order is taken off.
struct JobOrders {
  std::optional<int64_t> load_step;              // its slot is loaded, from this state
  std::optional<worker::v1::Batch> batch;        // its Step is executed,
  double learning_rate = 0;                      // with this
  int64_t evaluate_step = -1;                    // after so many steps
  std::set<int64_t> sequences;                   // of the evaluation
  int64_t evaluate_first = 0, evaluate_end = 0;  // the range that `sequences` was
  // By a cut, or because the job is not finite: the rest need not come, but may.
  bool given_up = false;

  bool answered() const { return given_up || (!load_step && !batch && sequences.empty()); }
};

// Arithmetic of a window, for the time model.
struct WindowWork {
  double tokens = 0;
  double squared_lengths = 0;
  double microbatches = 0;
};

struct SentWindow {
  int64_t number = 0;
  int64_t first_microbatch = 0;
  // By microbatch; emptied once that is reported done.
  std::vector<std::vector<std::string>> microbatch_jobs;
  std::map<std::string, JobOrders> jobs;
  std::vector<std::string> frees;
  std::vector<std::pair<std::string, int64_t>> saves;  // (job, step)
  WindowWork work;
};
using SentWindows = std::deque<SentWindow>;

// `first_microbatch`: the number of its first one, also where it has none.
SentWindow OrdersOf(const worker::v1::Window& window, int64_t first_microbatch);

// The first order of that kind that waits for its answer; nullptr: none does.
const JobOrders* FindLoad(const SentWindows& windows, const std::string& job);
const JobOrders* FindStep(const SentWindows& windows, const std::string& job);
const JobOrders* FindEvaluation(const SentWindows& windows, const std::string& job, int64_t step);
// The jobs of a microbatch that is at hand and not reported done.
const std::vector<std::string>* FindMicrobatch(const SentWindows& windows, int64_t microbatch);

// Take off what was answered. REQUIRES: the order is found.
void TakeLoad(SentWindows& windows, const std::string& job);
void TakeStep(SentWindows& windows, const std::string& job);
void TakeSequence(SentWindows& windows, const std::string& job, int64_t step, int64_t sequence);
std::vector<std::string> TakeMicrobatch(SentWindows& windows, int64_t microbatch);

// The job is not finite: what is left of its orders need not come.
void GiveUp(SentWindows& windows, const std::string& job);
// The worker drops every microbatch from `first_dropped` on and what follows from them, as
// worker/core/plan_cut.h has it. The jobs whose FreeSlot is dropped.
std::vector<std::string> GiveUpFrom(SentWindows& windows, int64_t first_dropped);

}  // namespace lorad::server
