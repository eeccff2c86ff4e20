#pragma once

#include "absl/status/statusor.h"
#include "lorad/v1/cluster.pb.h"
#include "lorad/v1/jobs.pb.h"
#include "lorad/v1/models.pb.h"
#include "lorad/worker/v1/worker.pb.h"
#include "planner/cost/memory.h"
#include "planner/cost/time.h"
#include "storage/models/model_description.h"

namespace lorad::server {

// The facts of a base model that planning needs.
planner::ModelShape ShapeOf(const storage::ModelDescription& description);

// Into what the API says of the base model.
void SetShape(const planner::ModelShape& shape, v1::Model* model);

planner::AdapterShape ShapeOfAdapter(const v1::AdapterConfig& adapter);

// Its arithmetic, for a guess at time before anything was measured on such a device.
planner::WorkModel WorkOf(const planner::ModelShape& shape, const planner::DeviceShape& device);

// The device that a worker trains on, by its Hello.
planner::DeviceShape DeviceOf(const worker::v1::Hello& hello);

v1::Recomputation ToProto(planner::Recomputation recomputation);

}  // namespace lorad::server
