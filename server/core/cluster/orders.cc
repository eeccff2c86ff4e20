#include "server/core/cluster/orders.h"

#include <algorithm>
#include <utility>

namespace lorad::server {
namespace {

using planner::OperationKind;
using planner::Place;
using worker::v1::Operation;
using worker::v1::Segment;

int64_t TokensOf(const Segment& segment) {
  return segment.tokens() > 0 ? segment.tokens() : segment.input_ids_size();
}

void AddMicrobatch(const worker::v1::Microbatch& microbatch, const ParametersOfJobs& parameters,
                   bool losses, SentWindow* sent) {
  auto& [jobs, work, sent_us] = sent->begins[microbatch.number()];
  for (const Segment& segment : microbatch.segments()) {
    jobs.push_back(segment.job());
    const auto tokens = static_cast<double>(TokensOf(segment));
    const auto of_job = parameters.find(segment.job());
    const int64_t adapter = of_job == parameters.end() ? 0 : of_job->second;
    work += {tokens, tokens * tokens, static_cast<double>(adapter) * tokens};
    if (!losses || segment.mode() != Segment::EVALUATE) continue;
    JobOrders& orders = sent->jobs[segment.job()];
    orders.evaluate_step = segment.step();
    orders.sequences.insert(segment.sequence());
  }
  std::ranges::sort(jobs);
  jobs.erase(std::ranges::unique(jobs).begin(), jobs.end());
}

void AddOperation(const Operation& operation, OpenBatches* losses, SentWindow* sent) {
  switch (operation.kind()) {
    case Operation::FREE_SLOT:
      sent->frees.push_back(operation.job());
      break;
    case Operation::LOAD_SLOT:
      sent->jobs[operation.job()].load_step = operation.step();
      sent->jobs[operation.job()].load_content = operation.content();
      break;
    case Operation::STEP:
      if (losses != nullptr) {
        auto batch = losses->extract({operation.job(), operation.step()});
        if (batch.empty()) break;  // its job has lost it by a cut
        sent->jobs[operation.job()].steps.push_back(
            {std::move(batch.mapped()), operation.learning_rate()});
      }
      break;
    default:
      break;
  }
}

// The first order of the job for which `awaited` holds.
template <class Windows, class Awaited>
auto FindFirst(Windows& windows, const std::string& job, Awaited awaited)
    -> decltype(&windows.front().jobs.begin()->second) {
  for (auto& window : windows) {
    const auto found = window.jobs.find(job);
    if (found != window.jobs.end() && awaited(found->second)) return &found->second;
  }
  return nullptr;
}

std::vector<std::string> LoadsOf(const SentWindow& window) {
  std::vector<std::string> jobs;
  for (const Operation& operation : window.message.operations()) {
    if (operation.kind() == Operation::LOAD_SLOT) jobs.push_back(operation.job());
  }
  return jobs;
}

bool LoadAwaited(const JobOrders& orders) { return orders.load_step.has_value(); }
bool StepAwaited(const JobOrders& orders) { return !orders.steps.empty(); }

// Its load was done, and the cut drops it all the same.
bool IsUndone(const SentWindow& window, const std::string& job) {
  const auto found = window.jobs.find(job);
  if (found == window.jobs.end()) return false;
  if (!found->second.given_up || LoadAwaited(found->second)) return false;
  return std::ranges::count(LoadsOf(window), job) > 0;
}

}  // namespace

std::map<TokenKey, int64_t> GeneratesOf(const worker::v1::Window& window) {
  std::map<TokenKey, int64_t> generates;
  for (const worker::v1::Microbatch& microbatch : window.microbatches()) {
    for (const Segment& segment : microbatch.segments()) {
      if (segment.mode() != Segment::GENERATE) continue;
      const worker::v1::Sampling& sampling = segment.sampling();
      generates[{sampling.generation(), sampling.number()}] = microbatch.number();
    }
  }
  return generates;
}

void AddWindow(const worker::v1::Window& window, const StageWindows& of,
               const ParametersOfJobs& parameters, OpenBatches* losses, StageOrders& orders) {
  SentWindow& sent = orders.windows.emplace_back();
  sent.number = window.number();
  sent.message = window;
  sent.next_microbatch = of.next_microbatch;
  for (const Place& place : of.left) sent.left.insert(place.number);
  for (const worker::v1::Microbatch& microbatch : window.microbatches()) {
    AddMicrobatch(microbatch, parameters, losses != nullptr, &sent);
  }
  orders.microbatches.insert(sent.begins.begin(), sent.begins.end());
  if (losses != nullptr) {
    sent.generates = GeneratesOf(window);
    for (const auto& batch : window.batches()) (*losses)[{batch.job(), batch.step()}] = batch;
  }
  for (const Operation& operation : window.operations()) AddOperation(operation, losses, &sent);
  for (auto& [job, of_job] : sent.jobs) {
    if (of_job.sequences.empty()) continue;
    of_job.evaluate_first = *of_job.sequences.begin();
    of_job.evaluate_end = *of_job.sequences.rbegin() + 1;
  }
  orders.freeing.insert(sent.frees.begin(), sent.frees.end());
}

const JobOrders* FindLoad(const StageOrders& orders, const std::string& job) {
  return FindFirst(orders.windows, job, LoadAwaited);
}

const StepOrder* FindStep(const StageOrders& orders, const std::string& job) {
  const JobOrders* found = FindFirst(orders.windows, job, StepAwaited);
  return found != nullptr ? &found->steps.front() : nullptr;
}

const JobOrders* FindEvaluation(const StageOrders& orders, const std::string& job, int64_t step) {
  return FindFirst(orders.windows, job, [step](const JobOrders& of_job) {
    return of_job.evaluate_step == step && !of_job.sequences.empty();
  });
}

const std::vector<std::string>* FindMicrobatch(const StageOrders& orders, int64_t microbatch) {
  const auto found = orders.microbatches.find(microbatch);
  return found == orders.microbatches.end() ? nullptr : &found->second.jobs;
}

bool AnyNew(const StageOrders& orders, const std::string& job, int64_t done_step,
            int64_t furthest_step) {
  int64_t reached = done_step;
  for (const SentWindow& window : orders.windows) {
    const auto found = window.jobs.find(job);
    if (found == window.jobs.end()) continue;
    const JobOrders& of_job = found->second;
    if (of_job.load_step || !of_job.sequences.empty()) return true;
    reached += std::ssize(of_job.steps);
  }
  return reached >= furthest_step;
}

bool IsAsked(const StageOrders& orders, const TokenKey& token) {
  return std::ranges::any_of(
      orders.windows, [&](const SentWindow& window) { return window.generates.contains(token); });
}

void TakeToken(StageOrders& orders, const TokenKey& token) {
  for (SentWindow& window : orders.windows) {
    if (window.generates.erase(token) > 0) return;
  }
}

bool LoadIsUndone(const StageOrders& orders, const std::string& job) {
  return std::ranges::any_of(orders.windows,
                             [&](const SentWindow& window) { return IsUndone(window, job); });
}

void TakeUndone(StageOrders& orders, const std::string& job) {
  std::ranges::find_if(orders.windows, [&](const SentWindow& window) {
    return IsUndone(window, job);
  })->jobs.erase(job);
}

void TakeLoad(StageOrders& orders, const std::string& job) {
  FindFirst(orders.windows, job, LoadAwaited)->load_step.reset();
}

void TakeStep(StageOrders& orders, const std::string& job) {
  FindFirst(orders.windows, job, StepAwaited)->steps.pop_front();
}

void TakeSequence(StageOrders& orders, const std::string& job, int64_t step, int64_t sequence) {
  FindFirst(orders.windows, job, [&](const JobOrders& of_job) {
    return of_job.evaluate_step == step && of_job.sequences.contains(sequence);
  })->sequences.erase(sequence);
}

WindowWork WorkOf(const SentWindow& window) {
  WindowWork work;
  work.microbatches = static_cast<double>(window.begins.size());
  for (const auto& [number, begun] : window.begins) work.sum += begun.work;
  return work;
}

BegunMicrobatch TakeMicrobatch(StageOrders& orders, int64_t microbatch) {
  return std::move(orders.microbatches.extract(microbatch).mapped());
}

void TakeWindow(StageOrders& orders) {
  const SentWindow& window = orders.windows.front();
  // Of a job that has failed no end is reported.
  std::erase_if(orders.microbatches, [&](const auto& entry) {
    return entry.first < window.next_microbatch && !window.left.contains(entry.first);
  });
  orders.windows.pop_front();
}

void GiveUp(StageOrders& orders, const std::string& job) {
  for (SentWindow& window : orders.windows) {
    if (const auto found = window.jobs.find(job); found != window.jobs.end()) {
      found->second.given_up = true;
    }
  }
}

std::set<std::string> GiveUpFrom(StageOrders& orders, int64_t first_dropped) {
  std::set<std::string> cut_jobs;
  bool room = true;  // that loads count on: every FreeSlot so far is kept
  for (SentWindow& window : orders.windows) {
    for (const std::string& job : window.frees) {
      if (!cut_jobs.contains(job)) continue;
      orders.freeing.erase(job);  // its FreeSlot is dropped
      room = false;
    }
    const bool begins = window.begins.empty() || window.begins.begin()->first < first_dropped;
    for (const std::string& job : LoadsOf(window)) {
      if (!begins || !room) cut_jobs.insert(job);
    }
    for (const auto& [number, begun] : window.begins) {
      if (number >= first_dropped) cut_jobs.insert(begun.jobs.begin(), begun.jobs.end());
    }
    for (auto& [job, of_job] : window.jobs) {
      if (cut_jobs.contains(job)) of_job.given_up = true;
    }
    std::erase_if(window.generates,
                  [&](const auto& entry) { return entry.second >= first_dropped; });
  }
  std::erase_if(orders.microbatches,
                [&](const auto& entry) { return entry.first >= first_dropped; });
  return cut_jobs;
}

bool AnyInFlight(const planner::PlacesInFlight& places) {
  return std::ranges::any_of(places, [](const Place& place) {
    return place.kind == OperationKind::kForward || !place.ends.empty();
  });
}

void CutPlaces(planner::PlacesInFlight& places, int64_t first_dropped,
               const std::set<std::string>& cut_jobs) {
  for (Place& place : places) {
    std::erase_if(place.ends, [&](const auto& end) { return cut_jobs.contains(end.job); });
    if (place.number < first_dropped) continue;
    place.kind = OperationKind::kNoop;
    place.tokens = 0;
  }
  if (!AnyInFlight(places)) places.clear();
}

}  // namespace lorad::server
