// Small histories: base models "m" and "n" of SmolLM2's shape on workers with two CPU threads,
// where a step of 200 tokens alone takes 300 ms.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "planner/replay/history.h"
#include "planner/schedule/schedule.h"
#include "tests/planner/fixtures.h"

namespace lorad::planner {

inline constexpr int64_t kBig = int64_t{8} << 30;

inline HistoryJob Comes(const std::string& name, double comes_s, int64_t steps,
                        int64_t tokens = 200, const std::string& base_model = "m") {
  HistoryJob job;
  job.content.job = name;
  job.content.base_model = base_model;
  job.content.model = Shared(SmolLm2());
  job.content.longest_sequence = 100;
  job.content.adapter = ShareAdapter(AdapterShape(8, {"q_proj", "v_proj"}));
  job.content.step_tokens = tokens;
  job.content.remaining_steps = steps;
  job.comes_s = comes_s;
  return job;
}

inline HistoryJob Urgent(HistoryJob job, int32_t priority) {
  job.content.priority = priority;
  return job;
}

inline HistoryWorker There(const std::string& name, double comes_s = 0, double goes_s = kNever) {
  HistoryWorker worker;
  worker.view.name = name;
  worker.view.budget_bytes = kBig;
  worker.view.device.threads = 2;
  worker.view.device_name = "cpu";
  worker.comes_s = comes_s;
  worker.goes_s = goes_s;
  return worker;
}

// As much as a group takes with so many adapters like those of Comes().
inline HistoryWorker WithRoomFor(HistoryWorker worker, int64_t jobs) {
  const HistoryJob job = Comes("", 0, 1);
  const GroupShape shape = ShapeAlone(job.content, worker.view.device, kBig, 0);
  const int64_t bytes = BytesOfGroup(SmolLm2(), shape).total() +
                        jobs * BytesOfSlot(SmolLm2(), *job.content.adapter).total();
  worker.view.budget_bytes = bytes + bytes * 2 / 100 + 1;
  return worker;
}

inline History Of(std::vector<HistoryWorker> workers, std::vector<HistoryJob> jobs,
                  double load_s = 0) {
  History history;
  history.workers = std::move(workers);
  history.jobs = std::move(jobs);
  for (const char* base_model : {"m", "n"}) {
    history.times[{base_model, "cpu"}] = {100, 1, 0};
    history.load_s[{base_model, "cpu"}] = load_s;
  }
  return history;
}

}  // namespace lorad::planner
