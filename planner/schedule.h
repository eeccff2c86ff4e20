// Who trains where: a pure policy. The view of the cluster in, decisions out; it keeps nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/memory.h"

namespace lorad::planner {

struct WorkerView {
  std::string name;
  int64_t budget_bytes = 0;
  int threads = 1;
  bool idle = false;  // in no group, ready to form one
};

struct GroupView {
  std::string name;
  std::string base_model;
  ModelShape model;
  GroupShape shape;
  int64_t budget_bytes = 0;  // of its worker
  bool open = false;         // takes newcomers (false while it is being formed, cut or dissolved)
  std::vector<std::string> jobs;
  std::vector<AdapterShape> adapters;  // of the jobs, in the same order
};

struct QueuedJob {
  std::string job;
  std::string base_model;
  ModelShape model;
  int32_t priority = 0;
  int64_t arrival = 0;  // order of arrival
  int64_t longest_sequence = 0;
  AdapterShape adapter;
};

struct ClusterView {
  std::vector<WorkerView> workers;
  std::vector<GroupView> groups;
  std::vector<QueuedJob> queue;  // in any order
  int64_t microbatch_tokens = 1024;
};

struct Decision {
  enum class Kind {
    kAdmit,      // job joins a running group at its next window border
    kFormGroup,  // a new group on an idle worker, for the jobs
    kReform,     // an open group is cut, saved and formed anew with room for the longer sequence
    kDissolve,   // an empty group makes room for another base model
    kWait,
  };
  Kind kind = Kind::kWait;
  std::vector<std::string> jobs;  // kDissolve: the one it is for
  std::string group;              // kAdmit, kReform, kDissolve
  std::string worker;             // kFormGroup
  std::string base_model;         // kFormGroup
  GroupShape shape;               // kFormGroup, kReform
  std::string why;                // kWait: for the user who asks
  int place = 0;                  // in the queue, from 1, of a job that is not admitted yet
};

// The engine's slots.
inline constexpr size_t kJobsPerGroupMax = 256;

// Priority first, then arrival; one pass over the queue. A job
// - joins the first open group of its base model that it fits: its sequences within the group's
//   longest, its slot within the budget (Fits);
// - else has a group formed for it on the idle worker with the largest budget (jobs behind it may
//   join that one too, and make it longer);
// - else, where its sequences alone are in the way, has a group of its base model formed anew;
// - else has a group without jobs dissolved;
// - else waits, and is told why.
// A job that waits and could run alone on a group's worker keeps everyone behind it out of that
// group, whatever their base models, so that the group drains for it: nobody starves.
// One decision a queued job, in queue order; kFormGroup names several.
std::vector<Decision> Schedule(const ClusterView& view);

// The capacity of a group: at least `microbatch_tokens`, and room for the longest sequence.
int64_t CapacityFor(int64_t microbatch_tokens, int64_t longest_sequence);

std::string ToText(const Decision& decision);

}  // namespace lorad::planner
