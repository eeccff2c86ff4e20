// The state of a group and of the jobs in it. Plain values; GroupTable holds them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/cost/memory.h"
#include "planner/schedule/schedule.h"
#include "server/core/cluster/measured.h"
#include "server/core/cluster/orders.h"
#include "server/core/events/events.h"
#include "server/core/rules/pace.h"

namespace lorad::server {

// A job in a group.
struct Member {
  enum class Slot { kUnloaded, kLoading, kLoaded, kFreeing };
  Slot slot = Slot::kUnloaded;
  planner::AdapterShape adapter;
  bool leaving = false;      // gets no more units; the next window frees its slot, nothing is saved
  bool load_failed = false;  // on some stage of several
  bool not_finite = false;   // by its worker's word: its slot holds nothing to be saved
  // Gets no more units either, but is saved first: when those at hand are done its last step is
  // saved, then its slot is freed, and the job waits again or is PAUSED (departures.cc).
  bool departing = false;
  bool resumes = false;  // it is queued before others then
  std::string why_departs = {};
  int64_t departs_us = 0;   // since when
  int64_t joined_step = 0;  // where it was when it came, or came back
  int64_t done_step = 0;
  int64_t planned_step = 0;
  int64_t evaluation_step = -1;    // whose sequences are being planned
  int64_t evaluation_planned = 0;  // sequences of it
  int64_t save_ordered = -1;       // step of a save before the group is dissolved
  int64_t save_us = 0;             // when its newest step, or a save beside one, was asked for
  std::set<int64_t> saves;         // steps whose shard was asked for and is not recorded,
  int64_t saves_us = 0;            // and when the newest was first asked for, or one recorded
  // Of the batches at hand, by step: the lines of the dataset's file that they are of. Those of
  // before a restart of the coordinator are not known.
  std::map<int64_t, std::vector<int64_t>> lines = {};
};

// A shard that is kept back: until the report of its Step is there, lest its metrics be lost for
// ever, and the shards of all other stages; or until it is clear that they will not come
// (AnswerKeptShards).
struct KeptShard {
  uint64_t request = 0;
  ShardUploaded content;
  int64_t until_us = 0;  // then it is to be sent again
};

// A worker's part of a group: the whole model, or one stage of several.
struct StageState {
  std::string worker;
  planner::StageRange range = {};
  std::string endpoint = {};  // of several: where the others reach it
  bool formed = false;        // and
  bool connected = false;     // of several: with the others
  bool returned = false;      // kReturning: its worker is back
  bool lost_another = false;  // as its worker says
  StageOrders orders = {};
  int64_t last_report = 0;
  int64_t reserved_bytes = 0;
  int64_t peak_before_bytes = 0;  // WorkerState::peak_bytes when it was formed
  std::deque<MeasuredMicrobatch> measured = {};
};

struct GroupState {
  enum class Phase {
    kForming,    // FormGroup is sent; of several stages then Connect
    kRunning,    // windows go out
    kCutting,    // Cut is sent, CutAnswer awaited
    kDraining,   // CutAt is sent (or nothing was at hand), WindowDone of all awaited
    kSaving,     // last saves are under way, then it is dissolved
    kBroken,     // a stage has lost another: it is awaited which worker is gone, or that all live
    kReturning,  // of before this start: its workers are awaited (forming.cc)
  };
  enum class Then { kGoOn, kReform, kStop };  // after a cut; the higher one wins

  std::string name;
  int64_t epoch = 0;
  std::string base_model;
  int32_t vocabulary_size = 0;     // of the base model
  std::vector<StageState> stages;  // in their order, at least one
  planner::GroupShape shape;
  Phase phase = Phase::kForming;
  Then then = Then::kGoOn;
  std::string reform_why;
  std::map<std::string, Member> members;
  planner::PlacesInFlight left;         // in the pipeline, behind all windows at hand
  OpenBatches open_batches;             // whose Step is in `left`
  bool drains = false;                  // `left` ends before anything new begins
  uint64_t plan = 0;                    // number of the plan that is awaited; 0 = none
  std::vector<std::string> plan_frees;  // whose slots it frees
  int64_t plan_order_us = 0;            // when it was asked for,
  int64_t plan_needed_us = 0;           // and when the worker ran out of windows; 0 = not yet
  int64_t next_window = 1;
  int64_t next_microbatch = 1;
  int64_t cut = 0;          // the newest
  int64_t adopted = 0;      // by so many coordinators that were started again
  std::string stored = {};  // its record, as it was put last; empty: there is none
  std::set<std::string> stored_windows = {};  // keys of those at hand (group_records.h)
  int64_t idle_since_us = 0;                  // 0 = it has members
  int64_t formed_us = 0;                      // when it ran first; 0 = it is being formed
  bool proven = false;                        // a microbatch has gone through all of its stages
  // When it last said something of what it was asked, or was asked anything with nothing at hand:
  // its patience runs from there (patience.h).
  int64_t heard_us = 0;
  int64_t ordered_us = 0;   // when its workers were told to form it; before this start: 0
  std::string silent = {};  // a worker of it that has said nothing for a while, until it does
  std::map<std::pair<std::string, int32_t>, KeptShard> kept_shards;  // by job and stage
  // The job for which others are evicted: until its first unit is planned, or the time is over, no
  // other gets one, lest it wait for theirs (departures.cc).
  std::string urgent;
  int64_t urgent_until_us = 0;
  int64_t counted_bytes = 0;  // the most that it and its slots have taken
  int64_t broken_us = 0;      // kBroken: since when
  int64_t windows_done = 0;
  int64_t microbatches = 0;
  int64_t adapters_in_microbatches = 0;
  int64_t planning_us = 0;         // from Plan to Planned,
  int64_t planning_hidden_us = 0;  // and how much of it while the worker had a window to run
  int64_t bound_microbatches = 0;
  std::map<std::string, int64_t> packings;  // by path
  // Of microbatches, those that evaluate as if they trained, and of optimizers' passes.
  Pace<planner::Workload> pace{64};
  WholePasses passes;

  StageState& first() { return stages.front(); }
  const StageState& first() const { return stages.front(); }
  // The stage that has the losses, and so the Steps.
  StageState& last() { return stages.back(); }
  const StageState& last() const { return stages.back(); }
  bool makes_room() const {
    return std::ranges::any_of(members, [](const auto& entry) { return entry.second.departing; });
  }
  bool returning() const { return phase == Phase::kReturning; }
  // Windows that are sent and that some stage has not done.
  size_t windows_at_hand() const {
    size_t most = 0;
    for (const StageState& stage : stages) most = std::max(most, stage.orders.windows.size());
    return most;
  }
  // REQUIRES: the worker has one of its stages.
  StageState& StageOn(const std::string& worker) {
    return *std::ranges::find(stages, worker, &StageState::worker);
  }
};

}  // namespace lorad::server
