#include "planner/scenario/pack.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/window/pack_merge.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kTokensMax = int64_t{1} << 40;
constexpr int64_t kPaddingMax = int64_t{1} << 20;
constexpr size_t kSamplesMax = 200'000;  // of all global batches

// "lengths" as one global batch, or "batches".
std::vector<std::vector<int64_t>> ReadBatches(Fields* fields) {
  const Int64Rule length{.min = 1, .max = kTokensMax};
  if (!fields->Has("batches")) {
    return {fields->Int64s("lengths", length, {.min = 1, .max = kSamplesMax})};
  }
  if (fields->Has("lengths")) {
    fields->Int64s("lengths", length, {.max = kSamplesMax});
    fields->Violate("lengths", "stands beside batches", "give one of them");
  }
  return fields->Int64Lists("batches", length, {.max = kSamplesMax}, {.min = 1, .max = 10000});
}

// `longest`: tokens of one adapter that a microbatch holds.
void ReadAdapter(Fields* fields, int64_t longest, std::set<std::string>* names,
                 PackScenario* scenario) {
  const std::string name = fields->OwnName("adapter", names);
  const bool in_batches = fields->Has("batches");
  const std::vector<std::vector<int64_t>> batches = ReadBatches(fields);
  scenario->batches.resize(std::max(scenario->batches.size(), batches.size()));
  scenario->places.resize(scenario->batches.size());
  for (size_t j = 0; j < batches.size(); ++j) {
    for (size_t i = 0; i < batches[j].size(); ++i) {
      if (batches[j][i] > longest) {
        fields->ViolateEntry(in_batches ? "batches" : "lengths",
                             in_batches ? std::vector<size_t>{j, i} : std::vector<size_t>{i},
                             absl::StrCat("is ", batches[j][i]),
                             absl::StrCat("a microbatch holds ", longest, " tokens of one ",
                                          "adapter: cut the sequence or raise capacity"));
      }
      scenario->batches[j].push_back(Sample{name, {batches[j][i]}});
      scenario->places[j].push_back(static_cast<int64_t>(i));
    }
  }
}

PackScenario Read(Fields& fields) {
  PackScenario scenario;
  const int64_t longest = ReadPackOptions(&fields, kTokensMax, &scenario.options);
  const std::string solver = fields.String(
      "solver", {.choices = {"bin_completion", "highs"}, .fallback = "bin_completion"});
  scenario.limits.solver = solver == "highs" ? PackSolver::kHighs : PackSolver::kBinCompletion;
  scenario.limits.nodes = fields.Int64("nodes", {.max = 10'000'000, .fallback = 1'000'000});
  scenario.limits.empty_last_bin = fields.Bool("empty_last_bin", false);
  if (fields.Has("merge")) {
    Fields merge = fields.Object("merge");
    scenario.merge_stages = static_cast<int>(merge.Int64("stages", {.min = 1, .max = 1024}));
    scenario.limits.empty_last_bin = true;
  }
  std::set<std::string> names;
  for (Fields& adapter : fields.Objects("adapters", {.min = 1, .max = 4096})) {
    ReadAdapter(&adapter, longest, &names, &scenario);
  }
  size_t samples = 0;
  for (const auto& batch : scenario.batches) samples += batch.size();
  if (samples > kSamplesMax) {
    fields.Violate("adapters", absl::StrCat("have ", samples, " sequences"),
                   absl::StrCat("give at most ", kSamplesMax));
  }
  return scenario;
}

// One microbatch as text and JSON.
void AddBin(const PackScenario& scenario, const std::vector<BatchSample>& bin, PlanResult* result) {
  int64_t tokens = 0;
  ordered_json samples = ordered_json::array();
  std::string text;
  for (const BatchSample& at : bin) {
    const size_t batch = static_cast<size_t>(at.batch), place = static_cast<size_t>(at.sample);
    const Sample& sample = scenario.batches[batch][place];
    tokens += sample.lengths[0];
    absl::StrAppend(&text, " ", sample.job, "/", at.batch, "[", sample.lengths[0], "]");
    samples.push_back({{"adapter", sample.job},
                       {"batch", at.batch},
                       {"sample", scenario.places[batch][place]},
                       {"tokens", sample.lengths[0]}});
  }
  ordered_json& bins = result->json["bins"];
  absl::StrAppend(&result->text, "microbatch ", bins.size(), ": ", tokens, " tokens:", text, "\n");
  bins.push_back({{"tokens", tokens}, {"samples", std::move(samples)}});
}

absl::StatusOr<std::vector<PackResult>> PackAll(const PackScenario& scenario) {
  std::vector<PackResult> packed;
  for (const std::vector<Sample>& batch : scenario.batches) {
    auto result = PackBatch(batch, scenario.options, scenario.limits);
    if (!result.ok()) return result.status();
    packed.push_back(*std::move(result));
  }
  return packed;
}

}  // namespace

int64_t ReadPackOptions(Fields* fields, int64_t tokens_max, PackOptions* options) {
  const size_t before = fields->violations();
  options->capacity = fields->Int64("capacity", {.min = 1, .max = tokens_max});
  options->padding = fields->Int64("padding", {.min = 1, .max = kPaddingMax, .fallback = 1});
  if (fields->violations() == before && options->padding > options->capacity) {
    fields->Violate("padding", absl::StrCat("is ", options->padding),
                    absl::StrCat("give at most the capacity, ", options->capacity));
  }
  return fields->violations() == before ? options->capacity / options->padding * options->padding
                                        : tokens_max;
}

absl::StatusOr<PackScenario> ReadPack(const json& scenario) {
  return ReadScenario<PackScenario>(scenario, Read);
}

absl::Status CheckPack(const json& scenario) { return ReadPack(scenario).status(); }

absl::StatusOr<PlanResult> RunPack(const json& json_scenario) {
  const auto scenario = ReadPack(json_scenario);
  if (!scenario.ok()) return scenario.status();
  const auto packed = PackAll(*scenario);
  if (!packed.ok()) return packed.status();
  PlanResult result;
  result.json = {{"batches", ordered_json::array()}, {"bins", ordered_json::array()}};
  std::vector<std::vector<BatchSample>> bins;
  for (size_t j = 0; j < packed->size(); ++j) {
    const PackResult& batch = (*packed)[j];
    absl::StrAppend(&result.text, "global batch ", j, ": ", batch.packing.size(),
                    " microbatches (greedy ", batch.greedy_bins, ", no packing has fewer than ",
                    batch.bound_bins, "), ", Name(batch.path), ", ", batch.nodes, " nodes\n");
    result.json["batches"].push_back({{"bins", batch.packing.size()},
                                      {"greedy_bins", batch.greedy_bins},
                                      {"bound_bins", batch.bound_bins},
                                      {"path", Name(batch.path)},
                                      {"proved", batch.proved},
                                      {"nodes", batch.nodes}});
    for (const std::vector<int>& bin : batch.packing) {
      std::vector<BatchSample>& samples = bins.emplace_back();
      for (const int i : bin) samples.push_back({static_cast<int>(j), i});
    }
  }
  if (scenario->merge_stages > 0) {
    const auto merged = MergeBatches(scenario->batches, *packed, scenario->merge_stages,
                                     scenario->options, scenario->limits);
    if (!merged.ok()) return merged.status();
    absl::StrAppend(&result.text, "merged: ", merged->bins.size(), " microbatches instead of ",
                    merged->bins_before, ", ", merged->moved, " samples moved\n");
    result.json["merged"] = {{"bins_before", merged->bins_before}, {"moved", merged->moved}};
    bins = merged->bins;
  }
  for (const auto& bin : bins) AddBin(*scenario, bin, &result);
  return result;
}

}  // namespace lorad::planner::scenario
