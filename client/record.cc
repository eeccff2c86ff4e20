#include "client/record.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lorad::client {
namespace {

using nlohmann::ordered_json;
using v1::Job;
using v1::Worker;

// A worker that connects within so many seconds after the coordinator's start was there before.
constexpr double kStartSeconds = 60;

double Seconds(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + 1e-9 * time.nanos();
}

bool HasEnded(const Job& job) {
  return job.state() == Job::SUCCEEDED || job.state() == Job::FAILED ||
         job.state() == Job::CANCELLED;
}

// Those that it took, of a job that has ended; its total is what was asked for at first.
std::int64_t StepsOf(const Job& job) {
  if (HasEnded(job)) return job.step();
  return job.finish_step() > 0 ? job.finish_step() : job.total_steps();
}

ordered_json ToJson(const v1::Model& model) {
  ordered_json ropes = ordered_json::array();
  for (const v1::Model::Rope& rope : model.ropes()) {
    ropes.push_back({{"features", rope.features()}, {"border_tokens", rope.border_tokens()}});
  }
  return {{"name", model.name()},
          {"layers", model.layers()},
          {"hidden", model.hidden_size()},
          {"ffn", model.feed_forward_size()},
          {"heads", model.attention_heads()},
          {"kv_heads", model.key_value_heads()},
          {"head_size", model.head_size()},
          {"vocabulary", model.vocabulary_size()},
          {"tied_head", model.tied_head()},
          {"bias", model.attention_bias()},
          {"fused", model.fused_projections()},
          {"in_norm", model.input_norms()},
          {"out_norm", model.output_norms()},
          {"q_norm", model.query_norm_size()},
          {"k_norm", model.key_norm_size()},
          {"ropes", std::move(ropes)},
          {"times_by_device", ordered_json::array()}};
}

ordered_json ToJson(const v1::TrainingTimes& times) {
  return {{"device", times.device_key()},     {"constant_ms", times.constant_ms()},
          {"token_ms", times.token_ms()},     {"squared_ms", times.squared_ms()},
          {"adapter_ms", times.adapter_ms()}, {"load_s", times.load_seconds()}};
}

ordered_json ToJson(const v1::SchedulingPolicy& policy) {
  ordered_json json = {{"evict", policy.evict()},
                       {"minimum_run_s", policy.minimum_run_seconds()},
                       {"points_per_hour", policy.points_per_hour()},
                       {"points_max", policy.points_max()},
                       {"fair_share", !policy.share_label().empty()},
                       {"least_gain", policy.least_gain()},
                       {"rebalance", policy.rebalance()},
                       {"least_share", policy.least_share()}};
  if (!policy.share_label().empty()) json["share_label"] = policy.share_label();
  return json;
}

ordered_json ToJson(const Worker& worker, const std::string& name) {
  ordered_json json = {{"name", name},
                       {"budget_bytes", worker.memory_bytes()},
                       {"threads", std::max(worker.threads(), 1)},
                       {"device", worker.device_key()}};
  const double speed = worker.relative_speed();
  if (speed > 0 && speed != 1) json["slowness"] = 1 / speed;
  if (worker.device() == "cpu") return json;
  json["multiprocessors"] = worker.multiprocessors();
  json["float32"] = worker.value_bytes() == 4;
  return json;
}

// Adds the adapter as a history knows it: one rank for its targets, or each projection's ranks with
// the number of layers that have them.
void AddAdapter(const v1::AdapterConfig& adapter, ordered_json* json) {
  if (adapter.modules().empty()) {
    (*json)["rank"] = adapter.rank();
    (*json)["targets"] =
        std::vector<std::string>(adapter.target_modules().begin(), adapter.target_modules().end());
    return;
  }
  ordered_json& list = (*json)["modules"] = ordered_json::array();
  for (const v1::AdapterModules& modules : adapter.modules()) {
    list.push_back({{"target", modules.target()},
                    {"rank", modules.rank()},
                    {"layers", modules.layers_size()}});
  }
}

ordered_json ToJson(const Job& job, double beginning_s) {
  const std::int64_t longest =
      job.longest_tokens() > 0 ? job.longest_tokens() : job.training().max_length();
  ordered_json json = {{"name", job.name()}, {"base_model", job.base_model()}};
  AddAdapter(job.adapter(), &json);
  json["longest_sequence"] = std::max<std::int64_t>(longest, 1);
  json["step_tokens"] = std::max<std::int64_t>(job.total_tokens() / job.total_steps(), 1);
  json["step_squared_lengths"] =
      job.total_squared_lengths() / static_cast<double>(job.total_steps());
  json["steps"] = StepsOf(job);
  json["checkpoint_steps"] = job.training().checkpoint_every_steps();
  json["priority"] = job.priority();
  // Where the clock was set back meanwhile, one moment is that before it.
  const double comes_s = Seconds(job.create_time()) - beginning_s;
  json["comes_s"] = comes_s;
  if (!job.has_start_time() || job.step() == 0) return json;
  const double started_s = std::max(Seconds(job.start_time()) - beginning_s, comes_s);
  json["started_s"] = started_s;
  if (HasEnded(job)) {
    json["ended_s"] = std::max(Seconds(job.end_time()) - beginning_s, started_s);
  }
  return json;
}

}  // namespace

void Record::Take(const v1::ClusterStatus& cluster) {
  started_s_ = Seconds(cluster.start_time());
  if (cluster.has_policy()) policy_ = cluster.policy();
  for (const v1::TrainingTimes& times : cluster.times()) {
    times_[{times.base_model(), times.device_key()}] = times;
  }
}

void Record::Take(const v1::ListWorkersResponse& workers, double now_s) {
  std::set<std::string> here;
  for (const Worker& worker : workers.workers()) {
    const bool away = worker.state() == Worker::LOST || worker.state() == Worker::AWAITED;
    if (away || worker.drained()) continue;
    here.insert(worker.name());
    WorkerRecord& record = presences_[worker.name()];
    record.newest = worker;
    const double connected_s = Seconds(worker.connect_time());
    const bool there = !record.presences.empty() && record.presences.back().goes_s == 0 &&
                       record.presences.back().connected_s == connected_s;
    if (there) continue;
    const bool first = record.presences.empty();
    if (!first && record.presences.back().goes_s == 0) {
      record.presences.back().goes_s = connected_s;  // it was lost and came back between two looks
    }
    Presence& presence = record.presences.emplace_back();
    presence.connected_s = connected_s;
    if (first && connected_s < started_s_ + kStartSeconds) continue;
    presence.comes_s = connected_s;
    if (first) continue;
    const Presence& before = record.presences.end()[-2];
    const bool undrained = before.connected_s == connected_s;
    presence.comes_s = undrained ? now_s : std::max(connected_s, before.goes_s);
  }
  for (auto& [name, record] : presences_) {
    if (!here.contains(name) && record.presences.back().goes_s == 0) {
      record.presences.back().goes_s = now_s;
    }
  }
}

std::vector<std::string> Record::JobsThatLeft() const {
  std::vector<std::string> left;
  for (const auto& [name, job] : jobs_) {
    const Job::State state = job.state();
    const bool in_its_first =
        job.attempts() == 1 && (state == Job::PREPARING || state == Job::RUNNING ||
                                state == Job::FINALIZING || state == Job::SUCCEEDED);
    if (job.attempts() == 0 || in_its_first) continue;
    const auto known = departures_.find(name);
    if (known != departures_.end() && known->second.attempts == job.attempts() &&
        known->second.state == state) {
      continue;
    }
    left.push_back(name);
  }
  return left;
}

void Record::Take(const std::string& job, const std::vector<v1::Event>& events) {
  const Job& now = jobs_.at(job);
  Departures& departures = departures_[job];
  departures.attempts = now.attempts();
  departures.state = now.state();
  const auto count = [&](const char* reason) {
    return std::ranges::count(events, reason, &v1::Event::reason);
  };
  departures.moves = std::max<std::int64_t>(departures.moves, count("MOVED"));
  departures.evictions = std::max<std::int64_t>(departures.evictions, count("EVICTED"));
}

bool Record::IsRecorded(const Job& job) const {
  return job.total_steps() > 0 && StepsOf(job) > 0 && models_.contains(job.base_model());
}

std::size_t Record::jobs() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(jobs_, [&](const auto& entry) { return IsRecorded(entry.second); }));
}

double Record::Beginning() const {
  double first_s = 0;
  for (const auto& [name, job] : jobs_) {
    if (!IsRecorded(job)) continue;
    const double comes_s = Seconds(job.create_time());
    if (first_s == 0 || comes_s < first_s) first_s = comes_s;
  }
  return first_s;
}

std::vector<std::string> Record::ShareNotes() const {
  std::vector<std::string> notes;
  if (share_label_.empty()) return notes;
  if (policy_ && policy_->share_label() != share_label_) {
    notes.push_back(absl::StrCat(
        "the daemon ",
        policy_->share_label().empty()
            ? std::string("shares by no label")
            : absl::StrCat("shares by the label '", policy_->share_label(), "'"),
        " (lorad serve --share-label), the history has who shares by '", share_label_, "'"));
  }
  if (std::ranges::none_of(
          jobs_, [&](const auto& entry) { return entry.second.labels().contains(share_label_); })) {
    notes.push_back(absl::StrCat("no job has the label '", share_label_, "'"));
  }
  return notes;
}

std::string Record::ToText() const {
  const double beginning_s = Beginning();
  const std::string& share_label =
      share_label_.empty() && policy_ ? policy_->share_label() : share_label_;
  std::set<std::string> used;
  ordered_json jobs = ordered_json::array();
  for (const auto& [name, job] : jobs_) {
    if (!IsRecorded(job)) continue;
    used.insert(job.base_model());
    ordered_json& entry = jobs.emplace_back(ToJson(job, beginning_s));
    const auto label = job.labels().find(share_label);
    if (label != job.labels().end() && !label->second.empty()) {
      entry["label_group"] = label->second;
    }
    if (!entry.contains("started_s")) continue;
    const auto left = departures_.find(name);
    entry["moves"] = left == departures_.end() ? 0 : left->second.moves;
    entry["evictions"] = left == departures_.end() ? 0 : left->second.evictions;
  }
  ordered_json models = ordered_json::array();
  for (const std::string& name : used) {
    ordered_json& entry = models.emplace_back(ToJson(models_.at(name)));
    for (const auto& [key, times] : times_) {
      if (key.first == name) entry["times_by_device"].push_back(ToJson(times));
    }
  }
  ordered_json workers = ordered_json::array();
  for (const auto& [name, record] : presences_) {
    double gone_s = 0;  // a clock that is set back lets no worker go before it comes
    for (size_t i = 0; i < record.presences.size(); ++i) {
      const Presence& presence = record.presences[i];
      if (presence.goes_s != 0 && presence.goes_s <= beginning_s) continue;
      ordered_json& entry = workers.emplace_back(
          ToJson(record.newest, i == 0 ? name : absl::StrCat(name, "/", i + 1)));
      const double comes_s = std::max(presence.comes_s - beginning_s, gone_s);
      entry["comes_s"] = comes_s;
      if (presence.goes_s == 0) continue;
      gone_s = std::max(presence.goes_s - beginning_s, comes_s);
      entry["goes_s"] = gone_s;
    }
  }
  ordered_json history = {
      {"about", {"recorded by `lora cluster --record`; times are seconds from the first job"}}};
  if (policy_) {
    history["recorded_policy"] = ToJson(*policy_);
    if (policy_->microbatch_tokens() > 0) {
      history["microbatch_tokens"] = policy_->microbatch_tokens();
    }
  }
  history["models"] = std::move(models);
  history["workers"] = std::move(workers);
  history["jobs"] = std::move(jobs);
  return history.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace lorad::client
