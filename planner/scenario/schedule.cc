#include "planner/scenario/schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/scenario/fields.h"
#include "sizes/batch.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Bounds under which no sum of bytes overflows.
constexpr int64_t kBytesMax = int64_t{1} << 50;
constexpr int64_t kTokensMax = int64_t{1} << 20;
constexpr int64_t kSecondsMax = int64_t{1} << 40;
constexpr size_t kListMax = 4096;
const char* const kTargets[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                "gate_proj", "up_proj", "down_proj"};

class Reader {
 public:
  explicit Reader(Fields& fields) : fields_(fields) {}

  ClusterView Read() {
    for (Fields& model : fields_.Objects("models", {.min = 1, .max = 64})) ReadModel(model);
    view_.microbatch_tokens =
        fields_.Int64("microbatch_tokens", {.min = 1, .max = kTokensMax, .fallback = 1024});
    for (Fields& worker : fields_.Objects("workers", {.max = kListMax, .required = false})) {
      ReadWorker(worker);
    }
    for (Fields& group : fields_.Objects("groups", {.max = kListMax, .required = false})) {
      ReadGroup(group);
    }
    for (Fields& job : fields_.Objects("queue", {.max = kListMax, .required = false})) {
      ReadQueued(job);
    }
    view_.policy = ReadPolicy(fields_.Object("policy", false));
    return std::move(view_);
  }

 private:
  // Layers of the Llama family.
  void ReadModel(Fields& fields) {
    const std::string name = fields.OwnName("model", &model_names_);
    ModelShape model;
    model.layers = fields.Int64("layers", {.min = 1, .max = 512});
    model.hidden = fields.Int64("hidden", {.min = 1, .max = 1 << 16});
    model.ffn = fields.Int64("ffn", {.min = 1, .max = 1 << 18});
    model.heads = fields.Int64("heads", {.min = 1, .max = 512});
    model.kv_heads = fields.Int64("kv_heads", {.min = 1, .max = 512});
    model.head_size = fields.Int64("head_size", {.min = 1, .max = 512});
    model.vocabulary = fields.Int64("vocabulary", {.min = 1, .max = 1 << 20});
    model.tied_head = fields.Bool("tied_head", false);
    const bool bias = fields.Bool("bias", false);
    const int64_t q = model.heads * model.head_size, kv = model.kv_heads * model.head_size;
    model.groups = {
        {model.hidden, {{"q_proj", q, bias}, {"k_proj", kv, bias}, {"v_proj", kv, bias}}},
        {q, {{"o_proj", model.hidden, false}}},
        {model.hidden, {{"gate_proj", model.ffn, false}, {"up_proj", model.ffn, false}}},
        {model.ffn, {{"down_proj", model.hidden, false}}},
    };
    if (fields.Has("times")) {
      Fields times = fields.Object("times");
      TimeCoefficients& entry = view_.times[name];
      entry.constant_ms = times.Number("constant_ms", {.max = 1e9, .fallback = 0.0});
      entry.token_ms = times.Number("token_ms", {.max = 1e9, .fallback = 0.0});
      entry.squared_ms = times.Number("squared_ms", {.max = 1e9, .fallback = 0.0});
    }
    models_.emplace(name, model);
  }

  void ReadWorker(Fields& fields) {
    WorkerView& worker = view_.workers.emplace_back();
    worker.name = fields.OwnName("worker", &worker_names_);
    worker.budget_bytes = fields.Int64("budget_bytes", {.min = 1, .max = kBytesMax});
    worker.device.threads =
        static_cast<int>(fields.Int64("threads", {.min = 1, .max = 1024, .fallback = 1}));
    worker.idle = true;  // until a group names it
    workers_.emplace(worker.name, view_.workers.size() - 1);
  }

  void ReadGroup(Fields& fields) {
    GroupView group;
    group.name = fields.OwnName("group", &group_names_);
    const ModelShape* model = FindModel(fields, &group.base_model);
    WorkerView* worker = TakeWorker(fields);
    const size_t before = fields.violations();
    group.shape.longest_sequence = fields.Int64("longest_sequence", {.min = 1, .max = kTokensMax});
    const int64_t longest =
        fields.violations() == before ? group.shape.longest_sequence : kTokensMax;
    group.shape.capacity_tokens =
        fields.Int64("capacity_tokens",
                     {.min = group.shape.longest_sequence,
                      .max = kTokensMax,
                      .fallback = std::max(view_.microbatch_tokens, group.shape.longest_sequence)});
    group.shape.stages = 1;
    group.open = fields.Bool("open", true);
    for (Fields& job : fields.Objects("jobs", {.max = sizes::kSlotsMax, .required = false})) {
      RunningJob running;
      group.jobs.push_back(job.OwnName("job", &job_names_));
      group.adapters.push_back(ReadAdapter(job));
      running.priority = ReadPriority(job);
      running.arrival = job.Int64("arrival", {.min = -kSecondsMax, .max = kSecondsMax});
      running.running_s = job.Int64("running_s", {.max = kSecondsMax, .fallback = 0});
      running.longest_sequence =
          job.Int64("longest_sequence", {.min = 1, .max = longest, .fallback = longest});
      running.step_tokens = ReadStepTokens(job);
      running.label_group = ReadLabelGroup(job);
      running.leaving = job.Bool("leaving", false);
      group.running.push_back(running);
    }
    if (model == nullptr || worker == nullptr) return;  // which is a violation
    group.model = *model;
    group.shape.device = worker->device;
    group.budget_bytes = worker->budget_bytes;
    view_.groups.push_back(std::move(group));
  }

  // The worker of a group, now not idle any more.
  WorkerView* TakeWorker(Fields& fields) {
    const size_t before = fields.violations();
    const std::string name = fields.String("worker");
    if (fields.violations() > before) return nullptr;
    const auto found = workers_.find(name);
    if (found == workers_.end()) {
      fields.Violate("worker", absl::StrCat("is ", name, ", which is no worker"),
                     "name one of workers");
      return nullptr;
    }
    WorkerView& worker = view_.workers[found->second];
    if (!worker.idle) {
      fields.Violate("worker", "has another group", "give each group its own worker");
    }
    worker.idle = false;
    return &worker;
  }

  void ReadQueued(Fields& fields) {
    QueuedJob job;
    job.job = fields.OwnName("job", &job_names_);
    const ModelShape* model = FindModel(fields, &job.base_model);
    job.adapter = ReadAdapter(fields);
    job.priority = ReadPriority(fields);
    job.arrival = fields.Int64("arrival", {.min = -kSecondsMax, .max = kSecondsMax});
    job.longest_sequence = fields.Int64("longest_sequence", {.min = 1, .max = kTokensMax});
    job.waited_s = fields.Int64("waited_s", {.max = kSecondsMax, .fallback = 0});
    job.step_tokens = ReadStepTokens(fields);
    job.label_group = ReadLabelGroup(fields);
    if (model == nullptr) return;
    job.model = *model;
    view_.queue.push_back(std::move(job));
  }

  static AdapterShape ReadAdapter(Fields& fields) {
    AdapterShape adapter;
    adapter.rank = fields.Int64("rank", {.min = 1, .max = sizes::kRankMax});
    adapter.targets =
        fields.Strings("targets", {.choices = {std::begin(kTargets), std::end(kTargets)}},
                       {.min = 1, .max = 7, .required = false});
    if (adapter.targets.empty()) adapter.targets = {std::begin(kTargets), std::end(kTargets)};
    return adapter;
  }

  static int32_t ReadPriority(Fields& fields) {
    return static_cast<int32_t>(
        fields.Int64("priority", {.min = -1'000'000, .max = 1'000'000, .fallback = 0}));
  }
  static int64_t ReadStepTokens(Fields& fields) {
    return fields.Int64("step_tokens", {.max = int64_t{1} << 32, .fallback = 0});
  }
  static std::string ReadLabelGroup(Fields& fields) {
    return fields.Has("label_group") ? fields.String("label_group") : "";
  }

  // Reads the name; nullptr: a violation.
  const ModelShape* FindModel(Fields& fields, std::string* name) const {
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

  static SchedulePolicy ReadPolicy(Fields fields) {
    SchedulePolicy policy;
    policy.evict = fields.Bool("evict", policy.evict);
    policy.minimum_run_s =
        fields.Int64("minimum_run_s", {.max = kSecondsMax, .fallback = policy.minimum_run_s});
    policy.points_per_hour =
        fields.Number("points_per_hour", {.max = 1e6, .fallback = policy.points_per_hour});
    policy.points_max = fields.Number("points_max", {.max = 1e6, .fallback = policy.points_max});
    policy.fair_share = fields.Bool("fair_share", policy.fair_share);
    policy.least_gain = fields.Number("least_gain", {.max = 1e6, .fallback = policy.least_gain});
    return policy;
  }

  Fields& fields_;
  ClusterView view_;
  std::map<std::string, ModelShape> models_;
  std::map<std::string, size_t> workers_;  // indexes
  std::set<std::string> model_names_, worker_names_, group_names_, job_names_;
};

ordered_json ToJson(const Decision& decision) {
  ordered_json json = {{"kind", ToText(decision.kind)}, {"jobs", decision.jobs}};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) json[name] = value;
  };
  add("group", decision.group);
  add("to", decision.to);
  add("for", decision.why_job);
  add("worker", decision.worker);
  add("base_model", decision.base_model);
  if (decision.shape.capacity_tokens > 0) {
    json["capacity_tokens"] = decision.shape.capacity_tokens;
    json["longest_sequence"] = decision.shape.longest_sequence;
    json["recomputation"] = ToText(decision.shape.recomputation);
  }
  if (decision.place > 0) json["place"] = decision.place;
  add("why", decision.why);
  return json;
}

}  // namespace

absl::StatusOr<ClusterView> ReadSchedule(const json& scenario) {
  return ReadScenario<ClusterView>(scenario, [](Fields& fields) { return Reader(fields).Read(); });
}

absl::Status CheckSchedule(const json& scenario) { return ReadSchedule(scenario).status(); }

absl::StatusOr<PlanResult> RunSchedule(const json& scenario) {
  const auto view = ReadSchedule(scenario);
  if (!view.ok()) return view.status();
  PlanResult result;
  result.json["decisions"] = ordered_json::array();
  for (const Decision& decision : Schedule(*view)) {
    absl::StrAppend(&result.text, ToText(decision), "\n");
    result.json["decisions"].push_back(ToJson(decision));
  }
  if (result.text.empty()) result.text = "nothing to decide: the queue is empty\n";
  return result;
}

}  // namespace lorad::planner::scenario
