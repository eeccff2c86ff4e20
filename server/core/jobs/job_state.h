// The state of a job. A plain value; JobTable holds one for each job that is live or at work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lorad/v1/jobs.pb.h"
#include "planner/cost/memory.h"
#include "server/core/events/records.pb.h"
#include "server/core/jobs/job_forecast.h"
#include "server/core/rules/pace.h"

namespace lorad::server {

struct SequenceLoss {
  double loss_sum = 0;
  int64_t trained_tokens = 0;
};

// The evaluation of a job that is under way. Sums are folded in the order of sequences, so that
// their bits do not depend on how they came.
struct Evaluation {
  int64_t step = -1;
  SequenceLoss sum = {};  // of the sequences before `next`
  int64_t next = 0;
  std::map<int64_t, SequenceLoss> ahead = {};  // reported before one that comes first
};

// A failure that passes, as a job has met it since its last progress.
struct Passing {
  int tries = 0;  // in a row
  int64_t until_us = 0;
  int unreadable = 0;               // so many times its newest checkpoint could not be read
  std::set<std::string> too_large;  // workers on which it had no room, though it was alone
  v1::Event event;                  // the one that counts it
  std::vector<int64_t> changes;     // events of the job's state since then,
  v1::Job::State state = v1::Job::STATE_UNSPECIFIED;  // which it had before them
};

// Workers that said of the job that something is not finite, and that nobody has refuted.
struct NotFiniteWords {
  std::set<std::string> workers;
  int times = 0;
  int64_t step = 0;        // of the newest word,
  bool evaluates = false;  // of which the validation loss is not finite; else the step itself
};

struct JobState {
  records::JobRecord record;
  // More than its progress has changed since the record was stored, or nobody knows.
  bool record_changed = true;
  int64_t stored_revision = 0;   // when it was
  uint64_t etag_of = 0;          // what its etag stands for, hashed (HashOfEtag)
  bool progress_stored = false;  // there is a record of its progress beside it
  // The newest metric rows after the newest checkpoint (kMetricRowsKept), also those of steps that
  // will be executed again.
  std::map<int64_t, v1::StepMetrics> metrics;
  // job().tokens at steps whose save was asked for and is not committed yet.
  std::map<int64_t, int64_t> saved_tokens;
  Evaluation evaluation;
  Pace<double> pace{20};  // of the tokens of steps
  // And of parts of evaluations, their tokens as if trained.
  Pace<double> work{64};
  int64_t unwritten_step = 0;   // whose checkpoint could not be: that is told once,
  std::string unwritten_why;    // with these words
  int64_t cancel_until_us = 0;  // its last step may be saved until then
  int barren_losses = 0;        // groups in a row that were lost before it had done a step in them
  bool differs = false;         // its newest step, which was done before, from what that gave then
  // What the policy asks of thousands of jobs that wait lies together (JobQueue::PrefetchAfter):
  // job().adapter(), known once it has been queued; one for all that wait with such a shape;
  std::shared_ptr<const planner::AdapterShape> adapter;
  bool resumes = false;             // queued, and before all others
  bool sent_elsewhere = false;      // to another group before it ran in its own
  bool reads_rows = false;          // queued, while its tokens are made again
  bool reads_content = false;       // queued, while what it starts from is read
  int commits = 0;                  // checkpoints that are being written
  int64_t since_us = 0;             // in the queue, or in its group
  int64_t trains_since_us = 0;      // its first step in its group; 0: none is done there
  std::optional<int64_t> moved_us;  // when it was moved last
  std::string moves_to;             // the group, while it leaves its own for that
  std::string goes_to;              // the group, while it is queued on its way there
  std::string trained_on;           // the worker, while it is queued as its group is formed again
  std::unique_ptr<NotFiniteWords> not_finite;  // null: nobody said so
  // workers that have failed it since its last progress: lost with it once or again, or their word
  // was against it; and when one of them last did.
  std::map<std::string, int> failed_on;
  int64_t failed_us = 0;
  int32_t stand = -1;  // in the queue: its number there
  // Number of the last JobQueue::View() that had it, or before which it was offered.
  static constexpr int64_t kNotOffered = std::numeric_limits<int64_t>::max();
  int64_t viewed = kNotOffered;
  std::unique_ptr<Passing> passing;  // null: none since its last progress
  // And so does what is told of them, which begins with the three before.
  std::string why;
  size_t seen_why = 0;              // hash of the newest that the log has passed over, or has
  std::vector<size_t> logged_whys;  // kinds that the log has, since it waits (job_log.cc)
  JobForecast forecast;             // the newest
  JobForecast first_forecast;       // that what happens is compared with
  // While it waits, what its watchers were told last.
  struct {
    int place = 0;
    std::string why;
    JobForecast forecast;
  } told;

  static constexpr int kAvoidedFrom = 2;  // times: one loss may happen to anybody
  // Whether a worker's word stands against it, that another one is to confirm.
  bool AwaitsAnotherWord() const { return not_finite || (passing && !passing->too_large.empty()); }
  // Those that are not asked again while others can be, in order.
  std::vector<std::string> Avoided() const {
    std::vector<std::string> workers;
    for (const auto& [worker, times] : failed_on) {
      if (times >= kAvoidedFrom) workers.push_back(worker);
    }
    return workers;
  }

  const v1::Job& job() const { return record.job(); }
  v1::Job& job() { return *record.mutable_job(); }
  const std::string& name() const { return record.job().name(); }
  v1::Job::State state() const { return record.job().state(); }
};

// The hash of what an etag covers: the job's state, and what its users may change. It holds for
// this process alone.
uint64_t HashOfEtag(const v1::Job& job);  // job_revisions.cc

// A job in the order of arrival. When it has ended, and nobody works on it any more, the record's
// bytes alone are kept: there may be 100,000 of them.
struct JobEntry {
  JobState* job = nullptr;  // null: its record alone is kept
  v1::Job::State ended_state = v1::Job::STATE_UNSPECIFIED;
  std::string record;  // records::JobRecord

  v1::Job::State state() const { return job ? job->state() : ended_state; }
};

}  // namespace lorad::server
