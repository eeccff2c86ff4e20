#include "planner/scenario/pack.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "planner/scenario/fields.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kTokensMax = int64_t{1} << 40;

PackScenario Read(Fields& fields) {
  PackScenario scenario;
  scenario.options.capacity = fields.Int64("capacity", {.min = 1, .max = kTokensMax});
  scenario.options.padding =
      fields.Int64("padding", {.min = 1, .max = int64_t{1} << 20, .fallback = 1});
  const int64_t longest =
      scenario.options.capacity / scenario.options.padding * scenario.options.padding;
  std::set<std::string> names;
  for (Fields& adapter : fields.Objects("adapters", {.min = 1, .max = 4096})) {
    const std::string name = adapter.String("name");
    if (adapter.ok() && !names.insert(name).second) {
      adapter.Violate("name", "is another adapter's too", "give each its own name");
    }
    const auto lengths =
        adapter.Int64s("lengths", {.min = 1, .max = kTokensMax}, {.min = 1, .max = 100000});
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (lengths[i] > longest) {
        adapter.ViolateEntry(
            "lengths", i, absl::StrCat("is ", lengths[i]),
            absl::StrCat("a microbatch holds ", longest,
                         " tokens of one adapter: ", "cut the sequence or raise capacity"));
      }
      scenario.samples.push_back(Sample{name, {lengths[i]}});
    }
  }
  return scenario;
}

}  // namespace

absl::StatusOr<PackScenario> ReadPack(const json& scenario) {
  return ReadScenario<PackScenario>(scenario, Read);
}

absl::Status CheckPack(const json& scenario) { return ReadPack(scenario).status(); }

absl::StatusOr<PlanResult> RunPack(const json& json_scenario) {
  auto scenario = ReadPack(json_scenario);
  if (!scenario.ok()) return scenario.status();
  const auto packing = PackFirstFitDecreasing(scenario->samples, scenario->options);
  if (!packing.ok()) return packing.status();
  const int64_t bound = LowerBoundL2(scenario->samples, scenario->options);
  PlanResult result;
  result.text = absl::StrCat(packing->size(), " microbatches of ", scenario->options.capacity,
                             " tokens; no packing has fewer than ", bound, "\n");
  ordered_json bins = ordered_json::array();
  for (size_t b = 0; b < packing->size(); ++b) {
    const std::vector<int>& bin = (*packing)[b];
    const int64_t tokens = PaddedTokens(scenario->samples, bin, scenario->options);
    absl::StrAppend(&result.text, "microbatch ", b, ": ", tokens, " tokens:");
    ordered_json samples = ordered_json::array();
    for (int i : bin) {
      const Sample& sample = scenario->samples[static_cast<size_t>(i)];
      absl::StrAppend(&result.text, " ", sample.job, "[", sample.lengths[0], "]");
      samples.push_back({{"sample", i}, {"adapter", sample.job}, {"tokens", sample.lengths[0]}});
    }
    absl::StrAppend(&result.text, "\n");
    bins.push_back({{"tokens", tokens}, {"samples", std::move(samples)}});
  }
  result.json = {{"microbatches", packing->size()}, {"bound", bound}, {"bins", std::move(bins)}};
  return result;
}

}  // namespace lorad::planner::scenario
