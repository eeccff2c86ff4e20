// The history of a cluster as `lorad-plan schedule` replays it (docs/planner.md), gathered from
// what the API says, again and again while it goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lorad/v1/cluster.pb.h"
#include "lorad/v1/jobs.pb.h"
#include "lorad/v1/models.pb.h"

namespace lorad::client {

class Record {
 public:
  // The values of that label are who shares the cluster fairly; empty: of the coordinator's own.
  explicit Record(std::string share_label) : share_label_(std::move(share_label)) {}

  // What was taken before of the same is replaced; what is not named any more stays.
  void Take(const v1::Model& model) { models_[model.name()] = model; }
  void Take(const v1::Job& job) { jobs_[job.name()] = job; }
  void Take(const v1::ClusterStatus& cluster);
  // All workers, as they stand at that moment (seconds since 1970). One that was there when the
  // coordinator started counts as there from the beginning.
  void Take(const v1::ListWorkersResponse& workers, double now_s);

  // Jobs that have left a group, or came into another one, since their events were taken.
  std::vector<std::string> JobsThatLeft() const;
  // All that are there; none where the job is gone, whose earlier ones then count.
  void Take(const std::string& job, const std::vector<v1::Event>& events);

  // JSON; without jobs whose rows are not checked yet, those that ended before their first step,
  // and those of base models that are there no more.
  std::string ToText() const;
  std::size_t jobs() const;                                 // that ToText has
  bool has_workers() const { return !presences_.empty(); }  // some have been there
  // What somebody who names the label may not expect, each a sentence.
  std::vector<std::string> ShareNotes() const;

 private:
  // From one connection of a worker to its loss or its draining; seconds since 1970, 0: none.
  struct Presence {
    double comes_s = 0;  // 0: from the beginning
    double goes_s = 0;
    double connected_s = 0;
  };
  struct WorkerRecord {
    v1::Worker newest;
    std::vector<Presence> presences;
  };
  // Of a job, as its events said when it had been placed so often and was in that state.
  struct Departures {
    std::int32_t attempts = 0;
    v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
    std::int64_t moves = 0;
    std::int64_t evictions = 0;
  };
  bool IsRecorded(const v1::Job& job) const;
  double Beginning() const;

  std::string share_label_;
  std::optional<v1::SchedulingPolicy> policy_;  // none: an older coordinator does not say it
  double started_s_ = 0;                        // the coordinator
  std::map<std::string, v1::Model> models_;
  std::map<std::string, v1::Job> jobs_;
  std::map<std::string, Departures> departures_;   // by job; those that left a group
  std::map<std::string, WorkerRecord> presences_;  // by worker
  std::map<std::pair<std::string, std::string>, v1::TrainingTimes> times_;  // by model and device
};

}  // namespace lorad::client
