// What is under way on the disk for a job: a checkpoint that is being written, a content that is
// being read. Plain values; State holds them by the number of the effect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lorad::server {

struct PendingCommit {
  std::vector<uint64_t> requests;
  std::string job;
  int64_t epoch = 0;  // of the group that it is from
  int64_t step = 0;
  int64_t tokens = 0;  // of the job, at that step
  std::string path;
  std::string numerics_id;
};

struct PendingLook {
  std::string job;
  std::string content;
  std::string worker;  // which could not load it, and what it said
  std::string reason, message;
};

}  // namespace lorad::server
