// Who may overtake: while a job waits that fits one worker alone, no job comes to that worker that
// began to wait later, or that was sent from elsewhere since, but to make room for one that waits
// longer; so a stream of small jobs starves no large one. But into a group that had no jobs comes,
// with one that overtakes nobody, also who overtakes jobs of other base models alone (ADR 0040). Of
// histories in which all jobs are of one priority and nothing goes wrong.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "lorad/v1/cluster.pb.h"
#include "lorad/v1/jobs.pb.h"
#include "tests/sim/site.h"

namespace lorad::sim {

class Turns {
 public:
  explicit Turns(bool hold) : hold_(hold) {}

  // Called every second. `fits`: the job would fit that worker if it were alone in the world;
  // `last_move` is Site::LastMove.
  void Look(int64_t now_us, const v1::ListWorkersResponse& workers,
            const v1::ClusterStatus& cluster, const v1::ListJobsResponse& jobs,
            absl::FunctionRef<bool(const v1::Worker&, const v1::Job&)> fits,
            absl::FunctionRef<std::optional<Site::Move>(const std::string&)> last_move);

 private:
  struct Known {
    // It waits, or did before it came to its worker.
    int64_t waited_since_us() const { return began_us.empty() ? 0 : began_us.back(); }
    int64_t waited_at_us(int64_t us) const;  // since when it did at that moment
    std::vector<int64_t> began_us;           // to wait, each time
    bool waits = true;                       // as far as was seen
    bool has_waited = true;                  // since it left the worker before this one
    std::string worker;                      // that it was last on
    std::string group;                       // likewise
  };

  const bool hold_;
  std::map<std::string, Known> known_;  // by job
};

}  // namespace lorad::sim
