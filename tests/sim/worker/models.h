// The base models of a simulated site, and what their workers make of a job: matrices of q_proj in
// each layer, whose values follow from job, step and name alone, so they are those of a run that
// nothing disturbs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "lorad/worker/v1/worker.pb.h"
#include "planner/cost/memory.h"
#include "storage/models/model_description.h"

namespace lorad::sim {

struct BaseModel {
  std::string folder;  // of its files, in the site's house
  std::string config_json;
  storage::ModelDescription description;
  planner::ModelShape shape;
};

// Fits any worker.
const BaseModel& TinyModel();
// Needs as many workers of kStageBytes and one thread as it has layers: 1 to kLayersMax.
const BaseModel& ModelOfLayers(int layers);
inline constexpr int kLayersMax = 4;
inline constexpr int64_t kStageBytes = 8'900'000;
// "layers-3": the one of so many layers. Any other name: the tiny one, under which a site and its
// clients register it.
std::string NameOfLayers(int layers);
const BaseModel& ModelNamed(std::string_view name);
// By the directory that an order names.
const BaseModel& ModelAt(std::string_view path);

// The shard of the stage that has these blocks.
std::string ShardOf(const BaseModel& model, const planner::StageRange& range,
                    const worker::v1::UploadShardRequest::Header& header, int rank);
// The bytes of the checkpoint's tensor files, by name.
std::map<std::string, std::string> TensorFilesOf(const BaseModel& model, const std::string& job,
                                                 int64_t step, int rank);

}  // namespace lorad::sim
