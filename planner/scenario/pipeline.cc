#include "planner/scenario/pipeline.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/scenario/fields.h"
#include "planner/scenario/pack.h"
#include "planner/solve/draw.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kTokensMax = int64_t{1} << 24;  // of a microbatch
constexpr int64_t kSequencesMax = 100000;         // of a scenario
constexpr int64_t kBatchMax = 4096;               // of one adapter's global batch
constexpr double kMsMax = 1e9;

TimeCoefficients ReadTime(Fields fields) {
  TimeCoefficients time;
  time.constant_ms = fields.Number("constant_ms", {.max = kMsMax, .fallback = 0});
  time.token_ms = fields.Number("token_ms", {.max = kMsMax, .fallback = 0});
  time.squared_ms = fields.Number("squared_ms", {.max = kMsMax, .fallback = 0});
  return time;
}

PipelineBlock ReadBlock(Fields fields, bool trained_only) {
  PipelineBlock block;
  block.forward = ReadTime(fields.Object("forward"));
  block.backward = ReadTime(fields.Object("backward"));
  block.activation_bytes = fields.Number("activation_bytes", {.max = 1e12, .fallback = 0});
  if (trained_only) block.trained_only = fields.Bool("trained_only", true);
  return block;
}

PipelineBlock Joined(const PipelineBlock& a, const PipelineBlock& b) {
  return {"", a.forward + b.forward, a.backward + b.backward, false,
          a.activation_bytes + b.activation_bytes};
}

// Embedding, layers in halves or whole, head.
std::vector<PipelineBlock> ReadModel(Fields fields) {
  std::vector<PipelineBlock> blocks;
  const int64_t layers = fields.Int64("layers", {.min = 1, .max = 1024});
  const bool halves = fields.String("cut", {.choices = {"half_layers", "layers"},
                                            .fallback = "half_layers"}) == "half_layers";
  if (fields.Has("embedding")) {
    blocks.push_back(ReadBlock(fields.Object("embedding"), false));
    blocks.back().name = "embedding";
  }
  const PipelineBlock attention = ReadBlock(fields.Object("attention"), false);
  const PipelineBlock mlp = ReadBlock(fields.Object("mlp"), false);
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (halves) {
      blocks.push_back(attention);
      blocks.back().name = absl::StrCat("attention ", layer);
      blocks.push_back(mlp);
      blocks.back().name = absl::StrCat("mlp ", layer);
    } else {
      blocks.push_back(Joined(attention, mlp));
      blocks.back().name = absl::StrCat("layer ", layer);
    }
  }
  if (fields.Has("head")) {
    blocks.push_back(ReadBlock(fields.Object("head"), true));
    blocks.back().name = "head";
  }
  return blocks;
}

// "draw": {"seed": 1, "batches": 24, "global_batch": 32, "kinds": [{"median": .., "sigma": ..}]}
std::vector<std::vector<int64_t>> DrawBatches(Fields fields, int64_t longest, int64_t* sequences) {
  const size_t faults = fields.violations();
  const int64_t seed = fields.Int64("seed");
  const int64_t batches = fields.Int64("batches", {.min = 1, .max = 10000});
  const int64_t size = fields.Int64("global_batch", {.min = 1, .max = kBatchMax});
  std::vector<LogNormal> kinds;
  for (Fields& kind : fields.Objects("kinds", {.min = 1, .max = 100})) {
    LogNormal& drawn = kinds.emplace_back();
    drawn.median = kind.Number("median", {.min = 1, .max = static_cast<double>(kTokensMax)});
    drawn.sigma = kind.Number("sigma", {.min = 0, .max = 10});
    const size_t before = kind.violations();
    drawn.min = kind.Int64("min", {.min = 1, .max = longest, .fallback = 1});
    drawn.max = kind.Int64("max", {.min = 1, .max = longest, .fallback = longest});
    if (kind.violations() == before && drawn.min > drawn.max) {
      kind.Violate("min", absl::StrCat("is ", drawn.min),
                   absl::StrCat("give at most max, which is ", drawn.max));
    }
  }
  *sequences += batches * size;
  if (fields.violations() > faults || kinds.empty() || *sequences > kSequencesMax) return {};
  Draw draw(static_cast<uint64_t>(seed));
  std::vector<std::vector<int64_t>> drawn(static_cast<size_t>(batches));
  for (auto& batch : drawn) {
    for (int64_t i = 0; i < size; ++i) batch.push_back(draw.Length(kinds));
  }
  return drawn;
}

std::vector<std::vector<int64_t>> GivenBatches(Fields* adapter, int64_t longest,
                                               int64_t* sequences) {
  const auto batches = adapter->Int64Lists("batches", {.min = 1, .max = longest},
                                           {.min = 1, .max = kBatchMax}, {.min = 1, .max = 10000});
  for (const auto& batch : batches) *sequences += static_cast<int64_t>(batch.size());
  return batches;
}

void ReadAdapters(Fields* fields, int64_t longest, PipelineInput* input) {
  std::set<std::string> names;
  int64_t sequences = 0;
  const size_t before = fields->violations();
  size_t fewest = static_cast<size_t>(kSequencesMax);
  for (Fields& adapter : fields->Objects("adapters", {.min = 1, .max = 256})) {
    PipelineAdapter& read = input->adapters.emplace_back();
    read.name = adapter.OwnName("adapter", &names);
    read.trained_share = adapter.Number("trained_share", {.min = 0, .max = 1, .fallback = 1});
    if (!adapter.Has("draw")) {
      read.batches = GivenBatches(&adapter, longest, &sequences);
    } else {
      read.batches = DrawBatches(adapter.Object("draw"), longest, &sequences);
      if (adapter.Has("batches")) {
        GivenBatches(&adapter, longest, &sequences);
        adapter.Violate("batches", "stands beside draw", "give one of them");
      }
    }
    fewest = std::min(fewest, read.batches.size());
  }
  if (sequences > kSequencesMax) {
    fields->Violate("adapters", absl::StrCat("have ", sequences, " sequences"),
                    absl::StrCat("give at most ", kSequencesMax));
  }
  if (fields->violations() > before) return;
  if (input->skipped + input->measured > static_cast<int64_t>(fewest)) {
    fields->Violate(
        "measure",
        absl::StrCat("needs ", input->skipped + input->measured, " global batches of each adapter"),
        absl::StrCat("one has ", fewest, ": skip or measure fewer"));
  }
  if (static_cast<size_t>(input->groups) > input->adapters.size()) {
    fields->Violate(
        "groups", absl::StrCat("is ", input->groups),
        absl::StrCat("give at most one for each of ", input->adapters.size(), " adapters, or 0"));
  }
}

// Rising from 0, one of each stage; `blocks` and `stages` are known to be right.
void CheckFirstBlocks(Fields* fields, const PipelineInput& input) {
  const std::vector<int>& first = input.first_blocks;
  if (first.size() != static_cast<size_t>(input.stages)) {
    fields->Violate("first_blocks", absl::StrCat("has ", first.size(), " entries"),
                    absl::StrCat("give one for each of the ", input.stages, " stages"));
    return;
  }
  for (size_t s = 0; s < first.size(); ++s) {
    const int64_t least = s == 0 ? 0 : first[s - 1] + 1;
    const int64_t most = s == 0 ? 0 : static_cast<int64_t>(input.blocks.size()) - 1;
    if (first[s] >= least && first[s] <= most) continue;
    fields->ViolateEntry("first_blocks", s, absl::StrCat("is ", first[s]),
                         absl::StrCat("let the first blocks of the stages rise from 0 to at most ",
                                      input.blocks.size() - 1));
  }
}

void ReadStages(Fields* fields, PipelineInput* input) {
  const size_t before = fields->violations();
  input->stages = static_cast<int>(fields->Int64("stages", {.min = 1, .max = 64}));
  input->blocks = ReadModel(fields->Object("model"));
  for (const int64_t first :
       fields->Int64s("first_blocks", {.max = 4096}, {.min = 1, .max = 64, .required = false})) {
    input->first_blocks.push_back(static_cast<int>(first));
  }
  if (fields->violations() > before) return;
  if (input->blocks.size() < static_cast<size_t>(input->stages)) {
    fields->Violate("stages", absl::StrCat("is ", input->stages),
                    absl::StrCat("the model has ", input->blocks.size(), " parts to cut between"));
  } else if (!input->first_blocks.empty()) {
    CheckFirstBlocks(fields, *input);
  }
}

PipelineInput Read(Fields& fields) {
  PipelineInput input;
  ReadStages(&fields, &input);
  input.in_flight =
      static_cast<int>(fields.Int64("in_flight", {.min = 0, .max = 1024, .fallback = 0}));
  input.groups = static_cast<int>(fields.Int64("groups", {.min = 0, .max = 256, .fallback = 0}));
  const int64_t longest = ReadPackOptions(&fields, kTokensMax, &input.pack);
  const std::string packing =
      fields.String("packing", {.choices = {"level", "packed", "merged"}, .fallback = "level"});
  input.packing = packing == "level"    ? PipelinePacking::kLevel
                  : packing == "packed" ? PipelinePacking::kPacked
                                        : PipelinePacking::kMerged;
  input.step_ms = fields.Number("step_ms", {.max = kMsMax, .fallback = 0});
  {
    Fields transfer = fields.Object("transfer", false);
    input.transfer_latency_ms = transfer.Number("latency_ms", {.max = kMsMax, .fallback = 0});
    input.transfer_token_ms = transfer.Number("token_ms", {.max = kMsMax, .fallback = 0});
    Fields buffers = fields.Object("buffers", false);
    input.buffers.receive =
        static_cast<int>(buffers.Int64("receive", {.min = 0, .max = 1024, .fallback = 1}));
    input.buffers.send =
        static_cast<int>(buffers.Int64("send", {.min = 0, .max = 1024, .fallback = 1}));
    Fields measure = fields.Object("measure", false);
    input.skipped = measure.Int64("skipped_batches", {.max = 10000, .fallback = 0});
    input.measured = measure.Int64("batches", {.max = 10000, .fallback = 0});
  }
  ReadAdapters(&fields, longest, &input);
  return input;
}

ordered_json StagesOf(const PipelinePlan& plan) {
  ordered_json stages = ordered_json::array();
  for (size_t s = 0; s < plan.simulation.stages.size(); ++s) {
    const StageSimulation& stage = plan.simulation.stages[s];
    ordered_json operations = ordered_json::array();
    for (const Operation& operation : plan.window.stages[s]) {
      operations.push_back(ToText(operation));
    }
    stages.push_back({{"first_block", plan.cut.first[s]},
                      {"last_block", plan.cut.first[s + 1] - 1},
                      {"busy_ms", stage.busy_ms},
                      {"filling_ms", stage.filling_ms},
                      {"steady_ms", stage.steady_ms},
                      {"idle_ms", stage.idle_ms},
                      {"draining_ms", stage.draining_ms},
                      {"in_flight", stage.in_flight},
                      {"in_flight_tokens", stage.in_flight_tokens},
                      {"activation_bytes", plan.activation_bytes[s]},
                      {"operations", std::move(operations)}});
  }
  return stages;
}

// Transfers that block on both sides are what one forward, one backward deadlocks with.
absl::Status Advised(const absl::Status& status, const Buffers& buffers) {
  if (!absl::IsInternal(status) || buffers.receive > 0 || buffers.send > 0) return status;
  return absl::FailedPreconditionError(
      absl::StrCat(status.message(), "; give buffers.receive or buffers.send 1"));
}

}  // namespace

absl::StatusOr<PipelineInput> ReadPipeline(const json& scenario) {
  return ReadScenario<PipelineInput>(scenario, Read);
}

absl::Status CheckPipeline(const json& scenario) { return ReadPipeline(scenario).status(); }

ordered_json ToJson(const PipelinePlan& plan, const PipelineInput& input) {
  ordered_json groups = ordered_json::array();
  for (const std::vector<int>& group : plan.groups) {
    ordered_json names = ordered_json::array();
    for (const int a : group) names.push_back(input.adapters[static_cast<size_t>(a)].name);
    groups.push_back(std::move(names));
  }
  ordered_json microbatches = ordered_json::array();
  for (const Microbatch& microbatch : plan.window.microbatches) {
    ordered_json segments = ordered_json::array();
    for (const Segment& segment : microbatch.segments) {
      segments.push_back({{"adapter", segment.job},
                          {"step", segment.step},
                          {"sequence", segment.sequence},
                          {"tokens", segment.tokens}});
    }
    microbatches.push_back({{"number", microbatch.number},
                            {"tokens", Tokens(microbatch)},
                            {"segments", std::move(segments)}});
  }
  return {{"makespan_ms", plan.simulation.makespan_ms},
          {"bubble_ratio", plan.simulation.bubble_ratio},
          {"idle_ratio", plan.simulation.idle_ratio},
          {"groups", std::move(groups)},
          {"noops", plan.noops},
          {"bound_microbatches", plan.bound_microbatches},
          {"stages", StagesOf(plan)},
          {"microbatches", std::move(microbatches)}};
}

absl::StatusOr<PlanResult> RunPipeline(const json& scenario) {
  const auto input = ReadPipeline(scenario);
  if (!input.ok()) return input.status();
  const auto plan = PlanPipeline(*input);
  if (!plan.ok()) return Advised(plan.status(), input->buffers);
  PlanResult result;
  for (size_t g = 0; g < plan->groups.size(); ++g) {
    absl::StrAppend(&result.text, "group ", g, ":");
    for (const int a : plan->groups[g]) {
      absl::StrAppend(&result.text, " ", input->adapters[static_cast<size_t>(a)].name);
    }
    absl::StrAppend(&result.text, "\n");
  }
  absl::StrAppend(&result.text, ToText(*plan));
  result.json = ToJson(*plan, *input);
  result.timeline = TimelineOf(plan->window, plan->simulation.execution,
                               absl::StrCat("pipeline of ", input->stages, " stages, ",
                                            input->adapters.size(), " adapters"));
  return result;
}

}  // namespace lorad::planner::scenario
