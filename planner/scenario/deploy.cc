#include "planner/scenario/deploy.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/scenario/fields.h"
#include "planner/scenario/layouts.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kFilterMicrobatches = 32;  // of a replica, as in LobRA's own measurements

void ReadExpected(Fields& fields, DeployScenario* scenario) {
  DeployProblem& problem = scenario->problem;
  for (Fields& bucket : fields.Objects("expected", {.max = kBucketsMax, .required = false})) {
    const int64_t length = bucket.Int64("length", {.min = 1, .max = kLengthMax});
    if (bucket.ok() && !problem.lengths.empty() && length <= problem.lengths.back()) {
      bucket.Violate("length", "is not above the one before", "let lengths rise");
    }
    problem.lengths.push_back(length);
    problem.sequences.push_back(bucket.Number("sequences", {.min = 0, .max = 1e9}));
    int64_t longest = 0;
    for (const Layout& layout : problem.candidates) {
      longest = std::max(longest, layout.capacity_tokens);
    }
    if (bucket.ok() && length > longest) {
      bucket.Violate("length", absl::StrCat("is ", length),
                     absl::StrCat("no layout holds more than ", longest,
                                  " tokens: cut sequences or add a layout"));
    }
  }
}

void ReadSteps(Fields& fields, DeployScenario* scenario) {
  scenario->steps =
      fields.Int64Lists("steps", {.min = 1, .max = kLengthMax}, {.min = 1, .max = kSequencesMax},
                        {.max = 10'000, .required = false});
  int64_t longest = 0;
  for (const Layout& layout : scenario->problem.candidates) {
    longest = std::max(longest, layout.capacity_tokens);
  }
  size_t sequences = 0;
  for (size_t i = 0; i < scenario->steps.size(); ++i) {
    sequences += scenario->steps[i].size();
    const int64_t most = *std::max_element(scenario->steps[i].begin(), scenario->steps[i].end());
    if (most > longest) {
      fields.ViolateEntry("steps", i, absl::StrCat("has a sequence of ", most, " tokens"),
                          absl::StrCat("no layout holds more than ", longest,
                                       " tokens: cut sequences or add a layout"));
    }
  }
  if (sequences > kSequencesMax) {
    fields.Violate("steps", absl::StrCat("hold ", sequences, " sequences"),
                   absl::StrCat("give ", kSequencesMax, " at most"));
  }
}

void ReadAdapters(Fields& fields, DeployScenario* scenario) {
  const size_t buckets = scenario->problem.lengths.size();
  std::set<std::string> names;
  for (Fields& entry : fields.Objects("adapters", {.max = 1000, .required = false})) {
    AdapterWork adapter;
    adapter.name = entry.String("name");
    if (entry.ok() && !names.insert(adapter.name).second) {
      entry.Violate("name", "is another adapter's too", "give each its own name");
    }
    adapter.sequences =
        entry.Int64s("sequences", {.min = 0, .max = 1'000'000}, {.max = kBucketsMax});
    adapter.reduction_ms = entry.Number("reduction_ms", {.min = 0, .max = 1e9, .fallback = 0});
    if (entry.ok() && adapter.sequences.size() != buckets) {
      entry.Violate("sequences", absl::StrCat("has ", adapter.sequences.size(), " entries"),
                    absl::StrCat("give one for each of the ", buckets, " buckets of expected"));
    }
    scenario->adapters.push_back(std::move(adapter));
  }
}

void ReadCurrent(Fields& fields, DeployScenario* scenario) {
  if (!fields.Has("current")) return (void)fields.Object("current", false);
  Fields entry = fields.Object("current");
  DeployScenario::Current current;
  current.replicas = entry.Int64s("replicas", {.min = 0, .max = 65'536}, {.max = 16});
  MoveQuestion& question = current.question;
  question.remaining_steps = entry.Number("remaining_steps", {.min = 0, .max = 1e15});
  question.checkpoint_s = entry.Number("checkpoint_s", {.min = 0, .max = 1e9, .fallback = 0});
  question.reload_s = entry.Number("reload_s", {.min = 0, .max = 1e9, .fallback = 0});
  question.least_share =
      entry.Number("least_share", {.min = 0, .max = 1, .fallback = question.least_share});
  if (entry.ok() && current.replicas.size() != scenario->problem.candidates.size()) {
    entry.Violate(
        "replicas", absl::StrCat("has ", current.replicas.size(), " entries"),
        absl::StrCat("give one for each of the ", scenario->problem.candidates.size(), " layouts"));
  }
  scenario->current = std::move(current);
}

DeployScenario Read(Fields& fields) {
  DeployScenario scenario;
  scenario.problem.gpus = fields.Int64("gpus", {.min = 1, .max = 65'536});
  for (Fields& entry : fields.Objects("layouts", {.min = 1, .max = 16})) {
    scenario.problem.candidates.push_back(ReadLayout(entry));
  }
  ReadExpected(fields, &scenario);
  ReadSteps(fields, &scenario);
  if (fields.ok() && scenario.problem.lengths.empty() == scenario.steps.empty()) {
    fields.Violate("", "has neither or both of expected and steps", "give one of them");
  }
  scenario.bucketing = ReadBucketing(fields, scenario.problem.candidates);
  scenario.filter = fields.Bool("filter", true);
  scenario.options.gap = fields.Number("gap", {.min = 0, .max = 0.9, .fallback = 0.005});
  ReadAdapters(fields, &scenario);
  if (fields.ok() && !scenario.adapters.empty() && !scenario.steps.empty()) {
    fields.Violate("adapters", "need the buckets of expected", "give expected instead of steps");
  }
  ReadCurrent(fields, &scenario);
  return scenario;
}

// Buckets of all steps together, and of each by itself.
absl::StatusOr<std::vector<StepSample>> FillFromSteps(const DeployScenario& scenario,
                                                      DeployProblem* problem) {
  std::vector<StepSample> samples;
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& step : scenario.steps) {
    const auto buckets = ChooseBuckets(step, scenario.bucketing);
    if (!buckets.ok()) return buckets.status();
    samples.push_back({buckets->lengths, buckets->sequences});
    all.insert(all.end(), step.begin(), step.end());
  }
  if (samples.empty()) return samples;
  const auto buckets = ChooseBuckets(all, scenario.bucketing);
  if (!buckets.ok()) return buckets.status();
  problem->lengths = buckets->lengths;
  for (int64_t count : buckets->sequences) {
    problem->sequences.push_back(static_cast<double>(count) /
                                 static_cast<double>(scenario.steps.size()));
  }
  return samples;
}

// Leaves only layouts that have the highest throughput for some length and number of GPUs.
std::vector<int> Filter(const DeployProblem& problem) {
  std::vector<int> gpus;
  std::vector<Throughput> table;
  for (size_t i = 0; i < problem.candidates.size(); ++i) {
    const Layout& layout = problem.candidates[i];
    gpus.push_back(layout.gpus());
    for (int64_t length : problem.lengths) {
      table.push_back({static_cast<int>(i), length,
                       layout.gpus() <= problem.gpus
                           ? TokensPerGpuSecond(layout, length, kFilterMicrobatches)
                           : 0});
    }
  }
  return ProposeLayouts(gpus, table);
}

ordered_json PlanJson(const DeployProblem& problem, const Deployment& plan) {
  ordered_json json;
  json["step_ms"] = plan.step_ms;
  json["bound_ms"] = plan.bound_ms;
  json["optimal"] = plan.optimal;
  json["spread_ms"] = plan.spread_ms;
  json["linear_bound_ms"] = plan.linear_bound_ms;
  json["gpu_seconds"] = plan.gpu_seconds(problem.gpus);
  if (plan.mean_step_ms > 0) json["mean_step_ms"] = plan.mean_step_ms;
  json["dispatch"] = ToJson(DispatchOf(problem, plan.replicas), plan.dispatch);
  return json;
}

absl::Status AddOwners(const DeployScenario& scenario, const DeployProblem& problem,
                       const Deployment& plan, PlanResult* result) {
  if (scenario.adapters.empty()) return absl::OkStatus();
  OwnershipOptions options;
  options.gap = scenario.options.gap;
  options.dispatch_nodes = scenario.options.dispatch_nodes;
  const OwnershipProblem question{DispatchOf(problem, plan.replicas).groups, problem.lengths,
                                  scenario.adapters};
  const auto owners = PlanOwnership(question, options);
  if (!owners.ok()) return owners.status();
  absl::StrAppend(&result->text, "\nowners\n", owners->ToText(question), "\n");
  ordered_json json = ordered_json::array();
  for (size_t a = 0; a < owners->owners.size(); ++a) {
    const Owner& owner = owners->owners[a];
    ordered_json entry = {{"adapter", scenario.adapters[a].name}, {"shared", owner.group < 0}};
    if (owner.group >= 0) {
      entry["group"] = owner.group;
      entry["replica"] = owner.replica;
    }
    json.push_back(std::move(entry));
  }
  result->json["ownership"] = {{"step_ms", owners->step_ms},
                               {"all_shared_ms", owners->all_shared_ms},
                               {"bound_ms", owners->bound_ms},
                               {"owners", std::move(json)}};
  return absl::OkStatus();
}

absl::Status AddMove(const DeployScenario& scenario, const DeployProblem& problem,
                     const std::vector<StepSample>& samples, const Deployment& plan,
                     PlanResult* result) {
  if (!scenario.current.has_value()) return absl::OkStatus();
  // The current plan may use layouts that the filter took from the candidates.
  DeployProblem all = problem;
  all.candidates = scenario.problem.candidates;
  const std::vector<int64_t>& replicas = scenario.current->replicas;
  MoveQuestion question = scenario.current->question;
  const DispatchProblem current = DispatchOf(all, replicas);
  std::vector<StepSample> steps = samples;
  if (steps.empty()) steps.push_back({current.lengths, current.sequences});
  const auto current_ms = MeanStepMs(all, replicas, steps);
  if (!current_ms.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the current plan: ", current_ms.status().message()));
  }
  question.current_step_s = *current_ms / 1000;
  const auto new_ms = MeanStepMs(problem, plan.replicas, steps);
  if (!new_ms.ok()) return new_ms.status();
  question.new_step_s = *new_ms / 1000;
  const auto decision = DecideMove(question);
  if (!decision.ok()) return decision.status();
  absl::StrAppend(&result->text, "\n", decision->ToText(), "\n");
  result->json["move"] = {{"move", decision->move},
                          {"gain_s", decision->gain_s},
                          {"current_step_s", question.current_step_s},
                          {"new_step_s", question.new_step_s}};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeployScenario> ReadDeploy(const json& scenario) {
  return ReadScenario<DeployScenario>(scenario, Read);
}

absl::Status CheckDeploy(const json& scenario) { return ReadDeploy(scenario).status(); }

absl::StatusOr<PlanResult> RunDeploy(const json& json_scenario) {
  const auto scenario = ReadDeploy(json_scenario);
  if (!scenario.ok()) return scenario.status();
  DeployProblem problem = scenario->problem;
  const auto samples = FillFromSteps(*scenario, &problem);
  if (!samples.ok()) return samples.status();
  PlanResult result;
  ordered_json names = ordered_json::array();
  if (scenario->filter) {
    std::vector<Layout> candidates;
    for (int i : Filter(problem)) candidates.push_back(problem.candidates[i]);
    if (!candidates.empty()) problem.candidates = std::move(candidates);
  }
  absl::StrAppend(&result.text, "layouts considered:");
  for (const Layout& layout : problem.candidates) {
    absl::StrAppend(&result.text, " ", layout.Name(), ";");
    names.push_back(layout.Name());
  }
  result.text.back() = '\n';
  const auto plan = Deploy(problem, scenario->options, *samples);
  if (!plan.ok()) return plan.status();
  absl::StrAppend(&result.text, plan->ToText(problem), "\n\n",
                  plan->dispatch.ToText(DispatchOf(problem, plan->replicas)), "\n");
  result.json = PlanJson(problem, *plan);
  result.json["layouts"] = std::move(names);
  if (absl::Status status = AddOwners(*scenario, problem, *plan, &result); !status.ok()) {
    return status;
  }
  if (absl::Status status = AddMove(*scenario, problem, *samples, *plan, &result); !status.ok()) {
    return status;
  }
  return result;
}

}  // namespace lorad::planner::scenario
