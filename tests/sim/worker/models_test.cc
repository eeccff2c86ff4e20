// The base models of sites need as many workers as histories count on.
#include "tests/sim/worker/models.h"

#include <catch2/catch.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "planner/schedule/schedule.h"
#include "storage/adapters/checkpoint.h"

namespace lorad::sim {
namespace {

planner::QueuedJob JobOn(const BaseModel& model) {
  planner::QueuedJob job;
  job.model = std::make_shared<const planner::ModelShape>(model.shape);
  job.adapter = planner::ShareAdapter(planner::AdapterShape(4, {"q_proj"}));
  job.longest_sequence = 60;
  return job;
}

// Of so much memory each.
std::vector<planner::WorkerView> Workers(int count, int64_t memory_bytes) {
  std::vector<planner::WorkerView> workers;
  for (int i = 0; i < count; ++i) {
    planner::WorkerView& worker = workers.emplace_back();
    worker.name = absl::StrCat("worker-", i);
    worker.budget_bytes = memory_bytes;
    worker.numerics_id = "sim";
  }
  return workers;
}

// 0: it fits nowhere.
size_t WorkersOf(const planner::QueuedJob& job, const std::vector<planner::WorkerView>& workers) {
  planner::ClusterView view;
  view.microbatch_tokens = 64;
  view.workers = workers;
  for (planner::WorkerView& worker : view.workers) worker.idle = true;
  view.queue = {job};
  for (const planner::Decision& decision : planner::Schedule(view)) {
    if (decision.kind != planner::Decision::Kind::kFormGroup) continue;
    return std::max<size_t>(1, decision.stages.size());
  }
  return 0;
}

TEST_CASE("a model needs as many workers as it has layers") {
  for (int layers = 1; layers <= kLayersMax; ++layers) {
    for (const int64_t memory_bytes : {kStageBytes, kStageBytes + kStageBytes / 12}) {
      INFO(layers << " layers on workers of " << memory_bytes << " bytes");
      const planner::QueuedJob job = JobOn(ModelOfLayers(layers));
      CHECK(WorkersOf(job, Workers(kLayersMax + 1, memory_bytes)) == static_cast<size_t>(layers));
      CHECK(WorkersOf(job, Workers(layers - 1, memory_bytes)) == 0);
    }
  }
  CHECK(WorkersOf(JobOn(TinyModel()), Workers(2, kStageBytes)) == 1);
}

TEST_CASE("models are found by their names and by their folders") {
  CHECK(&ModelNamed("layers-3") == &ModelOfLayers(3));
  CHECK(&ModelNamed("own-model-of-request-1") == &TinyModel());
  CHECK(&ModelAt("/somewhere/layers-2") == &ModelOfLayers(2));
  CHECK(&ModelAt("/somewhere/model") == &TinyModel());
}

TEST_CASE("the shards of stages hold what the shard of the whole does, each matrix once") {
  const BaseModel& model = ModelOfLayers(3);
  worker::v1::UploadShardRequest::Header header;
  header.set_job("job-1");
  header.set_step(2);
  const auto entries = [&](const planner::StageRange& range) {
    const std::string bytes = ShardOf(model, range, header, 4);
    const auto parsed = storage::ParseSafetensorsHeader(bytes, bytes.size());
    REQUIRE(parsed.ok());
    std::map<std::string, std::string> found;
    for (const storage::TensorInfo& tensor : parsed->tensors) {
      found[tensor.name] = bytes.substr(parsed->data_begin + tensor.begin, tensor.bytes());
    }
    return found;
  };
  const auto whole = entries(planner::WholeModel(model.shape));
  CHECK(whole.size() == 3 * 2 * 3);
  std::map<std::string, std::string> joined;
  size_t count = 0;
  // The last stage has one MLP, and no matrix.
  for (const planner::StageRange range : {planner::StageRange{0, 3}, {3, 5}, {5, 6}}) {
    const auto part = entries(range);
    count += part.size();
    joined.insert(part.begin(), part.end());
  }
  CHECK(count == whole.size());
  CHECK(joined == whole);
  header.set_step(3);
  CHECK(entries(planner::WholeModel(model.shape)) != whole);
}

}  // namespace
}  // namespace lorad::sim
