// The content of the store at a start, read by the driver.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lorad/v1/jobs.pb.h"

namespace lorad::server {

struct StoredState {
  std::vector<std::pair<std::string, std::string>> models, datasets, adapters, jobs, rows, requests,
      workers, fits, quotas, groups, windows;
  std::string store;  // its identity; empty where it has none yet
  int64_t last_revision = 0;
  int64_t trimmed_revision = 0;  // revisions up to this one are gone
  // Of jobs whose progress is stored beside their record: v1::Job (job_progress.h).
  std::map<std::string, std::string> progress;
  int64_t last_epoch = 0;
  int64_t starts = 0;  // of the coordinator on this store
  // Metric rows of live jobs, ascending: those after their newest checkpoint, at least the newest
  // kMetricRowsKept; all, where the record has no checkpoint_tokens.
  std::vector<std::pair<std::string, v1::StepMetrics>> metrics;
};

}  // namespace lorad::server
