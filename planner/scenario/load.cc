#include "planner/scenario/load.h"

#include "absl/strings/str_cat.h"
#include "sizes/batch.h"

namespace lorad::planner::scenario {
namespace {

constexpr int64_t kJobsMax = 100'000;

double ReadShare(Fields& fields) {
  return fields.Number("share", {.max = 1e9, .fallback = 1.0, .above_min = true});
}

// "steps": [{"share": 1, "median": 300, "sigma": 1.2, "min": 10, "max": 20000}]
Shared<LogNormal> ReadMixture(Fields& fields, const std::string& name, int64_t most) {
  Shared<LogNormal> mixture;
  for (Fields& kind : fields.Objects(name, {.min = 1, .max = 100})) {
    mixture.shares.push_back(ReadShare(kind));
    LogNormal& drawn = mixture.kinds.emplace_back();
    drawn.median = kind.Number("median", {.min = 1, .max = static_cast<double>(most)});
    drawn.sigma = kind.Number("sigma", {.max = 10});
    const size_t before = kind.violations();
    drawn.min = kind.Int64("min", {.min = 1, .max = most, .fallback = 1});
    drawn.max = kind.Int64("max", {.min = 1, .max = most, .fallback = most});
    if (kind.violations() == before && drawn.min > drawn.max) {
      kind.Violate("min", absl::StrCat("is ", drawn.min),
                   absl::StrCat("give at most max, which is ", drawn.max));
    }
  }
  return mixture;
}

}  // namespace

Load ReadLoad(Fields fields, const Models& models, const std::string& device,
              const std::map<DeviceKey, TimeCoefficients>& times) {
  Load load;
  load.seed = static_cast<uint64_t>(fields.Int64("seed"));
  load.jobs = static_cast<size_t>(fields.Int64("jobs", {.min = 1, .max = kJobsMax}));
  load.gap_s = fields.Number("gap_s", {.max = 1e6});
  load.burst = fields.Number("burst", {.min = 1, .max = 1e4, .fallback = 1.0});
  load.users = fields.Int64("users", {.min = 1, .max = 1'000'000, .fallback = 1});
  for (Fields& kind : fields.Objects("base_models", {.min = 1, .max = 64})) {
    load.base_models.shares.push_back(ReadShare(kind));
    Load::BaseModel& base_model = load.base_models.kinds.emplace_back();
    const ModelShape* shape = models.Find(kind, &base_model.name);
    if (shape == nullptr) continue;  // which is a violation
    base_model.shape = std::make_shared<const ModelShape>(*shape);
    const auto known = times.find({base_model.name, device});
    if (known != times.end()) base_model.times = known->second;  // else that is one, too
  }
  for (Fields& kind : fields.Objects("priorities", {.max = 100, .required = false})) {
    load.priorities.shares.push_back(ReadShare(kind));
    load.priorities.kinds.push_back(ReadPriority(kind));
  }
  if (load.priorities.kinds.empty()) load.priorities = {{1}, {0}};
  load.ranks = fields.Int64s("ranks", {.min = 1, .max = sizes::kRankMax}, {.min = 1, .max = 100});
  load.targets = AllTargets();
  load.longest_sequence = ReadMixture(fields, "longest_sequence", kTokensMax);
  load.step_tokens = ReadMixture(fields, "step_tokens", kTokensMax);
  const bool alone = fields.Has("alone_s");
  if (alone) load.alone_s = ReadMixture(fields, "alone_s", 100'000'000);
  if (!alone || fields.Has("steps")) load.steps = ReadMixture(fields, "steps", kStepsMax);
  if (alone && fields.Has("steps")) {
    fields.Violate("alone_s", "stands beside steps", "give one of them");
  }
  return load;
}

}  // namespace lorad::planner::scenario
