#include "planner/scenario/deploy.h"

#include <algorithm>
#include <optional>
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

// `longest`: sequence that a layout holds.
void ReadExpected(Fields& fields, int64_t longest, DeployProblem* problem) {
  for (Fields& bucket : fields.Objects("expected", {.max = kBucketsMax, .required = false})) {
    const size_t before = bucket.violations();
    const int64_t length = bucket.Int64("length", {.min = 1, .max = kLengthMax});
    const bool known = bucket.violations() == before;
    if (known && !problem->lengths.empty() && length <= problem->lengths.back()) {
      bucket.Violate("length", "is not above the one before", "let lengths rise");
    }
    const double sequences = bucket.Number("sequences", {.min = 0, .max = 1e9});
    if (known && length > longest) {
      bucket.Violate("length", absl::StrCat("is ", length), TooLong(longest));
    }
    problem->lengths.push_back(length);
    problem->sequences.push_back(sequences);
  }
}

void ReadSteps(Fields& fields, int64_t longest, DeployScenario* scenario) {
  scenario->steps =
      fields.Int64Lists("steps", {.min = 1, .max = kLengthMax}, {.min = 1, .max = kSequencesMax},
                        {.max = 10'000, .required = false});
  size_t sequences = 0;
  for (size_t i = 0; i < scenario->steps.size(); ++i) {
    const std::vector<int64_t>& step = scenario->steps[i];
    sequences += step.size();
    for (size_t k = 0; k < step.size(); ++k) {
      if (step[k] <= longest) continue;
      fields.ViolateEntry("steps", {i, k}, absl::StrCat("is ", step[k]), TooLong(longest));
    }
  }
  if (sequences > kSequencesMax) {
    fields.Violate("steps", absl::StrCat("hold ", sequences, " sequences"),
                   absl::StrCat("give ", kSequencesMax, " at most"));
  }
}

// `buckets`: of expected; nullopt where they are wrong.
void ReadAdapters(Fields& fields, std::optional<size_t> buckets, DeployScenario* scenario) {
  std::set<std::string> names;
  for (Fields& entry : fields.Objects("adapters", {.max = 1000, .required = false})) {
    AdapterWork adapter;
    adapter.name = entry.OwnName("adapter", &names);
    adapter.reduction_ms = entry.Number("reduction_ms", {.min = 0, .max = 1e9, .fallback = 0});
    const size_t before = entry.violations();
    adapter.sequences =
        entry.Int64s("sequences", {.min = 0, .max = 1'000'000}, {.max = kBucketsMax});
    if (entry.violations() == before && buckets && adapter.sequences.size() != *buckets) {
      entry.Violate("sequences", absl::StrCat("has ", adapter.sequences.size(), " entries"),
                    absl::StrCat("give one for each of the ", *buckets, " buckets of expected"));
    }
    scenario->adapters.push_back(std::move(adapter));
  }
}

// Replicas of a plan that runs: of each layout, and no more than there are GPUs for.
void CheckCurrent(Fields& entry, const DeployProblem& problem,
                  const std::vector<int64_t>& replicas) {
  const size_t layouts = problem.candidates.size();
  if (replicas.size() != layouts) {
    entry.Violate("replicas", absl::StrCat("has ", replicas.size(), " entries"),
                  absl::StrCat("give one for each of the ", layouts, " layouts"));
    return;
  }
  int64_t gpus = 0;
  for (size_t i = 0; i < layouts; ++i) gpus += replicas[i] * problem.candidates[i].gpus();
  if (gpus == 0) {
    entry.Violate("replicas", "are none", "name what is deployed, or leave current out");
  } else if (gpus > problem.gpus) {
    entry.Violate("replicas", absl::StrCat("need ", gpus, " GPUs"),
                  absl::StrCat("give a plan for the ", problem.gpus, " there are"));
  }
}

// `known`: the GPUs and layouts are right.
void ReadCurrent(Fields& fields, bool known, DeployScenario* scenario) {
  if (!fields.Has("current")) return (void)fields.Object("current", false);
  Fields entry = fields.Object("current");
  DeployScenario::Current current;
  MoveQuestion& question = current.question;
  question.remaining_steps = entry.Number("remaining_steps", {.min = 0, .max = 1e15});
  question.checkpoint_s = entry.Number("checkpoint_s", {.min = 0, .max = 1e9, .fallback = 0});
  question.reload_s = entry.Number("reload_s", {.min = 0, .max = 1e9, .fallback = 0});
  question.least_share =
      entry.Number("least_share", {.min = 0, .max = 1, .fallback = question.least_share});
  const size_t before = entry.violations();
  current.replicas = entry.Int64s("replicas", {.min = 0, .max = 65'536}, {.max = 16});
  if (known && entry.violations() == before) {
    CheckCurrent(entry, scenario->problem, current.replicas);
  }
  scenario->current = std::move(current);
}

DeployScenario Read(Fields& fields) {
  DeployScenario scenario;
  DeployProblem& problem = scenario.problem;
  const size_t before_layouts = fields.violations();
  problem.gpus = fields.Int64("gpus", {.min = 1, .max = 65'536});
  for (Fields& entry : fields.Objects("layouts", {.min = 1, .max = 16})) {
    problem.candidates.push_back(ReadLayout(entry));
  }
  const bool layouts_known = fields.violations() == before_layouts;
  const int64_t longest = LongestOf(problem.candidates);
  const size_t before_lengths = fields.violations();
  ReadExpected(fields, longest, &problem);
  ReadSteps(fields, longest, &scenario);
  const bool lengths_known = fields.violations() == before_lengths;
  if (lengths_known && problem.lengths.empty() == scenario.steps.empty()) {
    fields.Violate("", "has neither or both of expected and steps", "give one of them");
  }
  scenario.bucketing = ReadBucketing(fields, longest);
  scenario.filter = fields.Bool("filter", true);
  scenario.options.gap = fields.Number("gap", {.min = 0, .max = 0.9, .fallback = 0.005});
  const bool in_steps = !scenario.steps.empty();
  ReadAdapters(fields,
               lengths_known && !in_steps ? std::optional(problem.lengths.size()) : std::nullopt,
               &scenario);
  if (!scenario.adapters.empty() && in_steps) {
    fields.Violate("adapters", "need the buckets of expected", "give expected instead of steps");
  }
  ReadCurrent(fields, layouts_known, &scenario);
  return scenario;
}

// Whether some layout holds the longest sequence on the GPUs that there are.
absl::Status CheckHolds(const DeployProblem& problem) {
  int64_t longest = 0;
  for (size_t j = 0; j < problem.lengths.size(); ++j) {
    if (problem.sequences[j] > 0) longest = problem.lengths[j];
  }
  const Layout* smallest = nullptr;
  for (const Layout& layout : problem.candidates) {
    if (layout.Fit(std::max<int64_t>(1, longest)) == 0) continue;
    if (smallest == nullptr || layout.gpus() < smallest->gpus()) smallest = &layout;
  }
  if (smallest == nullptr || smallest->gpus() <= problem.gpus) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "no layout on ", problem.gpus, " GPUs holds a sequence of ", longest,
      " tokens; the smallest that does is ", smallest->Name(), ", which needs ", smallest->gpus()));
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
  if (*current_ms <= 0) {
    return absl::FailedPreconditionError("no sequence is expected: moving cannot pay");
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
  if (absl::Status status = CheckHolds(problem); !status.ok()) return status;
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
