#include "planner/scenario/replay.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/replay/baselines.h"
#include "planner/scenario/cluster_fields.h"
#include "planner/scenario/fields.h"
#include "planner/scenario/load.h"
#include "planner/schedule/ends.h"
#include "planner/schedule/schedule.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr double kMomentMax = 1e10;  // seconds
constexpr size_t kWorkersMax = 4096;
constexpr int64_t kCountMax = 1'000'000'000;  // moves of a job
constexpr size_t kShown = 10;                 // jobs that never ended
// A job may train for so long alone: sums of some 10,000 such still tell seconds apart.
constexpr double kAloneMaxS = 1e10;
constexpr int64_t kUsualMicrobatch = 1024;  // tokens
// Fields that a cluster as it stands does not have.
constexpr std::array kOfHistories = {"recorded_policy", "policies", "baselines",
                                     "empty_group_s",   "turn_s",   "look_s"};

// How long jobs would train for alone where they take longest.
class Lengths {
 public:
  explicit Lengths(const History& history) : history_(history) {
    for (const HistoryWorker& worker : history.workers) {
      const WorkerView*& slowest = slowest_[worker.view.device_name];
      if (slowest == nullptr || worker.view.slowness > slowest->slowness) slowest = &worker.view;
    }
  }

  // "" where it is not too long, else on which worker.
  std::string WhyTooLong(const QueuedJob& job) const {
    const Workload step = StepOf(job);
    for (const auto& [device, worker] : slowest_) {
      const auto times = history_.times.find({job.base_model, device});
      if (times == history_.times.end()) continue;  // which is a violation
      const double alone_s = 1e-3 * static_cast<double>(job.remaining_steps) *
                             RoundMs(worker->slowness * times->second, step, kUsualMicrobatch);
      if (alone_s <= kAloneMaxS) continue;
      return absl::StrFormat("with which it trains for %.3g s alone on worker %s", alone_s,
                             worker->name);
    }
    return "";
  }

 private:
  const History& history_;
  std::map<std::string, const WorkerView*> slowest_;  // by device
};

std::string ShorterText() {
  return absl::StrFormat("give fewer steps, or times and slowness with which it ends within %.0e s",
                         kAloneMaxS);
}

class Reader {
 public:
  explicit Reader(Fields& fields) : fields_(fields) {}

  ReplayScenario Read() {
    for (Fields& worker : fields_.Objects("workers", {.min = 1, .max = kListMax})) {
      ReadWorker(worker);
    }
    std::set<std::string> devices;
    for (const HistoryWorker& worker : read_.history.workers) {
      devices.insert(worker.view.device_name);
    }
    models_.Read(fields_, &devices);
    models_.Spread(devices, &read_.history.times, &read_.history.load_s);
    const Lengths lengths(read_.history);
    for (Fields& job : fields_.Objects("jobs", {.required = false})) ReadJob(job, lengths);
    ReadTheLoad();
    ReadPolicies();
    History& history = read_.history;
    history.move_s = fields_.Number("move_s", {.max = 1e9, .fallback = history.move_s});
    history.microbatch_tokens =
        fields_.Int64("microbatch_tokens", {.max = kTokensMax, .fallback = 0});
    history.empty_group_s =
        fields_.Number("empty_group_s", {.max = 1e9, .fallback = history.empty_group_s});
    read_.baselines = fields_.Bool("baselines", true);
    read_.turns.turn_s = fields_.Number("turn_s", {.max = 1e6, .fallback = read_.turns.turn_s});
    read_.turns.look_s =
        fields_.Number("look_s", {.min = 0.1, .max = 1e6, .fallback = read_.turns.look_s});
    return std::move(read_);
  }

 private:
  void ReadWorker(Fields& fields) {
    HistoryWorker worker;
    worker.view = ReadWorkerView(fields, &worker_names_);
    worker.comes_s = fields.Number("comes_s", {.max = kMomentMax, .fallback = 0.0});
    if (fields.Has("goes_s")) {
      const size_t before = fields.violations();
      worker.goes_s = fields.Number("goes_s", {.max = kMomentMax});
      if (fields.violations() == before && worker.goes_s < worker.comes_s) {
        fields.Violate("goes_s", "is before comes_s", "let a worker come before it goes");
      }
    }
    const int64_t count = fields.Int64("count", {.min = 1, .max = kWorkersMax, .fallback = 1});
    std::vector<HistoryWorker>& workers = read_.history.workers;
    if (workers.size() + static_cast<size_t>(count) > kWorkersMax) {
      fields.Violate("count", absl::StrCat("is ", count),
                     absl::StrCat("give at most ", kWorkersMax, " workers in all"));
      return;
    }
    const std::string name = worker.view.name;
    for (int64_t i = 1; i <= count; ++i) {
      if (count > 1) worker.view.name = absl::StrCat(name, "-", i);
      if (count > 1 && !worker_names_.insert(worker.view.name).second) {
        fields.Violate("name", absl::StrCat("makes another ", worker.view.name),
                       "give the worker another name");
      }
      workers.push_back(worker);
    }
  }

  void ReadJob(Fields& fields, const Lengths& lengths) {
    HistoryJob job;
    const size_t before = fields.violations();
    QueuedJob& content = job.content;
    content.job = fields.OwnName("job", &job_names_);
    const ModelShape* model = models_.Find(fields, &content.base_model);
    content.adapter = ShareAdapter(ReadAdapter(fields));
    content.priority = ReadPriority(fields);
    content.longest_sequence = fields.Int64("longest_sequence", {.min = 1, .max = kTokensMax});
    content.step_tokens = fields.Int64("step_tokens", {.min = 1, .max = kStepTokensMax});
    content.step_squared_lengths = ReadStepSquares(fields);
    content.remaining_steps = fields.Int64("steps", {.min = 1, .max = kStepsMax});
    content.label_group = ReadName(fields, "label_group");
    job.comes_s = fields.Number("comes_s", {.max = kMomentMax});
    job.checkpoint_steps =
        fields.Int64("checkpoint_steps", {.max = kStepsMax, .fallback = job.checkpoint_steps});
    job.started_s = ReadMoment(fields, "started_s", job.comes_s);
    job.ended_s = ReadMoment(fields, "ended_s", job.started_s.value_or(job.comes_s));
    job.moves = ReadCount(fields, "moves");
    job.evictions = ReadCount(fields, "evictions");
    if (model == nullptr) return;  // which is a violation
    content.model = std::make_shared<const ModelShape>(*model);
    const std::string why = fields.violations() > before ? "" : lengths.WhyTooLong(content);
    if (!why.empty()) {
      fields.Violate("steps", absl::StrCat("is ", content.remaining_steps, ", ", why),
                     ShorterText());
    }
    read_.history.jobs.push_back(std::move(job));
  }

  static std::optional<double> ReadMoment(Fields& fields, const std::string& name, double least_s) {
    if (!fields.Has(name)) return std::nullopt;
    const size_t before = fields.violations();
    const double moment_s = fields.Number(name, {.max = kMomentMax});
    if (fields.violations() == before && moment_s < least_s) {
      fields.Violate(name, absl::StrCat("is ", moment_s),
                     absl::StrCat("give ", least_s, " or later: a job comes, starts and ends"));
    }
    return moment_s;
  }

  static std::optional<int64_t> ReadCount(Fields& fields, const std::string& name) {
    if (!fields.Has(name)) return std::nullopt;
    return fields.Int64(name, {.max = kCountMax});
  }

  void ReadTheLoad() {
    if (!fields_.Has("load")) return;
    if (fields_.Has("jobs")) fields_.Violate("load", "stands beside jobs", "give one of them");
    const std::string device =
        read_.history.workers.empty() ? "" : read_.history.workers.front().view.device_name;
    read_.load = ReadLoad(fields_.Object("load"), models_, device, read_.history.times);
  }

  void ReadPolicies() {
    std::set<std::string> names;
    if (fields_.Has("policies")) {
      if (fields_.Has("policy")) {
        fields_.Violate("policy", "stands beside policies", "give one of them");
      }
      for (Fields& policy : fields_.Objects("policies", {.min = 1, .max = 64})) {
        const std::string name = policy.OwnName("policy", &names);
        read_.policies.push_back({name, ReadPolicy(policy)});
      }
    }
    if (fields_.Has("recorded_policy")) {
      Fields recorded = fields_.Object("recorded_policy");
      read_.recorded = {ReadPolicy(recorded), ReadName(recorded, "share_label")};
    }
    const bool as_recorded = read_.recorded && !fields_.Has("policy");
    Fields policy = fields_.Object("policy", false);
    const SchedulePolicy read = ReadPolicy(policy);
    if (!read_.policies.empty()) return;
    read_.policies.push_back({"policy", as_recorded ? read_.recorded->policy : read});
  }

  Fields& fields_;
  ReplayScenario read_;
  Models models_;
  std::set<std::string> worker_names_, job_names_;
};

// A recording without jobs has no base models either, and maybe no workers: that follows from it,
// and would not say what to do.
absl::Status CheckThatJobsCome(const json& scenario) {
  Violations violations;
  const auto jobs = scenario.find("jobs");
  const bool missing = jobs == scenario.end();
  if ((missing || *jobs == json::array()) && !scenario.contains("load")) {
    violations.Add(
        {"$.jobs",
         absl::StrCat("is ", missing ? "missing" : "empty", ", so that there is nothing to replay"),
         "record again once jobs train (`lora cluster --record FILE`), give jobs, or a "
         "load to draw them from"});
  }
  return violations.ToStatus();
}

absl::Status CheckDrawn(const History& history) {
  const Lengths lengths(history);
  for (const HistoryJob& job : history.jobs) {
    const std::string why = lengths.WhyTooLong(job.content);
    if (why.empty()) continue;
    Violations violations;
    violations.Add({"$.load",
                    absl::StrCat("draws job ", job.content.job, " of ", job.content.remaining_steps,
                                 " steps, ", why),
                    ShorterText()});
    return violations.ToStatus();
  }
  return absl::OkStatus();
}

// ---- what came of it ----

struct Row {
  std::string name;
  Summary summary;
  std::optional<Outcome> outcome;  // none: what no start and no end says is not known
  std::optional<int64_t> moves, evictions;
};

template <class Value>
ordered_json JsonOf(const std::optional<Value>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

std::string TextOf(const std::optional<int64_t>& count) {
  return count ? absl::StrCat(*count) : "-";
}

template <class Value>
ordered_json KnownOrNull(const Row& row, Value value) {
  return row.outcome ? ordered_json(value) : ordered_json();
}

ordered_json ToJson(const Row& row) {
  const Summary& s = row.summary;
  const Outcome o = row.outcome.value_or(Outcome());
  return {{"policy", row.name},
          {"ended", s.ended},
          {"makespan_s", s.makespan_s},
          {"mean_completion_s", s.mean_completion_s},
          {"mean_wait_s", s.mean_wait_s},
          {"worst_wait_s", s.worst_wait_s},
          {"idle_share", KnownOrNull(row, s.idle_share)},
          {"tokens_per_second", s.tokens_per_s},
          {"tokens_per_training_second", KnownOrNull(row, s.tokens_per_training_s)},
          {"moves", JsonOf(row.moves)},
          {"preemptions", JsonOf(row.evictions)},
          {"groups", KnownOrNull(row, o.groups)},
          {"reforms", KnownOrNull(row, o.reforms)},
          {"turns", KnownOrNull(row, o.turns)}};
}

ordered_json ToJson(const SchedulePolicy& policy) {
  return {{"evict", policy.evict},
          {"minimum_run_s", policy.minimum_run_s},
          {"points_per_hour", policy.points_per_hour},
          {"points_max", policy.points_max},
          {"fair_share", policy.fair_share},
          {"least_gain", policy.least_gain},
          {"rebalance", policy.rebalance},
          {"least_share", policy.least_share}};
}

// Empty where nothing was recorded.
std::string RecordedText(const ReplayScenario& scenario, const std::vector<Row>& rows) {
  if (!scenario.recorded) {
    const bool has_row = std::ranges::count(rows, "recorded", &Row::name) > 0;
    return has_row ? "recorded under settings that the file does not have\n\n" : "";
  }
  std::string text = "recorded under";
  const ordered_json settings = ToJson(scenario.recorded->policy);
  for (const auto& [name, value] : settings.items()) {
    absl::StrAppend(&text, text.ends_with("under") ? " " : ", ", name, " ", value.dump());
  }
  const std::string& label = scenario.recorded->share_label;
  return absl::StrCat(text, label.empty() ? "" : ", by the label ", label, "\n\n");
}

std::string ToText(const Row& row) {
  const Summary& s = row.summary;
  const Outcome o = row.outcome.value_or(Outcome());
  const auto known = [&](std::string text) { return row.outcome ? text : "-"; };
  return absl::StrFormat("%-24s %9.0f %11.0f %8.0f %11.0f %6s %9.0f %11s %6s %8s %7s\n", row.name,
                         s.makespan_s, s.mean_completion_s, s.mean_wait_s, s.worst_wait_s,
                         known(absl::StrFormat("%.1f", 100 * s.idle_share)), s.tokens_per_s,
                         known(absl::StrFormat("%.0f", s.tokens_per_training_s)), TextOf(row.moves),
                         TextOf(row.evictions), known(absl::StrCat(o.groups)));
}

constexpr char kHeads[] =
    "                                   mean       mean       worst                     a "
    "training\n"
    "POLICY                    MAKESPAN  COMPLETION    WAIT        WAIT IDLE %  TOKENS/S    "
    "WORKER'S"
    "  MOVES  EVICTED  GROUPS\n";

// Over the jobs that say it; none where none does.
std::optional<int64_t> Sum(const History& history, std::optional<int64_t> HistoryJob::*count) {
  std::optional<int64_t> sum;
  for (const HistoryJob& job : history.jobs) {
    if (job.*count) sum = sum.value_or(0) + *(job.*count);
  }
  return sum;
}

bool IsRecorded(const HistoryJob& job) { return job.started_s && job.ended_s; }

std::vector<Row> ReplayAll(const ReplayScenario& scenario) {
  const History& history = scenario.history;
  std::vector<Row> rows;
  const auto replay = [&](const std::string& name, const SchedulePolicy& policy,
                          const Decide& decide, const Turns& turns) {
    Row& row = rows.emplace_back();
    row.name = name;
    row.outcome = Replay(history, policy, decide, turns);
    row.summary = Summarize(history, *row.outcome);
    row.moves = row.outcome->moves;
    row.evictions = row.outcome->evictions;
  };
  for (const auto& [name, policy] : scenario.policies) {
    replay(name, policy, Schedule, scenario.turns);
  }
  if (scenario.baselines) {
    const Turns events{.turn_s = scenario.turns.turn_s, .look_s = kNever};  // nothing ripens
    replay("first come first served", {}, FirstComeFirstServed, events);
    replay("one group a base model", {}, GangByGang, events);
  }
  if (std::ranges::any_of(history.jobs, IsRecorded)) {
    rows.push_back({"recorded", SummarizeRecord(history), std::nullopt,
                    Sum(history, &HistoryJob::moves), Sum(history, &HistoryJob::evictions)});
  }
  return rows;
}

// Empty where there is no such row, or all jobs are in it.
std::string PartRecorded(const History& history) {
  const auto ended = std::ranges::count_if(history.jobs, IsRecorded);
  if (ended == 0 || ended == std::ssize(history.jobs)) return "";
  return absl::StrCat("the row recorded is of the ", ended, " of ", history.jobs.size(),
                      " jobs that had ended, the others are of all: compare them with a history "
                      "whose jobs have all ended\n");
}

// On a worker that is there at any time.
bool FitsSome(const QueuedJob& job, const History& history) {
  return std::ranges::any_of(history.workers, [&](const HistoryWorker& worker) {
    const int64_t own = worker.view.microbatch_tokens;
    return FitsAlone(job, worker.view.device, worker.view.budget_bytes,
                     own > 0 ? own : history.microbatch_tokens);
  });
}

// Empty where there are none.
std::string NeverEnded(std::vector<std::string> names, const char* why) {
  if (names.empty()) return "";
  const size_t left = names.size();
  if (left > kShown) names.resize(kShown);
  return absl::StrCat(left, left == 1 ? " job" : " jobs", " never ended, as ", why, ": ",
                      absl::StrJoin(names, ", "), left > kShown ? ", .." : "", "\n");
}

// Of the first row; empty where all ended.
std::string NeverEnded(const History& history, const Row& row) {
  std::vector<std::string> without_room, left_behind;
  for (size_t j = 0; j < history.jobs.size(); ++j) {
    if (row.outcome->jobs[j].ends_s < kNever) continue;
    const QueuedJob& job = history.jobs[j].content;
    (FitsSome(job, history) ? left_behind : without_room).push_back(job.job);
  }
  return NeverEnded(std::move(without_room),
                    "no worker alone has room, and several are not replayed") +
         NeverEnded(std::move(left_behind), "the workers that have room had gone (goes_s)");
}

}  // namespace

bool IsReplay(const json& scenario) {
  if (!scenario.is_object()) return false;
  const auto has = [&](const char* field) { return scenario.contains(field); };
  if (has("jobs") || has("load")) return true;
  return !has("queue") && !has("groups") && std::ranges::any_of(kOfHistories, has);
}

absl::StatusOr<ReplayScenario> ReadReplay(const json& scenario) {
  if (auto status = CheckThatJobsCome(scenario); !status.ok()) return status;
  return ReadScenario<ReplayScenario>(scenario,
                                      [](Fields& fields) { return Reader(fields).Read(); });
}

absl::StatusOr<PlanResult> RunReplay(const json& scenario) {
  auto read = ReadReplay(scenario);
  if (!read.ok()) return read.status();
  History& history = read->history;
  if (read->load) {
    history.jobs = DrawJobs(*read->load);
    if (auto status = CheckDrawn(history); !status.ok()) return status;
  }
  const std::vector<Row> rows = ReplayAll(*read);
  std::set<std::string> bases;
  for (const HistoryJob& job : history.jobs) bases.insert(job.content.base_model);
  PlanResult result;
  result.text =
      absl::StrCat(history.jobs.size(), " jobs on ", bases.size(), " base models, ",
                   history.workers.size(), history.workers.size() == 1 ? " worker" : " workers",
                   "; times in seconds\n\n", RecordedText(*read, rows), kHeads);
  for (const Row& row : rows) result.text += ToText(row);
  for (const std::string& note : {PartRecorded(history), NeverEnded(history, rows.front())}) {
    if (!note.empty()) absl::StrAppend(&result.text, "\n", note);
  }
  result.json = {{"jobs", history.jobs.size()},
                 {"base_models", bases.size()},
                 {"workers", history.workers.size()},
                 {"replays", ordered_json::array()}};
  if (const auto ended = std::ranges::count_if(history.jobs, IsRecorded); ended > 0) {
    result.json["recorded_jobs"] = ended;
  }
  if (read->recorded) {
    result.json["recorded_policy"] = ToJson(read->recorded->policy);
    if (const std::string& label = read->recorded->share_label; !label.empty()) {
      result.json["recorded_policy"]["share_label"] = label;
    }
  }
  for (const Row& row : rows) result.json["replays"].push_back(ToJson(row));
  return result;
}

}  // namespace lorad::planner::scenario
