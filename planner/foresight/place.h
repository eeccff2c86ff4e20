// A worker, or several that are together, with their group, in simulated time (foresee.h). Within
// this room only.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "planner/foresight/line.h"
#include "planner/schedule/state.h"

namespace lorad::planner {

// Of a member of the place's group, what is kept beside MemberState.
struct Trainee {
  size_t number = 0;   // by which the simulation knows it
  RunningJob running;  // MemberState::running
  double began_s = 0;
  double moved_at_s = -kNever;  // -kNever: never
  double last_round = 0;        // of the group, after which it ends
};

struct Place {
  GroupState group;             // what decides who fits, and who may be evicted
  std::vector<size_t> workers;  // indexes of Round::idle, which has all workers here
  const IdleWorker* idle = nullptr;
  bool open = true;   // takes jobs at all
  double load_s = 0;  // of several idle workers: until the first group is formed
  double now_s = 0;   // `rounds` were done by then; later than the simulation where it is formed
  double rounds = 0;
  double begun_s = -kNever;     // when the first jobs came into the group that was formed here
  size_t next = Line::kNobody;  // the first that could run on it, when it was filled last
  double turn_s = kNever;       // when that may evict someone
  double longest_step_ms = 0;
  bool paced = false;   // `slowness` was measured
  double slowness = 1;  // as many times as long as by the time model its rounds have lasted
  // Of GroupState::members, in the same order. Where they lie stays, for `running` points there.
  std::vector<std::unique_ptr<Trainee>> trainees;

  bool IsSeveral() const { return !group.stages.empty(); }
  double RoundSeconds() const;
  double NextEnd() const { return EndAfter(first_last_round_); }
  // When the last of its jobs ends, were none to end before.
  double LastEnd() const { return trainees.empty() ? now_s : EndAfter(last_last_round_); }
  // The index of the one that ends next. REQUIRES: there is one.
  size_t NextToEnd() const;
  void AdvanceTo(double time_s);

  // The group of the view, without those that leave it.
  void Take(const GroupState& group);
  // A group for a job of that class alone takes the place of the one without jobs that is there, if
  // one is.
  void Form(Round& round, const std::string& base_model, const ModelShape& model, size_t job_class,
            double moment_s);
  // The group is formed again, if that is what makes room for such a job.
  void GrowFor(Round& round, size_t job_class, bool resumes);
  // Whether the job may come into the group as it is.
  bool HasRoom(Round& round, const Waiter& job) const;
  // Whether the job may come into the group as it is, or as Schedule() would form it again: for
  // longer rows, a higher rank, or with shorter microbatches. It is so then. The job may overtake
  // `ahead`, the first of those that wait, if that is given (MayOvertake).
  bool MakeRoom(Round& round, const Waiter& job, const Waiter* ahead = nullptr);
  // When someone may first leave for the job: one that is less important from `settled_s` on, an
  // equal one that has had its time from `aged_s` on, and one that was not moved within its time if
  // `may_move` is true of its class of jobs. Not those who could have by `failed_s`.
  struct Moments {
    double settled_s = 0;
    double aged_s = 0;
    double failed_s = 0;
  };
  double TurnFor(const SchedulePolicy& policy, const QueuedJob& job, const Moments& moments,
                 absl::FunctionRef<bool(size_t)> may_move) const;
  // A job comes from the queue.
  void Join(Round& round, const Waiter& job, size_t number);
  // A member comes, whose slot and work the group gets.
  void Add(MemberState member, std::unique_ptr<Trainee> trainee);
  // The member leaves, with what it has left to do. Its index is the last one's then.
  struct Left {
    MemberState member;
    std::unique_ptr<Trainee> trainee;
  };
  Left Remove(size_t member);
  // What the policy asks of the group, and of its jobs, as of that moment.
  void SetMoment(double time_s, bool of_jobs);

 private:
  std::optional<GroupShape> ShapeBeside(Round& round, const Waiter& job) const;
  void SetShape(Round& round, const GroupShape& shape);
  double ModelSeconds() const;
  void SetLongestStep();
  void CountTrainees();
  double EndAfter(double round) const {
    return trainees.empty() ? kNever : now_s + (round - rounds) * RoundSeconds();
  }

  double first_last_round_ = 0, last_last_round_ = 0;  // of its trainees
};

}  // namespace lorad::planner
