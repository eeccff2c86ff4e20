#include "server/core/cluster/orders.h"

#include <algorithm>
#include <utility>

namespace lorad::server {
namespace {

using worker::v1::Operation;
using worker::v1::Segment;

void AddMicrobatch(const worker::v1::Microbatch& microbatch, SentWindow* sent) {
  std::vector<std::string> jobs;
  sent->work.microbatches++;
  for (const Segment& segment : microbatch.segments()) {
    jobs.push_back(segment.job());
    const auto tokens = static_cast<double>(segment.input_ids_size());
    sent->work.tokens += tokens;
    sent->work.squared_lengths += tokens * tokens;
    if (segment.mode() != Segment::EVALUATE) continue;
    JobOrders& orders = sent->jobs[segment.job()];
    orders.evaluate_step = segment.step();
    orders.sequences.insert(segment.sequence());
  }
  std::ranges::sort(jobs);
  jobs.erase(std::ranges::unique(jobs).begin(), jobs.end());
  sent->microbatch_jobs.push_back(std::move(jobs));
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

bool LoadAwaited(const JobOrders& orders) { return orders.load_step.has_value(); }
bool StepAwaited(const JobOrders& orders) { return orders.batch.has_value(); }

template <class Windows>
auto FindJobs(Windows& windows, int64_t microbatch)
    -> decltype(&windows.front().microbatch_jobs.front()) {
  for (auto& window : windows) {
    const auto many = static_cast<int64_t>(window.microbatch_jobs.size());
    // Not by a difference: the number may be any.
    if (microbatch < window.first_microbatch || microbatch >= window.first_microbatch + many) {
      continue;
    }
    auto& jobs = window.microbatch_jobs[microbatch - window.first_microbatch];
    return jobs.empty() ? nullptr : &jobs;
  }
  return nullptr;
}

}  // namespace

SentWindow OrdersOf(const worker::v1::Window& window, int64_t first_microbatch) {
  SentWindow sent;
  sent.number = window.number();
  sent.first_microbatch = first_microbatch;
  for (const worker::v1::Microbatch& microbatch : window.microbatches()) {
    AddMicrobatch(microbatch, &sent);
  }
  for (const worker::v1::Batch& batch : window.batches()) sent.jobs[batch.job()].batch = batch;
  for (const Operation& operation : window.operations()) {
    switch (operation.kind()) {
      case Operation::FREE_SLOT:
        sent.frees.push_back(operation.job());
        break;
      case Operation::LOAD_SLOT:
        sent.jobs[operation.job()].load_step = operation.step();
        break;
      case Operation::SAVE:
        sent.saves.emplace_back(operation.job(), operation.step());
        break;
      case Operation::STEP:
        sent.jobs[operation.job()].learning_rate = operation.learning_rate();
        break;
      default:
        break;
    }
  }
  for (auto& [job, orders] : sent.jobs) {
    if (orders.sequences.empty()) continue;
    orders.evaluate_first = *orders.sequences.begin();
    orders.evaluate_end = *orders.sequences.rbegin() + 1;
  }
  return sent;
}

const JobOrders* FindLoad(const SentWindows& windows, const std::string& job) {
  return FindFirst(windows, job, LoadAwaited);
}

const JobOrders* FindStep(const SentWindows& windows, const std::string& job) {
  return FindFirst(windows, job, StepAwaited);
}

const JobOrders* FindEvaluation(const SentWindows& windows, const std::string& job, int64_t step) {
  return FindFirst(windows, job, [step](const JobOrders& orders) {
    return orders.evaluate_step == step && !orders.sequences.empty();
  });
}

const std::vector<std::string>* FindMicrobatch(const SentWindows& windows, int64_t microbatch) {
  return FindJobs(windows, microbatch);
}

void TakeLoad(SentWindows& windows, const std::string& job) {
  FindFirst(windows, job, LoadAwaited)->load_step.reset();
}

void TakeStep(SentWindows& windows, const std::string& job) {
  FindFirst(windows, job, StepAwaited)->batch.reset();
}

void TakeSequence(SentWindows& windows, const std::string& job, int64_t step, int64_t sequence) {
  FindFirst(windows, job, [&](const JobOrders& orders) {
    return orders.evaluate_step == step && orders.sequences.contains(sequence);
  })->sequences.erase(sequence);
}

std::vector<std::string> TakeMicrobatch(SentWindows& windows, int64_t microbatch) {
  return std::exchange(*FindJobs(windows, microbatch), {});
}

void GiveUp(SentWindows& windows, const std::string& job) {
  for (SentWindow& window : windows) {
    if (const auto found = window.jobs.find(job); found != window.jobs.end()) {
      found->second.given_up = true;
    }
  }
}

std::vector<std::string> GiveUpFrom(SentWindows& windows, int64_t first_dropped) {
  std::set<std::string> cut_jobs;
  std::vector<std::string> kept_slots;
  for (SentWindow& window : windows) {
    for (const std::string& job : window.frees) {
      if (cut_jobs.contains(job)) kept_slots.push_back(job);
    }
    for (size_t i = 0; i < window.microbatch_jobs.size(); ++i) {
      if (window.first_microbatch + static_cast<int64_t>(i) < first_dropped) continue;
      cut_jobs.insert(window.microbatch_jobs[i].begin(), window.microbatch_jobs[i].end());
    }
    for (auto& [job, orders] : window.jobs) {
      // Whether a slot was loaded before the cut came is not known here.
      if (orders.load_step || cut_jobs.contains(job)) orders.given_up = true;
    }
  }
  return kept_slots;
}

}  // namespace lorad::server
