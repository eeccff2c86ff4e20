// The state that the scheduler's parts share: groups as they will stand once the decisions so far
// are carried out. Within the planner only; schedule.h says what it is for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "planner/schedule/schedule.h"

namespace lorad::planner {

struct MemberState {
  std::string job;
  const AdapterShape* adapter = nullptr;
  int64_t slot_bytes = 0;
  const RunningJob* running = nullptr;  // nullptr: nothing is known
};

struct GroupState {
  std::string name;  // empty: formed by a decision of this round
  std::string base_model;
  const ModelShape* model = nullptr;
  GroupShape shape;
  int64_t budget_bytes = 0;
  int64_t microbatch_tokens = 0;  // as in ClusterView
  bool open = false;
  bool changes = false;
  int64_t bytes = 0;  // without slots, of `shape`; not kept for a fresh group, whose shape grows
  int64_t slot_bytes = 0;
  size_t jobs = 0;
  // So many of the jobs that wait are known not to be ahead of others here, and never will be.
  mutable size_t not_ahead = 0;
  size_t decision = 0;  // of a group formed in this round
  int64_t step_tokens = 0;
  int32_t lowest_priority = std::numeric_limits<int32_t>::max();  // of jobs that are known
  std::vector<MemberState> members;                               // those of the view
  // QueuedJob::company_max of its jobs: how many are suspects, and the least of theirs.
  int32_t suspects = 0;
  int32_t company_max = std::numeric_limits<int32_t>::max();
  bool alone = false;  // the one that it has is

  void Suspect(int32_t of_job, bool is_alone) {
    alone = alone || is_alone;
    if (of_job == 0) return;
    ++suspects;
    company_max = std::min(company_max, of_job);
  }

  bool full() const { return jobs >= static_cast<size_t>(shape.slots_max); }
  bool fresh() const { return name.empty(); }
};

// A group of the view; `microbatch_tokens` as in ClusterView.
GroupState StateOf(const GroupView& group, int64_t microbatch_tokens);

// Whether suspicion lets the job into the group.
bool Mix(const GroupState& group, const QueuedJob& job);

// Whether the job could run alone on such a worker, or on the group's.
bool FitsAlone(const QueuedJob& job, const DeviceShape& device, int64_t budget_bytes,
               int64_t microbatch_tokens);
bool FitsAlone(const QueuedJob& job, const GroupState& group);

// The first job of a group that is being formed.
void Begin(GroupState& group, const QueuedJob& job, const DeviceShape& device);
// Another, in a group that becomes of this shape.
void Add(GroupState& group, const QueuedJob& job, const GroupShape& shape);

// The group as it would be formed again, its jobs first (QueuedJob::resumes): with fewer of them
// where not all would fit.
GroupState FormedAgain(const GroupState& group, const QueuedJob& job);

int64_t SlotOf(const QueuedJob& job, const DeviceShape& device);

// The group's shape with room for the job's sequences and rank; its microbatches as long as leave
// room for the job, or where none do, as short as they get.
GroupShape ShapeWith(const GroupState& group, const QueuedJob& job);

// The bytes of a group of that shape with the job alone.
int64_t AloneBytes(const QueuedJob& job, const GroupShape& shape);

// Whether a group of that shape takes the job without being formed again.
bool Covers(const GroupShape& shape, int64_t longest_sequence, int64_t rank);

bool FitsIn(const GroupState& group, const GroupShape& shape, const QueuedJob& job);

// The jobs that leave `group` so that the job can join it, have it formed again or have it
// dissolved.
struct Eviction {
  size_t group = 0;  // index
  struct Leaver {
    size_t member = 0;
    std::optional<size_t> to;  // re-placed into this group
  };
  std::vector<Leaver> leavers;  // may be empty: those who are leaving already will do
};
// The least harmful of the groups with `allowed`: the highest priority that is evicted as low as
// possible, then the fewest jobs evicted, then the fewest re-placed, then the first group.
std::optional<Eviction> ChooseEviction(const ClusterView& view,
                                       const std::vector<GroupState>& groups,
                                       const std::vector<bool>& allowed, const QueuedJob& job,
                                       double points);

}  // namespace lorad::planner
