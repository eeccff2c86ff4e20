// The cluster whose history is replayed (replay.h), at one moment. Within this room only.
//
// site.cc lets time pass, site_moves.cc carries decisions out, site_view.cc shows it to the policy.
//
// Invariants: a job that has come and not ended is in the queue or in one group, never in both; a
// worker that is there has one group at most; a group trains whom it has, but for those that leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/replay/history.h"
#include "planner/replay/replay.h"
#include "planner/schedule/schedule.h"

namespace lorad::planner {

class Site {
 public:
  // Borrows the history.
  Site(const History& history, const SchedulePolicy& policy);
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  // The next moment at which something happens by itself; kNever: nothing will.
  double Next() const;
  // Takes the site there; whether anything happened on which the policy should be asked.
  // REQUIRES: not before the present, and not after Next().
  bool GoTo(double moment_s);
  bool AllEnded() const { return ended_ == jobs_.size(); }

  // As the service shows its cluster to the policy; holds until the next call.
  const ClusterView& View();
  // Whether the policy should be asked again at once: a worker has become idle. REQUIRES: of this
  // round's view.
  bool Carry(const Decision& decision);

  Outcome& outcome() { return outcome_; }

 private:
  static constexpr size_t kNowhere = std::numeric_limits<size_t>::max();
  // Steps: what rounding may leave of a job that ends together with another.
  static constexpr double kNoStep = 1e-6;

  struct Job {
    int64_t arrival = 0;  // its place in the order
    Workload step;
    double steps_left = 0;
    size_t queue_place = kNowhere;  // in view_.queue
    size_t worker = kNowhere;       // the one whose group it is in
    double since_s = 0;             // it is queued, or in that group
    double steps_then = 0;          // that it had left when it came into the group
    double moved_at_s = -1;         // last; before 0: never
    // On its way out of its group, until leaves_s, into that group of that worker, or the queue.
    bool leaving = false;
    double leaves_s = 0;
    size_t to = kNowhere;
    int64_t to_group = 0;
  };
  struct Group {
    int64_t number = 0;
    std::string name;
    std::string base_model;
    GroupShape shape;
    std::vector<size_t> jobs, coming;
    bool forming = true;  // until forms_s,
    double forms_s = 0;
    bool cut = false;  // until cut_ends_s: it is to be formed again
    double cut_ends_s = 0;
    double empty_since_s = 0;
    // Its jobs' steps are counted up to told_s; since then a round takes round_ms (0: it does not
    // train), so that the next of its jobs ends at ends_s.
    double told_s = 0;
    double round_ms = 0;
    double ends_s = kNever;
  };
  struct Worker {
    bool here = false;
    std::optional<Group> group;
  };
  struct Change {
    double at_s = 0;
    size_t worker = 0;
    bool comes = false;
  };

  // What happens by itself, up to now_s_; whether anything did.
  bool EndForming();
  bool EndJobs();
  bool EndDepartures();
  bool EndCuts();
  bool ChangeWorkers();
  bool LetJobsCome();
  bool DissolveEmpty();

  // Decisions.
  Group& Form(const Decision& decision);  // the one that it names, formed where it is not there
  void Admit(const std::vector<std::string>& jobs, Group& group);
  void Depart(const Decision& decision);
  void Reform(Group& group);

  size_t WorkerOf(const Group& group) const { return worker_of_.at(group.name); }
  Group& GroupNamed(const std::string& name) { return *workers_[worker_of_.at(name)].group; }
  bool IsThere(size_t worker, int64_t group) const;
  TimeCoefficients TimesOf(const Group& group) const;
  void Tell(Group& group);    // counts the steps up to now
  void Retime(Group& group);  // who trains in it has changed
  void Enqueue(size_t job, bool resumes);
  void Dequeue(size_t job);
  void Enter(size_t job, size_t worker);
  void Leave(size_t job, double lost);  // its group, to nowhere yet
  // It goes where it was to go no more; whether it was to go anywhere.
  bool GiveUpMove(size_t job);
  void Dissolve(size_t worker);  // REQUIRES: nobody is in it; who was coming will be queued
  void End(size_t job);
  GroupView ViewOf(const Group& group) const;
  void AddTo(GroupView& view, size_t job, bool coming) const;
  int64_t SecondsSince(double moment_s) const;
  int64_t StepsLeft(size_t job) const;

  const History& history_;
  std::map<std::string, std::shared_ptr<const ModelShape>>
      models_;  // of base models that jobs have
  std::map<std::string, size_t> worker_names_, job_names_;
  std::map<std::string, size_t> worker_of_;  // by group
  std::vector<Worker> workers_;              // as in the history
  std::vector<Job> jobs_;                    // likewise
  double now_s_ = 0;
  std::vector<Change> changes_;  // of workers, by time; the next one is next_change_
  size_t next_change_ = 0;
  std::vector<size_t> arrivals_;  // jobs, by time; the next one is next_arrival_
  size_t next_arrival_ = 0;
  std::deque<std::pair<double, size_t>> departures_;  // by time; a job that left otherwise is void
  size_t ended_ = 0;
  LeftLately left_lately_;
  int64_t next_group_ = 0;
  ClusterView view_;                 // its queue is kept up
  std::vector<size_t> queued_jobs_;  // of view_.queue
  Outcome outcome_;
};

}  // namespace lorad::planner
