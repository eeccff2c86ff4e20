#include "client/text/cluster_board.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/text/progress.h"
#include "client/text/table.h"
#include "client/text/width.h"

namespace lorad::client {
namespace {

using lorad::v1::Group;
using lorad::v1::Job;
using lorad::v1::Worker;

constexpr std::size_t kEndedMax = 20;
constexpr int kWorkersShare = 3;  // workers take at most one in so many rows, where there are jobs

bool Runs(Job::State state) {
  return state == Job::RUNNING || state == Job::FINALIZING || state == Job::PREPARING ||
         state == Job::PAUSING || state == Job::CANCELLING;
}

// What runs, what waits, what does not go on by itself, what has ended.
int Kind(Job::State state) {
  if (Runs(state)) return 0;
  if (state == Job::QUEUED || state == Job::VALIDATING) return 1;
  return IsDone(state) ? 3 : 2;
}

// Ascending: the order on the board.
auto PlaceOf(const Job& job) {
  const int kind = Kind(job.state());
  // A place of 0 is none: its rows are still checked.
  const auto place = static_cast<std::uint32_t>(kind == 1 ? job.queue().place() - 1 : 0);
  const std::int64_t time = kind == 3                           ? -job.end_time().seconds()
                            : kind == 0 && job.has_start_time() ? job.start_time().seconds()
                                                                : job.create_time().seconds();
  return std::tuple(kind, place, time, job.name());
}

std::string Why(const Job& job) {
  if (job.has_error()) return absl::StrCat(job.error().reason(), ": ", job.error().message());
  if (!job.has_queue()) {
    std::vector<std::string> why;
    if (!job.stalled().empty()) why.push_back(job.stalled());
    if (!job.unsaved().empty()) why.push_back(absl::StrCat("not saved: ", job.unsaved()));
    return absl::StrJoin(why, "; ");
  }
  return job.queue().place() == 0
             ? job.queue().why()
             : absl::StrCat("place ", job.queue().place(), ": ", job.queue().why());
}

std::string Why(const Worker& worker) {
  if (worker.drained()) return absl::StrCat("drained: ", worker.drain_reason());
  return worker.resting().empty() ? SpeedText(worker) : worker.resting();
}

// Of so many, those for which there is room under the heads in `rows` lines (0: any number), the
// last of which says how many more there are.
int Shown(int all, int rows) { return rows <= 0 || all < rows ? all : std::max(rows - 2, 0); }

std::vector<std::string> WithMore(std::vector<std::string> lines, int more, int columns) {
  if (more <= 0) return lines;
  const std::string line = absl::StrCat("and ", more, " more");
  lines.push_back(columns > 0 ? CutToWidth(line, static_cast<std::size_t>(columns)) : line);
  return lines;
}

}  // namespace

std::string SpeedText(const Worker& worker) {
  const double speed = worker.relative_speed();
  return speed == 0 || speed == 1 ? "" : absl::StrFormat("has %.2g x the speed of its kind", speed);
}

void ClusterBoard::Take(const v1::WatchJobsResponse& news) {
  if (!news.has_job()) return;
  if (news.deleted()) {
    jobs_.erase(news.job().name());
    return;
  }
  jobs_[news.job().name()] = news.job();
  if (IsDone(news.job().state())) DropEnded();
}

void ClusterBoard::DropEnded() {
  std::vector<const Job*> ended;
  for (const auto& [name, job] : jobs_) {
    if (IsDone(job.state())) ended.push_back(&job);
  }
  if (ended.size() <= kEndedMax) return;
  std::sort(ended.begin(), ended.end(),
            [](const Job* a, const Job* b) { return PlaceOf(*a) < PlaceOf(*b); });
  std::vector<std::string> names;
  for (std::size_t i = kEndedMax; i < ended.size(); ++i) names.push_back(ended[i]->name());
  for (const std::string& name : names) jobs_.erase(name);
}

void ClusterBoard::Take(v1::ListWorkersResponse workers, v1::ClusterStatus cluster) {
  workers_ = std::move(workers);
  cluster_ = std::move(cluster);
}

std::vector<std::string> ClusterBoard::Lines(int rows, int columns) const {
  std::vector<std::string> lines = {Counts()};
  if (columns > 0) lines[0] = CutToWidth(lines[0], static_cast<std::size_t>(columns));
  const int left = rows > 0 ? std::max(rows - 3, 1) : 0;  // with two blank lines
  const int for_workers = jobs_.empty() ? left : left / kWorkersShare;
  const std::vector<std::string> workers = WorkerLines(for_workers, columns);
  const int for_jobs = rows > 0 ? std::max(left - static_cast<int>(workers.size()), 1) : 0;
  const std::vector<std::string> jobs = JobLines(for_jobs, columns);
  for (const auto* part : {&workers, &jobs}) {
    if (part->empty()) continue;
    lines.emplace_back();
    lines.insert(lines.end(), part->begin(), part->end());
  }
  if (rows > 0 && static_cast<int>(lines.size()) > rows) lines.resize(rows);
  return lines;
}

std::string ClusterBoard::Counts() const {
  std::map<int, int> of_kind;
  for (const auto& [name, job] : jobs_) ++of_kind[Kind(job.state())];
  double tokens_per_second = 0;
  for (const Group& group : cluster_.groups()) tokens_per_second += group.tokens_per_second();
  const auto of = [](int count, const char* one, const char* several) {
    return absl::StrCat(count, " ", count == 1 ? one : several);
  };
  const auto there = std::ranges::count_if(workers_.workers(), [](const Worker& worker) {
    return worker.state() != Worker::LOST && worker.state() != Worker::AWAITED;
  });
  return absl::StrCat(of(static_cast<int>(there), "worker, ", "workers, "),
                      of(of_kind[0], "job runs, ", "jobs run, "),
                      of(of_kind[1], "waits, ", "wait, "),
                      absl::StrFormat("%d paused; %.0f tokens/s", of_kind[2], tokens_per_second));
}

std::vector<std::string> ClusterBoard::WorkerLines(int rows, int columns) const {
  const int all = workers_.workers_size();
  const int shown = Shown(all, rows);
  if (all == 0) return {};
  Table table({"WORKER", "STATE", "JOBS", "TOKENS/S", "MODEL", "DEVICE", "MEMORY", "WHY"});
  for (int i = 0; i < shown; ++i) {
    const Worker& worker = workers_.workers(i);
    Group group;
    for (const Group& one : cluster_.groups()) {
      if (one.name() == worker.group()) group = one;
    }
    table.Add({worker.name(), Worker::State_Name(worker.state()), absl::StrCat(group.jobs_size()),
               PaceText(group.tokens_per_second()),
               group.base_model().empty() ? "-" : group.base_model(), worker.device(),
               BytesText(worker.memory_bytes()), Why(worker)});
  }
  return WithMore(table.Fit(columns, {0, 1, 2, 3, 6, 5, 7, 4}), all - shown, columns);
}

std::vector<std::string> ClusterBoard::JobLines(int rows, int columns) const {
  if (jobs_.empty()) return {};
  std::vector<const Job*> jobs;
  for (const auto& [name, job] : jobs_) jobs.push_back(&job);
  std::sort(jobs.begin(), jobs.end(),
            [](const Job* a, const Job* b) { return PlaceOf(*a) < PlaceOf(*b); });
  const int all = static_cast<int>(jobs.size());
  jobs.resize(Shown(all, rows));
  Table table({"JOB", "NAME", "STATE", "STEP", "LEFT", "LOSS", "VALIDATION", "TOKENS/S", "MODEL",
               "PRIORITY", "WHY"});
  for (const Job* job : jobs) {
    const bool runs = Runs(job->state());
    table.Add({job->name(), job->display_name().empty() ? "-" : job->display_name(),
               Job::State_Name(job->state()), absl::StrCat(job->step(), "/", job->total_steps()),
               runs && job->has_seconds_left() ? DurationText(job->seconds_left()) : "-",
               job->has_loss() ? LossText(job->loss()) : "-",
               job->has_validation_loss() ? LossText(job->validation_loss()) : "-",
               runs ? PaceText(job->tokens_per_second()) : "-", job->base_model(),
               absl::StrCat(job->priority()), Why(*job)});
  }
  return WithMore(table.Fit(columns, {0, 7, 1, 2, 3, 4, 9, 5, 8, 10, 6}),
                  all - static_cast<int>(jobs.size()), columns);
}

}  // namespace lorad::client
