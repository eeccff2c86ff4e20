#include "planner/scenario/cluster_fields.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/schedule/policy_limits.h"
#include "sizes/batch.h"

namespace lorad::planner::scenario {
namespace {

constexpr int64_t kBytesMax = int64_t{1} << 50;
constexpr int64_t kLayersMax = 512;
// Of all families: a model has its own of them.
const char* const kTargets[] = {"q_proj",    "k_proj",  "v_proj",       "qkv_proj", "o_proj",
                                "gate_proj", "up_proj", "gate_up_proj", "down_proj"};
constexpr size_t kTargetsMax = std::size(kTargets);

// q, k and v, and gate and up: modules of their own, or two that hold them all.
void ReadGroups(Fields& fields, ModelShape* model) {
  const bool bias = fields.Bool("bias", false);
  const bool fused = fields.Bool("fused", false);
  const int64_t q = model->heads * model->head_size, kv = model->kv_heads * model->head_size;
  using Parts = std::vector<ModelShape::Part>;
  const Parts qkv = fused ? Parts{{"qkv_proj", q + 2 * kv, bias}}
                          : Parts{{"q_proj", q, bias}, {"k_proj", kv, bias}, {"v_proj", kv, bias}};
  const Parts gate_up =
      fused ? Parts{{"gate_up_proj", 2 * model->ffn, false}}
            : Parts{{"gate_proj", model->ffn, false}, {"up_proj", model->ffn, false}};
  model->groups = {{model->hidden, qkv},
                   {q, {{"o_proj", model->hidden, false}}},
                   {model->hidden, gate_up},
                   {model->ffn, {{"down_proj", model->hidden, false}}}};
}

// Norms and tables of rope. A model that says nothing of them is a Llama's.
void ReadNormsAndRopes(Fields& fields, ModelShape* model) {
  model->in_norm = fields.Bool("in_norm", true);
  model->out_norm = fields.Bool("out_norm", false);
  model->q_norm = fields.Int64("q_norm", {.max = 1 << 18, .fallback = 0});
  model->k_norm = fields.Int64("k_norm", {.max = 1 << 18, .fallback = 0});
  for (Fields& rope : fields.Objects("ropes", {.max = 64, .required = false})) {
    ModelShape::RopeTable& table = model->ropes.emplace_back();
    table.features = rope.Int64("features", {.min = 2, .max = 512});
    table.border = rope.Int64("border_tokens", {.max = kTokensMax, .fallback = 0});
  }
  if (model->ropes.empty()) model->ropes = {{.features = model->head_size}};
}

ModelShape ReadShape(Fields& fields) {
  ModelShape model;
  model.layers = fields.Int64("layers", {.min = 1, .max = kLayersMax});
  model.hidden = fields.Int64("hidden", {.min = 1, .max = 1 << 16});
  model.ffn = fields.Int64("ffn", {.min = 1, .max = 1 << 18});
  model.heads = fields.Int64("heads", {.min = 1, .max = 512});
  model.kv_heads = fields.Int64("kv_heads", {.min = 1, .max = 512});
  model.head_size = fields.Int64("head_size", {.min = 1, .max = 512});
  model.vocabulary = fields.Int64("vocabulary", {.min = 1, .max = 1 << 20});
  model.tied_head = fields.Bool("tied_head", false);
  ReadGroups(fields, &model);
  ReadNormsAndRopes(fields, &model);
  return model;
}

TimeCoefficients ReadTimes(Fields& fields) {
  TimeCoefficients times;
  times.constant_ms = fields.Number("constant_ms", {.max = 1e9, .fallback = 0.0});
  times.token_ms = fields.Number("token_ms", {.max = 1e9, .fallback = 0.0});
  times.squared_ms = fields.Number("squared_ms", {.max = 1e9, .fallback = 0.0});
  times.adapter_ms = fields.Number("adapter_ms", {.max = 1e9, .fallback = 0.0});
  return times;
}

std::optional<double> ReadLoad(Fields& fields) {
  if (!fields.Has("load_s")) return std::nullopt;
  return fields.Number("load_s", {.max = 1e9});
}

}  // namespace

void Models::Read(Fields& scenario, const std::set<std::string>* devices) {
  for (Fields& model : scenario.Objects("models", {.min = 1, .max = 64})) {
    ReadModel(model, devices);
  }
}

void Models::ReadModel(Fields& fields, const std::set<std::string>* devices) {
  const std::string name = fields.OwnName("model", &names_);
  const ModelShape shape = ReadShape(fields);
  const size_t before = fields.violations();
  const ModelTimes times = ReadModelTimes(fields);
  if (devices != nullptr && fields.violations() == before) {
    for (const std::string& device : *devices) {
      const auto own = times.of_device.find(device);
      const TimeCoefficients known =
          own != times.of_device.end() ? own->second : times.of_all.value_or(TimeCoefficients{});
      if (known.constant_ms + known.token_ms > 0) continue;
      fields.Violate("times", absl::StrCat("say nothing of device '", device, "'"),
                     "give a time above 0 in times, or for the device in times_by_device");
    }
  }
  models_.emplace(name, shape);
  times_.emplace(name, times);
}

Models::ModelTimes Models::ReadModelTimes(Fields& fields) {
  ModelTimes times;
  if (fields.Has("times")) {
    Fields of_all = fields.Object("times");
    times.of_all = ReadTimes(of_all);
  }
  times.load_s = ReadLoad(fields);
  std::set<std::string> devices;
  for (Fields& device : fields.Objects("times_by_device", {.max = 64, .required = false})) {
    const std::string device_name = device.String("device");
    if (!devices.insert(device_name).second) {
      device.Violate("device", "is named twice", "give each device its own name");
    }
    times.of_device[device_name] = ReadTimes(device);
    if (const auto load_s = ReadLoad(device)) times.load_of_device[device_name] = *load_s;
  }
  return times;
}

const ModelShape* Models::Find(Fields& fields, std::string* name) const {
  const size_t before = fields.violations();
  *name = fields.String("base_model");
  if (fields.violations() > before) return nullptr;
  const auto found = models_.find(*name);
  if (found != models_.end()) return &found->second;
  if (models_.empty()) return nullptr;  // that is one itself
  fields.Violate("base_model", absl::StrCat("is ", *name, ", which is no model"),
                 "name one of models");
  return nullptr;
}

void Models::Spread(const std::set<std::string>& devices,
                    std::map<DeviceKey, TimeCoefficients>* times,
                    std::map<DeviceKey, double>* load_s) const {
  for (const auto& [model, known] : times_) {
    for (const std::string& device : devices) {
      const DeviceKey key{model, device};
      if (known.of_all) (*times)[key] = *known.of_all;
      if (known.load_s) (*load_s)[key] = *known.load_s;
    }
    for (const auto& [device, own] : known.of_device) (*times)[{model, device}] = own;
    for (const auto& [device, own] : known.load_of_device) (*load_s)[{model, device}] = own;
  }
}

WorkerView ReadWorkerView(Fields& fields, std::set<std::string>* names) {
  WorkerView worker;
  worker.name = fields.OwnName("worker", names);
  worker.budget_bytes = fields.Int64("budget_bytes", {.min = 1, .max = kBytesMax});
  DeviceShape& device = worker.device;
  device.threads =
      static_cast<int>(fields.Int64("threads", {.min = 1, .max = 1024, .fallback = 1}));
  device.multiprocessors =
      static_cast<int>(fields.Int64("multiprocessors", {.max = 1024, .fallback = 0}));
  const bool gpu = device.multiprocessors > 0;
  device.kind = gpu ? DeviceKind::kCuda : DeviceKind::kCpu;
  device.value_bytes = fields.Bool("float32", !gpu) || !gpu ? 4 : 2;
  worker.device_name = ReadName(fields, "device");
  worker.slowness = fields.Number("slowness", {.min = 1e-6, .max = 1e6, .fallback = 1.0});
  return worker;
}

AdapterShape ReadAdapter(Fields& fields) {
  if (fields.Has("modules")) {
    AdapterShape adapter;
    for (Fields& entry : fields.Objects("modules", {.min = 1, .max = kListMax})) {
      AdapterShape::Part part;
      part.target = entry.String("target", {.choices = AllTargets()});
      part.rank = entry.Int64("rank", {.min = 1, .max = sizes::kRankMax});
      part.layers = entry.Int64("layers", {.max = kLayersMax, .fallback = 0});
      adapter.parts.push_back(std::move(part));
    }
    return adapter;
  }
  const int64_t rank = fields.Int64("rank", {.min = 1, .max = sizes::kRankMax});
  const std::vector<std::string> targets = fields.Strings(
      "targets", {.choices = AllTargets()}, {.min = 1, .max = kTargetsMax, .required = false});
  return {rank, targets.empty() ? AllTargets() : targets};
}

std::vector<std::string> AllTargets() { return {std::begin(kTargets), std::end(kTargets)}; }

int32_t ReadPriority(Fields& fields) {
  return static_cast<int32_t>(
      fields.Int64("priority", {.min = -1'000'000, .max = 1'000'000, .fallback = 0}));
}

int64_t ReadStepTokens(Fields& fields) {
  return fields.Int64("step_tokens", {.max = kStepTokensMax, .fallback = 0});
}

double ReadStepSquares(Fields& fields) {
  return fields.Number("step_squared_lengths", {.max = kStepSquaresMax, .fallback = 0.0});
}

int64_t ReadRemainingSteps(Fields& fields) {
  return fields.Int64("remaining_steps", {.max = kStepsMax, .fallback = 0});
}

std::string ReadName(Fields& fields, const std::string& name) {
  return fields.Has(name) ? fields.String(name) : "";
}

SchedulePolicy ReadPolicy(Fields& fields) {
  SchedulePolicy policy;
  policy.evict = fields.Bool("evict", policy.evict);
  policy.minimum_run_s =
      fields.Int64("minimum_run_s", {.max = kMinimumRunMaxS, .fallback = policy.minimum_run_s});
  policy.points_per_hour = fields.Number(
      "points_per_hour", {.max = kPointsPerHourMax, .fallback = policy.points_per_hour});
  policy.points_max =
      fields.Number("points_max", {.max = kPointsMax, .fallback = policy.points_max});
  policy.fair_share = fields.Bool("fair_share", policy.fair_share);
  policy.least_gain =
      fields.Number("least_gain", {.max = kLeastGainMax, .fallback = policy.least_gain});
  policy.rebalance = fields.Bool("rebalance", policy.rebalance);
  policy.least_share = fields.Number("least_share", {.max = 1.0, .fallback = policy.least_share});
  return policy;
}

}  // namespace lorad::planner::scenario
