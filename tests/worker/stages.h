// A window as each stage of a model gets it, and the shards of all stages as one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"
#include "planner/window/order.h"

namespace lorad::worker {

// Blocks of the model in a directory.
int32_t BlocksOf(const std::string& model_path);

// `window` is one stage's. Of each stage, the same microbatches and batches with the operations
// that the planner orders; ids for the first one alone, labels for the last. `before` and `left`:
// what the windows leave in the pipeline (planner::OrderOperations).
std::vector<v1::Window> WindowsOfStages(const v1::Window& window, int stages, int in_flight,
                                        const planner::PlacesInFlight& before = {},
                                        planner::PlacesInFlight* left = nullptr);

// The shard that one stage would have sent.
std::string MergeShards(const std::vector<std::string>& shards);
// With the tensors alone of whose names `holds` says so.
std::string PartOfShard(const std::string& shard,
                        const std::function<bool(const std::string& name)>& holds);

}  // namespace lorad::worker
