#include "planner/scenario/sweep.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/scenario/fields.h"
#include "planner/sweep/bound.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kBytesMax = int64_t{1} << 50;
constexpr double kSecondsMax = 1e9;
constexpr int64_t kRankMax = 4096;
constexpr int64_t kBatchMax = 1 << 14;
constexpr int64_t kSamplesMax = int64_t{1} << 40;
constexpr int64_t kEvaluationsMax = 10000;
constexpr int64_t kCurvePointsMax = 2'000'000;

SweepCosts ReadCosts(Fields fields, int gpus) {
  SweepCosts costs;
  costs.base_bytes = fields.Int64("base_bytes", {.max = kBytesMax});
  costs.rank_bytes = fields.Int64("rank_bytes", {.max = kBytesMax / kRankMax, .fallback = 0});
  costs.sample_bytes = fields.Int64("sample_bytes", {.max = kBytesMax / kBatchMax, .fallback = 0});
  costs.gpu_bytes = fields.Int64("gpu_bytes", {.min = 1, .max = kBytesMax});
  costs.load_factor = fields.Number("load_factor", {.max = 1, .fallback = 1.0, .above_min = true});
  costs.iteration_s = fields.Number("iteration_s", {.max = kSecondsMax, .above_min = true});
  costs.adapter_s = fields.Number("adapter_s", {.max = kSecondsMax, .fallback = 0.0});
  costs.rank_s = fields.Number("rank_s", {.max = kSecondsMax, .fallback = 0.0});
  costs.sample_s = fields.Number("sample_s", {.max = kSecondsMax, .fallback = 0.0});
  int64_t before = 0;
  for (Fields& degree : fields.Objects("degrees", {.min = 1, .max = 16})) {
    SweepDegree& entry = costs.degrees.emplace_back();
    const int64_t count = degree.Int64("gpus", {.min = 1, .max = SweepProblem::kGpusMax});
    if (degree.ok() && (count <= before || (count & (count - 1)) != 0)) {
      degree.Violate("gpus", absl::StrCat("is ", count), "give rising powers of two");
    }
    if (degree.ok() && before == 0 && count > gpus) {
      degree.Violate("gpus", absl::StrCat("is ", count), "one degree must fit into gpus");
    }
    before = count;
    entry.gpus = static_cast<int>(count);
    entry.fixed_scale =
        degree.Number("fixed_scale", {.max = 1e6, .fallback = 1.0, .above_min = true});
    entry.work_scale =
        degree.Number("work_scale", {.max = 1e6, .fallback = 1.0 / static_cast<double>(count)});
  }
  return costs;
}

// The properties of a configuration beyond its costs.
struct Extra {
  double learning_rate = 0;  // 0: not given
  std::vector<double> validation;
};

void ReadList(Fields& fields, SweepScenario* scenario, std::vector<Extra>* extras) {
  std::set<std::string> names;
  for (Fields& c : fields.Objects("configurations",
                                  {.max = SweepProblem::kConfigurationsMax, .required = false})) {
    SweepConfiguration& configuration = scenario->configurations.emplace_back();
    configuration.name = c.String("name");
    configuration.rank = c.Int64("rank", {.min = 1, .max = kRankMax});
    configuration.batch = c.Int64("batch", {.min = 1, .max = kBatchMax});
    configuration.steps = c.Int64("steps", {.min = 1, .max = kSamplesMax});
    Extra& extra = extras->emplace_back();
    extra.learning_rate = c.Number("learning_rate", {.max = 1e3, .fallback = 0.0});
    extra.validation = c.Numbers("validation", {.min = -1e9, .max = 1e9},
                                 {.max = kEvaluationsMax, .required = false});
    if (c.ok() && !names.insert(configuration.name).second) {
      c.Violate("name", "is another configuration's too", "give each its own name");
    }
  }
}

// Every combination; `samples` or `steps` of each.
void ReadGrid(Fields grid, SweepScenario* scenario, std::vector<Extra>* extras) {
  const ListRule list{.min = 1, .max = 1000};
  const auto ranks = grid.Int64s("ranks", {.min = 1, .max = kRankMax}, list);
  const auto batches = grid.Int64s("batches", {.min = 1, .max = kBatchMax}, list);
  auto rates = grid.Numbers("learning_rates", {.max = 1e3, .above_min = true},
                            {.min = 1, .max = 1000, .required = false});
  auto alphas = grid.Numbers("alphas", {.max = 1e6, .above_min = true},
                             {.min = 1, .max = 1000, .required = false});
  const int64_t samples = grid.Int64("samples", {.max = kSamplesMax, .fallback = 0});
  const int64_t steps = grid.Int64("steps", {.max = kSamplesMax, .fallback = 0});
  if (grid.ok() && (samples > 0) == (steps > 0)) {
    grid.Violate("samples", "stands beside steps, or neither is there", "give one of the two");
  }
  if (rates.empty()) rates = {0};
  if (alphas.empty()) alphas = {0};
  const double count = static_cast<double>(ranks.size()) * static_cast<double>(batches.size()) *
                       static_cast<double>(rates.size()) * static_cast<double>(alphas.size());
  if (count > SweepProblem::kConfigurationsMax) {
    grid.Violate("", absl::StrCat("has ", count, " configurations"),
                 absl::StrCat("give at most ", SweepProblem::kConfigurationsMax));
  }
  if (!grid.ok()) return;
  for (double rate : rates) {
    for (double alpha : alphas) {
      for (int64_t rank : ranks) {
        for (int64_t batch : batches) {
          std::string name = absl::StrCat("r", rank, "-b", batch);
          if (rate > 0) absl::StrAppendFormat(&name, "-lr%.2g", rate);
          if (alpha > 0) absl::StrAppendFormat(&name, "-a%.3g", alpha);
          scenario->configurations.push_back(
              {name, rank, batch, steps > 0 ? steps : (samples + batch - 1) / batch});
          extras->push_back({rate, {}});
        }
      }
    }
  }
}

void ReadEarlyExit(Fields fields, const std::vector<Extra>& extras, SweepScenario* scenario) {
  EarlyExitPolicy& policy = scenario->early_exit.emplace();
  policy.warmup_share =
      fields.Number("warmup_share", {.max = 1, .fallback = 0.05, .above_min = true});
  policy.keep_share = fields.Number("keep_share", {.max = 1, .fallback = 0.25, .above_min = true});
  policy.divergence = fields.Number("divergence", {.min = 1, .max = 1e6, .fallback = 1.25});
  policy.patience = fields.Int64("patience", {.min = 1, .max = kEvaluationsMax, .fallback = 3});
  policy.tolerance = fields.Number("tolerance", {.max = 1e3, .fallback = 0.01});
  const bool modelled = fields.Has("modelled");
  Fields model = fields.Object("modelled", false);
  const int64_t evaluations =
      model.Int64("evaluations", {.min = 1, .max = kEvaluationsMax, .fallback = 100});
  const int64_t seed = model.Int64("seed", {.max = 4294967295, .fallback = 1});
  const double noise = model.Number("noise", {.max = 1, .fallback = 0.003});
  if (modelled && evaluations * std::ssize(extras) > kCurvePointsMax) {
    model.Violate("evaluations", "makes too many losses in all",
                  absl::StrCat("give at most ", kCurvePointsMax, " for all configurations"));
  }
  std::vector<CurveModel> models;
  for (size_t i = 0; i < extras.size() && fields.ok(); ++i) {
    const SweepConfiguration& c = scenario->configurations[i];
    if (modelled ? extras[i].learning_rate <= 0 : extras[i].validation.empty()) {
      fields.Violate("", absl::StrCat("has no curve of ", c.name),
                     modelled ? "modelled curves need a learning rate of each configuration"
                              : "give each configuration its validation losses, or `modelled`");
      return;
    }
    const int64_t samples = std::min(c.steps, kSamplesMax / c.batch) * c.batch;
    models.push_back({c.rank, c.batch, extras[i].learning_rate});
    scenario->curves.push_back(
        {c.name, samples, std::ssize(extras[i].validation), extras[i].validation});
  }
  if (!modelled || !fields.ok()) return;
  auto curves = ModelCurves(models, 0, evaluations, static_cast<uint32_t>(seed), noise);
  for (size_t i = 0; i < curves.size(); ++i) {
    scenario->curves[i].evaluations = evaluations;
    scenario->curves[i].validation = std::move(curves[i].validation);
  }
}

SweepScenario Read(Fields& fields) {
  SweepScenario scenario;
  scenario.gpus = static_cast<int>(fields.Int64("gpus", {.min = 1, .max = SweepProblem::kGpusMax}));
  scenario.costs = ReadCosts(fields.Object("costs"), scenario.gpus);
  scenario.options.replace = fields.Bool("replace", true);
  scenario.options.evaluations_max = fields.Int64(
      "evaluations_max", {.max = 10'000'000, .fallback = scenario.options.evaluations_max});
  std::vector<Extra> extras;
  if (fields.Has("configurations") == fields.Has("grid")) {
    fields.Violate("configurations", "stands beside grid, or neither is there",
                   "give one of the two");
  }
  ReadList(fields, &scenario, &extras);
  if (fields.Has("grid")) ReadGrid(fields.Object("grid"), &scenario, &extras);
  if (fields.Has("early_exit")) ReadEarlyExit(fields.Object("early_exit"), extras, &scenario);
  if (fields.ok()) {
    const auto problem =
        SweepProblem::Create(scenario.costs, scenario.configurations, scenario.gpus);
    if (!problem.ok()) {
      fields.Violate("", std::string(problem.status().message()), "mend the costs or the sweep");
    }
  }
  return scenario;
}

ordered_json ToJson(const SweepPlan& plan, const std::vector<SweepConfiguration>& list,
                    bool with_jobs) {
  ordered_json json = {{"by", plan.by},
                       {"makespan_s", plan.makespan_s},
                       {"lower_bound_s", plan.lower_bound_s},
                       {"approximation_ratio", plan.approximation_ratio},
                       {"ratio_bound", plan.ratio_bound},
                       {"exact_sets", plan.exact_sets}};
  if (!with_jobs) return json;
  ordered_json& jobs = json["jobs"] = ordered_json::array();
  for (const SweepJob& job : plan.jobs) {
    ordered_json members = ordered_json::array();
    for (const SweepJob::Member& member : job.members) {
      members.push_back({{"configuration", list[member.configuration].name},
                         {"start_s", member.start_s},
                         {"end_s", member.end_s}});
    }
    jobs.push_back({{"gpus", job.gpus},
                    {"start_s", job.start_s},
                    {"end_s", job.end_s},
                    {"configurations", std::move(members)}});
  }
  return json;
}

Timeline TimelineOf(const SweepPlan& plan, int gpus) {
  Timeline timeline;
  timeline.title = "sweep";
  for (int gpu = 0; gpu < gpus; ++gpu) {
    timeline.tracks.push_back({"GPUs", absl::StrCat("GPU ", gpu)});
  }
  for (const SweepJob& job : plan.jobs) {
    for (int gpu : job.gpus) {
      timeline.bars.push_back({gpu, job.start_s * 1000, job.end_s * 1000,
                               absl::StrCat(job.members.size(), " configurations"),
                               absl::StrCat("set of ", job.gpus.size(), " GPUs")});
    }
  }
  return timeline;
}

// Makespans with early exit: the warm-up of all, then the rest of those who go on.
struct TwoSweeps {
  double one_each_s = 0;
  double planned_s = 0;
};
absl::StatusOr<TwoSweeps> PlanTwoSweeps(const SweepScenario& scenario,
                                        const EarlyExitResult& exits) {
  std::vector<SweepConfiguration> warm, rest;
  for (size_t i = 0; i < scenario.curves.size(); ++i) {
    const LossCurve& curve = scenario.curves[i];
    const SweepConfiguration& c = scenario.configurations[i];
    const auto steps = [&](int64_t evaluations) {
      return static_cast<int64_t>(static_cast<double>(c.steps) * static_cast<double>(evaluations) /
                                  static_cast<double>(curve.evaluations));
    };
    const int64_t made = steps(exits.evaluations[i]);
    const int64_t warmup =
        std::min(made, std::max<int64_t>(1, steps(WarmupEvaluations(*scenario.early_exit, curve))));
    if (warmup > 0) warm.push_back({c.name, c.rank, c.batch, warmup});
    if (made > warmup) rest.push_back({c.name, c.rank, c.batch, made - warmup});
  }
  TwoSweeps sweeps;
  for (const auto& list : {warm, rest}) {
    if (list.empty()) continue;
    const auto problem = SweepProblem::Create(scenario.costs, list, scenario.gpus);
    if (!problem.ok()) return problem.status();
    sweeps.one_each_s += problem->OneEachSeconds();
    sweeps.planned_s += PlanSweep(*problem, scenario.options).makespan_s;
  }
  return sweeps;
}

absl::Status AddEarlyExit(const SweepScenario& scenario, double one_each_s, PlanResult* result) {
  const EarlyExitResult exits = SimulateEarlyExit(*scenario.early_exit, scenario.curves);
  const auto sweeps = PlanTwoSweeps(scenario, exits);
  if (!sweeps.ok()) return sweeps.status();
  absl::StrAppendFormat(
      &result->text,
      "early exit: %s\nwith early exit: %.4g s one each, %.4g s planned (%.2f times shorter)\n",
      ToText(exits, scenario.curves), sweeps->one_each_s, sweeps->planned_s,
      one_each_s / sweeps->planned_s);
  result->json["early_exit"] = {
      {"samples_total", exits.samples_total}, {"samples_used", exits.samples_used},
      {"best_loss", exits.best_loss},         {"best_loss_kept", exits.best_loss_kept},
      {"one_each_s", sweeps->one_each_s},     {"makespan_s", sweeps->planned_s}};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SweepScenario> ReadSweep(const json& scenario) {
  return ReadScenario<SweepScenario>(scenario, Read);
}

absl::Status CheckSweep(const json& scenario) { return ReadSweep(scenario).status(); }

absl::StatusOr<PlanResult> RunSweep(const json& json_scenario) {
  const auto scenario = ReadSweep(json_scenario);
  if (!scenario.ok()) return scenario.status();
  const auto problem =
      SweepProblem::Create(scenario->costs, scenario->configurations, scenario->gpus);
  if (!problem.ok()) return problem.status();
  const double one_each_s = problem->OneEachSeconds();
  const SweepPlan plan = PlanSweep(*problem, scenario->options);
  PlanResult result;
  absl::StrAppendFormat(
      &result.text, "%d configurations of %d kinds on %d GPUs; one each: %.4g s\n",
      scenario->configurations.size(), problem->kinds().size(), scenario->gpus, one_each_s);
  absl::StrAppendFormat(&result.text, "%.2f times shorter: %s", one_each_s / plan.makespan_s,
                        ToText(plan, scenario->configurations));
  result.json = {{"one_each_s", one_each_s},
                 {"plan", ToJson(plan, scenario->configurations, true)}};
  if (SweepBoundAffordable(*problem)) {
    const double bound = SweepBoundSeconds(*problem);
    absl::StrAppendFormat(&result.text,
                          "no plan ends before %.4g s, this one takes at most %.3f of the best\n",
                          bound, plan.makespan_s / bound);
    result.json["no_plan_before_s"] = bound;
  }
  ordered_json& rules = result.json["rules"] = ordered_json::array();
  for (SweepRule rule : {SweepRule::kLeastMakespan, SweepRule::kMostThroughput}) {
    if (!RulesAffordable(*problem)) break;
    const SweepPlan other = PlanByThroughput(*problem, rule);
    absl::StrAppendFormat(
        &result.text, "PLoRA's rule, %s: %.4g s (%.2f times shorter), ratio %.3f\n", other.by,
        other.makespan_s, one_each_s / other.makespan_s, other.approximation_ratio);
    rules.push_back(ToJson(other, scenario->configurations, false));
  }
  if (scenario->early_exit) {
    absl::Status status = AddEarlyExit(*scenario, one_each_s, &result);
    if (!status.ok()) return status;
  }
  result.timeline = TimelineOf(plan, scenario->gpus);
  return result;
}

}  // namespace lorad::planner::scenario
