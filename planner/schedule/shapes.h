// How large a group is formed: for one job alone, or with another beside those that it has. Within
// the planner only; docs/planner.md, "Scheduling", says when.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "planner/schedule/footprints.h"
#include "planner/schedule/state.h"
#include "planner/stages/place.h"

namespace lorad::planner {

// The shapes that ShapeAlone tries, the best first, of a class of jobs on a kind of workers.
std::vector<ShapeChoice> ShapesAlone(const Footprint& job, const WorkerKind& kind);

// The group's shape with room for the job's sequences and rank; its microbatches as long as leave
// room for the job, or where none do, as short as they get. A job that resumes is not put out: more
// is recomputed, where that makes room.
GroupShape ShapeWith(Footprints& sizes, const GroupState& group, size_t job_class, bool resumes);

// Whether a group of that shape takes the job without being formed again.
bool Covers(const GroupShape& shape, const Footprint& job);

// Whether the group as it is has the bytes for the job, its number of slots aside. REQUIRES: its
// own are known: it is of the view, or has jobs.
bool FitsIn(Footprints& sizes, const GroupState& group, size_t job_class);

// The shape of a group that is open once the job has joined it, its own where that is formed or
// being formed already; none where it does not hold the job.
std::optional<GroupShape> ShapeToJoin(Footprints& sizes, const GroupState& group, size_t job_class,
                                      bool resumes);

// The shape of a group formed for these, the first first; none where not all fit, or are too many.
struct ShapeFor {
  size_t job_class = 0;
  bool resumes = false;
};
std::optional<GroupShape> ShapeOf(Footprints& sizes, const GroupState& group,
                                  const std::vector<ShapeFor>& jobs);

// The shape of the group as it would be formed again, for its jobs by priority and arrival and then
// for `newcomer`, if there is one; none where not all fit.
std::optional<GroupShape> ShapeFormedAgain(Footprints& sizes, const GroupState& group,
                                           std::optional<ShapeFor> newcomer);

}  // namespace lorad::planner
