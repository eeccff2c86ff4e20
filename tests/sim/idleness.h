// Looks every second whether a worker idles beside a queued job that it has room for. For a moment
// that may be: a checkpoint is being written, or the news is on its way. For longer it may not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "tests/sim/site.h"

namespace lorad::sim {

class Idleness {
 public:
  explicit Idleness(Site& site, const SiteOptions& options);
  // From here on, as long as the site goes on; it outlives that.
  void Begin() { Look(); }

 private:
  void Look();
  void Compare(const v1::ListWorkersResponse& workers, const v1::ListJobsResponse& jobs);
  bool HasRoom(const v1::Worker& worker, const v1::Job& job);
  bool FindRoom(const v1::Worker& worker, const v1::Job& job) const;

  Site& site_;
  std::map<std::string, Machine> machines_;
  // Of a worker's name and memory, a job's rank and longest row.
  std::map<std::tuple<std::string, int64_t, int32_t, int64_t>, bool> rooms_;
  int64_t looked_us_ = 0;
  std::map<std::string, int64_t> since_us_;  // jobs that wait beside an idle worker
};

}  // namespace lorad::sim
