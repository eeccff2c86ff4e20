// The orders of a stage's windows at hand, and which of them its worker has answered already. A
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
#include "planner/cost/time.h"
#include "server/core/events/plan.h"

namespace lorad::server {

// A Step is executed: on this batch, with this learning rate.
struct StepOrder {
  worker::v1::Batch batch;
  double learning_rate = 0;
};

// The orders of one job in one window. An answered order is taken off.
struct JobOrders {
  std::optional<int64_t> load_step;              // its slot is loaded, from this state,
  std::string load_content = {};                 // fetched as that
  std::deque<StepOrder> steps;                   // of the stage that has the losses
  int64_t evaluate_step = -1;                    // after so many steps
  std::set<int64_t> sequences;                   // of the evaluation
  int64_t evaluate_first = 0, evaluate_end = 0;  // the range that `sequences` was
  // By a cut, or because the job is not finite: the rest need not come, but may.
  bool given_up = false;

  bool answered() const { return given_up || (!load_step && steps.empty() && sequences.empty()); }
};

// What a window computes.
struct WindowWork {
  planner::Workload sum;
  double microbatches = 0;
};

struct BegunMicrobatch {
  std::vector<std::string> jobs;  // sorted, each once
  planner::Workload work;         // empty where an older version sent it: unknown
  int64_t sent_us = 0;            // when it was asked for; 0: before this start
};
inline bool IsKnown(const planner::Workload& work) { return work.tokens > 0; }
using BegunMicrobatches = std::map<int64_t, BegunMicrobatch>;  // by number
// Parameters of the jobs' adapters; of those that are not in it they do not count.
using ParametersOfJobs = std::map<std::string, int64_t>;

// Whose token, and which of its answer.
using TokenKey = std::pair<std::string, int64_t>;

struct SentWindow {
  int64_t number = 0;
  worker::v1::Window message;   // as it went to the worker
  int64_t next_microbatch = 0;  // behind those that begin in it
  BegunMicrobatches begins;     // these
  std::set<int64_t> left;       // what is in flight behind it
  std::map<std::string, JobOrders> jobs;
  std::vector<std::string> frees;
  // Tokens that are asked for, of the stage that has the losses, each with its microbatch.
  std::map<TokenKey, int64_t> generates = {};
  bool generates_may_be_told = false;  // of before this start: some of them are told already
};

struct StageOrders {
  std::deque<SentWindow> windows;  // not done, oldest first
  // At hand and not reported done; one may end in a window behind its own.
  BegunMicrobatches microbatches;
  std::set<std::string> freeing;  // slots whose end is not reported; it may come behind its window
};

// Batches whose Step is not sent yet, by job and step.
using OpenBatches = std::map<std::pair<std::string, int64_t>, worker::v1::Batch>;

// The window goes to the stage. `losses`: that is the one that reports what has to do with
// losses, the last one; null for the others.
void AddWindow(const worker::v1::Window& window, const StageWindows& of,
               const ParametersOfJobs& parameters, OpenBatches* losses, StageOrders& orders);

WindowWork WorkOf(const SentWindow& window);

// The tokens that a window asks for.
std::map<TokenKey, int64_t> GeneratesOf(const worker::v1::Window& window);

// The first order of that kind that waits for its answer; nullptr: none does.
const JobOrders* FindLoad(const StageOrders& orders, const std::string& job);
const StepOrder* FindStep(const StageOrders& orders, const std::string& job);
const JobOrders* FindEvaluation(const StageOrders& orders, const std::string& job, int64_t step);
bool IsAsked(const StageOrders& orders, const TokenKey& token);
// The jobs of a microbatch that is at hand and not reported done.
const std::vector<std::string>* FindMicrobatch(const StageOrders& orders, int64_t microbatch);

// Whether the orders at hand have anything of the job that no worker has ever done: a load, an
// evaluation, or, once it has done `done_step`, a step after `furthest_step`; the microbatches of a
// step may be at hand before it is.
bool AnyNew(const StageOrders& orders, const std::string& job, int64_t done_step,
            int64_t furthest_step);

// Whether a slot was loaded for a LoadSlot that a cut has dropped: the stage was ahead of the first
// one, and frees it again.
bool LoadIsUndone(const StageOrders& orders, const std::string& job);

// Take off what was answered. REQUIRES: the order is found.
void TakeLoad(StageOrders& orders, const std::string& job);
void TakeStep(StageOrders& orders, const std::string& job);
void TakeSequence(StageOrders& orders, const std::string& job, int64_t step, int64_t sequence);
void TakeToken(StageOrders& orders, const TokenKey& token);
BegunMicrobatch TakeMicrobatch(StageOrders& orders, int64_t microbatch);
void TakeUndone(StageOrders& orders, const std::string& job);
// The oldest window is done. REQUIRES: there is one.
void TakeWindow(StageOrders& orders);

// The job is not finite: what is left of its orders need not come.
void GiveUp(StageOrders& orders, const std::string& job);
// The worker drops every microbatch from `first_dropped` on and what follows from them, as
// worker/core/plan_cut.h has it. The jobs that lose something.
std::set<std::string> GiveUpFrom(StageOrders& orders, int64_t first_dropped);

// Whether anything is to follow from these: a Backward, or a Step.
bool AnyInFlight(const planner::PlacesInFlight& places);
// What is left in the pipeline once a cut has dropped every microbatch from `first_dropped` on, and
// what follows from them: `cut_jobs` have lost something.
void CutPlaces(planner::PlacesInFlight& places, int64_t first_dropped,
               const std::set<std::string>& cut_jobs);

}  // namespace lorad::server
