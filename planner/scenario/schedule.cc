#include "planner/scenario/schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/scenario/cluster_fields.h"
#include "planner/scenario/fields.h"
#include "planner/scenario/replay.h"
#include "sizes/batch.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

class Reader {
 public:
  explicit Reader(Fields& fields) : fields_(fields) {}

  ClusterView Read() {
    models_.Read(fields_);
    view_.microbatch_tokens =
        fields_.Int64("microbatch_tokens", {.min = 1, .max = kTokensMax, .fallback = 1024});
    for (Fields& worker : fields_.Objects("workers", {.max = kListMax, .required = false})) {
      ReadWorker(worker);
    }
    for (Fields& group : fields_.Objects("groups", {.max = kListMax, .required = false})) {
      ReadGroup(group);
    }
    for (WorkerView& worker : view_.workers) worker.idle = worker.idle && !worker.doubtful;
    for (Fields& job : fields_.Objects("queue", {.max = kListMax, .required = false})) {
      ReadQueued(job);
    }
    ReadPolicy();
    view_.move_s = fields_.Number("move_s", {.max = 1e9, .fallback = view_.move_s});
    std::set<std::string> devices;
    for (const WorkerView& worker : view_.workers) devices.insert(worker.device_name);
    models_.Spread(devices, &view_.times, &view_.load_s);
    return std::move(view_);
  }

 private:
  void ReadPolicy() {
    Fields fields = fields_.Object("policy", false);
    view_.policy = scenario::ReadPolicy(fields);
  }

  void ReadWorker(Fields& fields) {
    WorkerView& worker = view_.workers.emplace_back(ReadWorkerView(fields, &worker_names_));
    worker.loaded_base_model = ReadName(fields, "loaded_base_model");
    worker.numerics_id = ReadName(fields, "numerics_id");
    worker.transport = ReadName(fields, "transport");
    worker.host = ReadName(fields, "host");
    worker.nccl = fields.Bool("nccl", false);
    worker.doubtful = fields.Bool("doubtful", false);
    worker.idle = true;  // until a group names it
    workers_.emplace(worker.name, view_.workers.size() - 1);
  }

  // That are left; none where it does not say.
  static EvaluationWork ReadEvaluations(Fields& job) {
    Fields fields = job.Object("evaluations", false);
    return {.parts = fields.Int64("parts", {.max = kStepsMax, .fallback = 0}),
            .tokens = fields.Int64("tokens", {.max = kStepTokensMax, .fallback = 0}),
            .squared_lengths =
                fields.Number("squared_lengths", {.max = kStepSquaresMax, .fallback = 0.0})};
  }

  void ReadGroup(Fields& fields) {
    GroupView group;
    group.name = fields.OwnName("group", &group_names_);
    const ModelShape* model = models_.Find(fields, &group.base_model);
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
    group.open = fields.Bool("open", true);
    group.forming = fields.Bool("forming", false);
    group.ready_s = fields.Number("ready_s", {.max = 1e9, .fallback = 0.0});
    group.formed_s = fields.Int64("formed_s", {.max = kSecondsMax, .fallback = 0});
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
      running.step_squared_lengths = ReadStepSquares(job);
      running.remaining_steps = ReadRemainingSteps(job);
      running.evaluations = ReadEvaluations(job);
      running.moved_s = job.Int64("moved_s", {.max = kSecondsMax, .fallback = kNeverMoved});
      running.label_group = ReadName(job, "label_group");
      running.leaving = job.Bool("leaving", false);
      group.running.push_back(running);
    }
    if (model == nullptr || worker == nullptr) return;  // which is a violation
    group.model = std::make_shared<const ModelShape>(*model);
    const GroupShape read = std::exchange(group.shape, EmptyShape(worker->device));
    group.shape.longest_sequence = read.longest_sequence;
    group.shape.capacity_tokens = read.capacity_tokens;
    group.budget_bytes = worker->budget_bytes;
    group.worker = worker->name;
    group.device_name = worker->device_name;
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
    const ModelShape* model = models_.Find(fields, &job.base_model);
    job.adapter = ShareAdapter(ReadAdapter(fields));
    job.priority = ReadPriority(fields);
    job.arrival = fields.Int64("arrival", {.min = -kSecondsMax, .max = kSecondsMax});
    job.longest_sequence = fields.Int64("longest_sequence", {.min = 1, .max = kTokensMax});
    job.waited_s = fields.Int64("waited_s", {.max = kSecondsMax, .fallback = 0});
    job.step_tokens = ReadStepTokens(fields);
    job.step_squared_lengths = ReadStepSquares(fields);
    job.stages = static_cast<int32_t>(fields.Int64("stages", {.max = kStagesMax, .fallback = 0}));
    job.remaining_steps = ReadRemainingSteps(fields);
    job.evaluations = ReadEvaluations(fields);
    job.label_group = ReadName(fields, "label_group");
    if (model == nullptr) return;
    job.model = std::make_shared<const ModelShape>(*model);
    view_.queue.push_back(std::move(job));
  }

  Fields& fields_;
  ClusterView view_;
  Models models_;
  std::map<std::string, size_t> workers_;  // indexes
  std::set<std::string> worker_names_, group_names_, job_names_;
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
  for (const StageView& stage : decision.stages) {
    json["stages"].push_back({{"worker", stage.worker},
                              {"first_block", stage.range.first_block},
                              {"end_block", stage.range.end_block}});
  }
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

absl::Status CheckSchedule(const json& scenario) {
  return IsReplay(scenario) ? ReadReplay(scenario).status() : ReadSchedule(scenario).status();
}

absl::StatusOr<PlanResult> RunSchedule(const json& scenario) {
  if (IsReplay(scenario)) return RunReplay(scenario);
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
