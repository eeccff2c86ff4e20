// Questions that the store alone answers: what is committed. Any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "lorad/v1/checkpoints.pb.h"
#include "lorad/v1/jobs.pb.h"
#include "server/core/events/records.pb.h"
#include "storage/job_store.h"

namespace lorad::server {

absl::StatusOr<v1::ListEventsResponse> ReadEvents(storage::JobStore& store,
                                                  const v1::ListEventsRequest& request);
absl::StatusOr<v1::GetMetricsResponse> ReadMetrics(storage::JobStore& store,
                                                   const v1::GetMetricsRequest& request);
absl::StatusOr<v1::ListCheckpointsResponse> ReadCheckpoints(
    storage::JobStore& store, const v1::ListCheckpointsRequest& request);
absl::StatusOr<v1::Checkpoint> ReadCheckpoint(storage::JobStore& store,
                                              const v1::GetCheckpointRequest& request);
absl::StatusOr<records::DatasetRecord> ReadDataset(storage::JobStore& store,
                                                   const std::string& name);
absl::StatusOr<records::AdapterRecord> ReadAdapter(storage::JobStore& store,
                                                   const std::string& name);

}  // namespace lorad::server
