// Nobody overtakes: while a job waits that fits one worker alone, no job comes to that worker that
// began to wait later, or that runs elsewhere, but to make room for one that waits longer; so a
// stream of small jobs starves no large one. Of histories in which all jobs are of one priority and
// nothing goes wrong.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "lorad/v1/cluster.pb.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::sim {

class Turns {
 public:
  explicit Turns(bool hold) : hold_(hold) {}

  // Called every second. `fits`: the job would fit that worker if it were alone in the world;
  // `sent_for` is Site::SentFor.
  void Look(int64_t now_us, const v1::ListWorkersResponse& workers,
            const v1::ClusterStatus& cluster, const v1::ListJobsResponse& jobs,
            absl::FunctionRef<bool(const v1::Worker&, const v1::Job&)> fits,
            absl::FunctionRef<std::string(const std::string&)> sent_for);

 private:
  struct Known {
    int64_t waited_since_us = 0;  // it waits, or did before it came to its worker
    bool waits = true;            // as far as was seen
    bool has_waited = true;       // since it left the worker before this one
    std::string worker;           // that it was last on
  };

  const bool hold_;
  std::map<std::string, Known> known_;  // by job
};

}  // namespace lorad::sim
