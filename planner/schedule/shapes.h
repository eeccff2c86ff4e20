// How large a group is formed: for one job alone, or with another beside those that it has. Within
// the planner only; schedule.h says what for.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "planner/schedule/footprints.h"
#include "planner/schedule/state.h"
#include "planner/stages/place.h"

namespace lorad::planner {

// As schedule.h has it, of a class of jobs on a kind of workers; not remembered.
GroupShape ShapeAlone(Footprints& sizes, size_t job_class, size_t worker_kind);

// The shapes that it tries, the best first: the first that fits is taken, else the last.
std::vector<ShapeChoice> ShapesAlone(const Footprint& job, const WorkerKind& kind);

// The group's shape with room for the job's sequences and rank; its microbatches as long as leave
// room for the job, or where none do, as short as they get. A job that resumes is not put out: more
// is recomputed, where that makes room.
GroupShape ShapeWith(Footprints& sizes, const GroupState& group, size_t job_class, bool resumes);

// Whether a group of that shape takes the job without being formed again.
bool Covers(const GroupShape& shape, const Footprint& job);

// Whether a group that becomes of that shape has the bytes for the job, its slots aside.
bool FitsIn(Footprints& sizes, const GroupState& group, const GroupShape& shape, size_t job_class);

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
