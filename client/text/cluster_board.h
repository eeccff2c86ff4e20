// A cluster at a glance: its workers and its jobs, as lines of text.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lorad/v1/cluster.pb.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::client {

// "has 0.4 x the speed of its kind"; empty where it has all of it, or nobody knows.
std::string SpeedText(const v1::Worker& worker);

// Pure; one thread.
class ClusterBoard {
 public:
  // What a watch of jobs tells. Of jobs that have ended the newest few are kept.
  void Take(const v1::WatchJobsResponse& news);
  // All jobs go: they are told again.
  void ClearJobs() { jobs_.clear(); }
  void Take(v1::ListWorkersResponse workers, v1::ClusterStatus cluster);

  // A line with the counts, the workers, and the jobs: those that run, then those that wait by what
  // runs first, then those that have ended. At most `rows` lines of at most `columns` characters
  // (0: any number of them); where it is more, "and N more" says so.
  std::vector<std::string> Lines(int rows, int columns) const;

  const std::map<std::string, v1::Job>& jobs() const { return jobs_; }  // by name
  const v1::ListWorkersResponse& workers() const { return workers_; }

 private:
  std::string Counts() const;
  std::vector<std::string> WorkerLines(int rows, int columns) const;
  std::vector<std::string> JobLines(int rows, int columns) const;
  void DropEnded();

  std::map<std::string, v1::Job> jobs_;  // by name
  v1::ListWorkersResponse workers_;
  v1::ClusterStatus cluster_;
};

}  // namespace lorad::client
