// What the core knows of each thing by itself: models, jobs, workers, groups. Plain values, private
// to server/core; the core alone changes them (state.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/cost/memory.h"
#include "planner/schedule/schedule.h"
#include "server/core/core.h"
#include "server/core/orders.h"

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
  std::map<int64_t, SequenceLoss> ahead = {};  // told of before one that comes first
};

// A failure that passes, as a job has met it since its last progress.
struct Passing {
  int tries = 0;  // in a row
  int64_t until_us = 0;
  int unreadable = 0;               // so many times its newest checkpoint could not be read
  std::set<std::string> too_large;  // workers on which it had no room, though it was alone
  v1::Event event;                  // the one that counts it
  std::vector<int64_t> changes;     // events of the job's state since then
};

struct JobState {
  records::JobRecord record;
  // More than its progress has changed since the record was stored, or nobody knows.
  bool record_changed = true;
  int64_t stored_revision = 0;  // when it was
  // The newest metric rows after the newest checkpoint (kMetricRowsKept), also those of steps that
  // will be executed again.
  std::map<int64_t, v1::StepMetrics> metrics;
  // job().tokens at steps whose save was asked for and is not committed yet.
  std::map<int64_t, int64_t> saved_tokens;
  Evaluation evaluation;
  std::deque<std::pair<int64_t, int64_t>> pace;  // (time_us, tokens) of recent steps
  int commits = 0;                               // checkpoints that are being written
  int place = 0;                                 // in the queue, from 1
  bool resumes = false;                          // queued, for its group is formed anew
  bool reads_rows = false;                       // queued, while its tokens are made again
  bool reads_content = false;                    // queued, while what it starts from is read
  std::string why;
  std::unique_ptr<Passing> passing;  // null: none since its last progress

  const v1::Job& job() const { return record.job(); }
  v1::Job& job() { return *record.mutable_job(); }
  const std::string& name() const { return record.job().name(); }
  v1::Job::State state() const { return record.job().state(); }
};

// A job in the order of arrival. Of one that has ended, and on which nobody works any more, the
// record's bytes alone are kept: there may be 100,000 of them.
struct JobEntry {
  JobState* job = nullptr;  // null: its record alone is kept
  v1::Job::State ended_state = v1::Job::STATE_UNSPECIFIED;
  std::string record;  // records::JobRecord

  v1::Job::State state() const { return job ? job->state() : ended_state; }
};

// Whether a step's end, as the job was configured, is to be saved.
bool SaveDue(const v1::Job& job, int64_t step);

// A while without work, for twice as long each time.
struct Rest {
  int64_t until_us = 0;
  int times = 0;  // in a row
  std::string why;
};

struct WorkerState {
  uint64_t connection = 0;  // 0 = lost
  worker::v1::Hello hello;
  int64_t connect_wall_us = 0;
  int64_t heard_us = 0;
  int restarts = 0;
  int64_t peak_bytes = 0;  // of its process, by its heartbeats
  std::string group;
  // While others have taken the memory that it offered, it gets nothing new;
  Rest memory_rest;
  bool memory_was_taken = false;  // once, since its process started
  // nor for a while after it said what does not fit. Kept by its name, over its streams.
  Rest lie_rest;
  int lies = 0;  // in all
};

// Whose doing the loss of a worker is.
enum class Loss {
  kAnybodys,    // the worker's, or that of any job on it (losses.h)
  kWorkersLie,  // it said what does not fit: no job is to blame
};

// A job in a group.
struct Member {
  enum class Slot { kUnloaded, kLoading, kLoaded, kFreeing };
  Slot slot = Slot::kUnloaded;
  planner::AdapterShape adapter;
  bool leaving = false;  // gets no more units; its slot is freed by the next window
  int64_t done_step = 0;
  int64_t planned_step = 0;
  int64_t evaluation_step = -1;    // whose sequences are being planned
  int64_t evaluation_planned = 0;  // sequences of it
  int64_t save_ordered = -1;       // step of a save before the group is dissolved
  int64_t save_us = 0;             // when its newest step, or a save beside one, was asked for
  std::set<int64_t> saves;         // steps whose shard was asked for and is not recorded
};

// A shard that overtook the report of its Step: it is kept back until that is there, lest its
// metrics be lost for ever, or until it is clear that it will not come (AnswerEarlyShards).
struct EarlyShard {
  uint64_t request = 0;
  ShardUploaded content;
  int64_t until_us = 0;  // then it is to be sent again
};

struct GroupState {
  enum class Phase {
    kForming,   // FormGroup is sent
    kRunning,   // windows go out
    kCutting,   // Cut is sent, CutAnswer awaited
    kDraining,  // CutAt is sent (or nothing was at hand), WindowDone of all awaited
    kSaving,    // last saves are under way, then it is dissolved
  };
  enum class Then { kGoOn, kReform, kStop };  // after a cut; the higher one wins

  std::string name;
  int64_t epoch = 0;
  std::string base_model;
  std::string worker;
  planner::GroupShape shape;
  Phase phase = Phase::kForming;
  Then then = Then::kGoOn;
  std::string reform_why;
  std::map<std::string, Member> members;
  SentWindows windows;                  // not done
  uint64_t plan = 0;                    // number of the plan that is awaited; 0 = none
  std::vector<std::string> plan_frees;  // whose slots it frees
  int64_t plan_order_us = 0;            // when it was asked for,
  int64_t plan_needed_us = 0;           // and when the worker ran out of windows; 0 = not yet
  int64_t next_window = 1;
  int64_t next_microbatch = 1;
  int64_t cut = 0;  // the newest
  int64_t last_report = 0;
  int64_t idle_since_us = 0;  // 0 = it has members
  // When it last said something of what it was asked, or was asked anything with nothing at hand:
  // its patience runs from there (patience.h).
  int64_t heard_us = 0;
  std::map<std::string, EarlyShard> early_shards;  // by job
  int64_t reserved_bytes = 0;
  int64_t counted_bytes = 0;      // the most that it and its slots have taken
  int64_t peak_before_bytes = 0;  // WorkerState::peak_bytes when it was formed
  int64_t windows_done = 0;
  int64_t microbatches = 0;
  int64_t adapters_in_microbatches = 0;
  int64_t planning_us = 0;         // from Plan to Planned,
  int64_t planning_hidden_us = 0;  // and how much of it while the worker had a window to run
  int64_t bound_microbatches = 0;
  std::map<std::string, int64_t> packings;       // by path
  std::deque<std::pair<int64_t, int64_t>> pace;  // (time_us, tokens) of recent microbatches
};

}  // namespace lorad::server
