// What `lora cluster --record` writes, read by the planner that replays it.
#include "client/record.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "planner/scenario/fields.h"
#include "planner/scenario/replay.h"

namespace lorad::client {
namespace {

using nlohmann::json;
using v1::Job;
using v1::Worker;

constexpr std::int64_t kStart = 1'800'000'000;  // of the coordinator
const char kKey[] = "NVIDIA H100/1/132/2/abc";

v1::Model Model() {
  v1::Model model;
  model.set_name("small");
  model.set_layers(2);
  model.set_hidden_size(16);
  model.set_feed_forward_size(32);
  model.set_attention_heads(2);
  model.set_key_value_heads(1);
  model.set_head_size(8);
  model.set_vocabulary_size(64);
  model.set_tied_head(true);
  model.set_fused_projections(true);
  model.set_input_norms(false);
  model.set_output_norms(true);
  model.set_query_norm_size(16);
  model.set_key_norm_size(8);
  v1::Model::Rope& rope = *model.add_ropes();
  rope.set_features(6);
  rope.set_border_tokens(32);
  return model;
}

v1::ClusterStatus Cluster() {
  v1::ClusterStatus cluster;
  cluster.mutable_start_time()->set_seconds(kStart);
  v1::TrainingTimes& times = *cluster.add_times();
  times.set_base_model("small");
  times.set_device_key(kKey);
  times.set_constant_ms(6);
  times.set_token_ms(0.5);
  times.set_squared_ms(1e-4);
  times.set_adapter_ms(1e-7);
  times.set_load_seconds(3);
  return cluster;
}

Job Created(const std::string& name, std::int64_t after_s) {
  Job job;
  job.set_name(name);
  job.set_base_model("small");
  job.mutable_adapter()->set_rank(8);
  job.mutable_adapter()->add_target_modules("qkv_proj");
  job.mutable_training()->set_max_length(512);
  job.mutable_training()->set_checkpoint_every_steps(25);
  job.mutable_create_time()->set_seconds(kStart + after_s);
  job.set_total_steps(100);
  job.set_total_tokens(20'000);
  job.set_total_squared_lengths(5e6);
  job.set_longest_tokens(300);
  job.set_priority(3);
  (*job.mutable_labels())["team"] = "math";
  return job;
}

Job Ended(Job job, Job::State state, std::int64_t step) {
  job.set_state(state);
  job.set_step(step);
  *job.mutable_start_time() = job.create_time();
  job.mutable_start_time()->set_seconds(job.create_time().seconds() + 10);
  job.mutable_end_time()->set_seconds(job.create_time().seconds() + 60);
  return job;
}

Worker Connected(const std::string& name, std::int64_t after_s) {
  Worker worker;
  worker.set_name(name);
  worker.set_state(Worker::IDLE);
  worker.set_device("cuda:0");
  worker.set_device_key(kKey);
  worker.set_memory_bytes(1'000'000'000);
  worker.set_threads(1);
  worker.set_multiprocessors(132);
  worker.set_value_bytes(2);
  worker.mutable_connect_time()->set_seconds(kStart + after_s);
  return worker;
}

v1::ListWorkersResponse Workers(const std::vector<Worker>& workers) {
  v1::ListWorkersResponse response;
  for (const Worker& worker : workers) *response.add_workers() = worker;
  return response;
}

planner::scenario::ReplayScenario Read(const Record& record) {
  const auto parsed = planner::scenario::ParseScenario(record.ToText());
  REQUIRE(parsed.ok());
  auto read = planner::scenario::ReadReplay(*parsed);
  INFO(read.status());
  REQUIRE(read.ok());
  return *std::move(read);
}

// Of Model().
void CheckShape(const planner::ModelShape& shape) {
  CHECK(shape.ffn == 32);
  CHECK(shape.groups[0].parts[0].target == "qkv_proj");
  CHECK(shape.groups[0].parts[0].out_features == 16 + 2 * 8);
  CHECK(shape.groups[2].parts[0].target == "gate_up_proj");
  CHECK(shape.groups[2].parts[0].out_features == 2 * 32);
  CHECK(!shape.in_norm);
  CHECK(shape.out_norm);
  CHECK(shape.q_norm == 16);
  CHECK(shape.k_norm == 8);
  CHECK(shape.ropes == std::vector<planner::ModelShape::RopeTable>{{6, 32}});
}

TEST_CASE("A recorded history is read back") {
  Record record("team");
  record.Take(Model());
  record.Take(Cluster());
  Worker slow = Connected("slow", 5);
  slow.set_relative_speed(0.4);
  record.Take(Workers({Connected("gpu", 5), slow}), kStart + 200);
  record.Take(Created("job-b", 150));
  record.Take(Ended(Created("job-a", 100), Job::SUCCEEDED, 100));
  const auto read = Read(record);
  CHECK_FALSE(read.recorded.has_value());  // an older coordinator does not say it
  const planner::History& history = read.history;
  REQUIRE(history.jobs.size() == 2);
  const planner::HistoryJob& a = history.jobs[0];
  CHECK(a.content.job == "job-a");
  CHECK(a.content.remaining_steps == 100);
  CHECK(a.content.step_tokens == 200);
  CHECK(a.content.step_squared_lengths == 50'000);
  CHECK(a.content.longest_sequence == 300);
  CHECK(*a.content.adapter == planner::AdapterShape(8, {"qkv_proj"}));
  CHECK(a.content.priority == 3);
  CHECK(a.content.label_group == "math");
  CheckShape(*a.content.model);
  CHECK(a.checkpoint_steps == 25);
  CHECK(a.comes_s == 0);
  CHECK(a.started_s == 10);
  CHECK(a.ended_s == 60);
  CHECK(history.jobs[1].comes_s == 50);
  CHECK(!history.jobs[1].started_s);
  REQUIRE(history.workers.size() == 2);
  CHECK(history.workers[0].view.slowness == 1);
  CHECK(history.workers[1].view.slowness == 2.5);
  CHECK(history.workers[0].view.device.kind == planner::DeviceKind::kCuda);
  CHECK(history.workers[0].view.device.value_bytes == 2);
  CHECK(history.workers[0].comes_s == 0);  // it was there when the coordinator started
  CHECK(history.workers[0].goes_s == planner::kNever);
  CHECK(history.times.at({"small", kKey}).token_ms == 0.5);
  CHECK(history.times.at({"small", kKey}).squared_ms == 1e-4);
  CHECK(history.times.at({"small", kKey}).adapter_ms == 1e-7);
  CHECK(history.load_s.at({"small", kKey}) == 3);
}

TEST_CASE("Of a job with patterns each projection's ranks and layers are recorded") {
  Record record("");
  record.Take(Model());
  record.Take(Cluster());
  record.Take(Workers({Connected("gpu", 5)}), kStart + 200);
  Job job = Created("job-a", 100);
  job.mutable_adapter()->clear_target_modules();
  job.mutable_adapter()->set_target_regex(".*_proj");
  planner::AdapterShape expected;
  for (const auto& [target, rank, layers] :
       {std::tuple("qkv_proj", 4, 1), {"o_proj", 16, 0}, {"qkv_proj", 8, 1}}) {
    v1::AdapterModules& modules = *job.mutable_adapter()->add_modules();
    modules.set_target(target);
    modules.set_rank(rank);
    for (int i = 0; i < layers; ++i) modules.add_layers(i);
    expected.parts.push_back({target, rank, layers});
  }
  record.Take(job);
  CHECK(*Read(record).history.jobs.at(0).content.adapter == expected);
}

TEST_CASE("The settings that decided are recorded, and whose values share") {
  v1::ClusterStatus cluster = Cluster();
  v1::SchedulingPolicy& policy = *cluster.mutable_policy();
  policy.set_rebalance(true);
  policy.set_minimum_run_seconds(60);
  policy.set_points_per_hour(2);
  policy.set_points_max(3);
  policy.set_least_gain(0.25);
  policy.set_least_share(0.5);
  policy.set_share_label("team");
  policy.set_microbatch_tokens(512);
  Record record("");
  record.Take(Model());
  record.Take(cluster);
  record.Take(Workers({Connected("gpu", 5)}), kStart + 200);
  record.Take(Created("job-a", 100));
  const auto read = Read(record);
  REQUIRE(read.recorded.has_value());
  CHECK(read.recorded->share_label == "team");
  const planner::SchedulePolicy& recorded = read.recorded->policy;
  CHECK_FALSE(recorded.evict);
  CHECK(recorded.rebalance);
  CHECK(recorded.fair_share);
  CHECK(recorded.minimum_run_s == 60);
  CHECK(recorded.points_per_hour == 2);
  CHECK(recorded.points_max == 3);
  CHECK(recorded.least_gain == 0.25);
  CHECK(recorded.least_share == 0.5);
  CHECK(read.history.microbatch_tokens == 512);
  CHECK(read.history.jobs.at(0).content.label_group == "math");  // by the coordinator's label

  Record by_user("user");
  by_user.Take(Model());
  by_user.Take(cluster);
  by_user.Take(Workers({Connected("gpu", 5)}), kStart + 200);
  by_user.Take(Created("job-a", 100));
  CHECK(Read(by_user).history.jobs.at(0).content.label_group.empty());
}

TEST_CASE("It is said where who shares is not who shares by the daemon") {
  v1::ClusterStatus cluster = Cluster();
  const auto notes = [&](const std::string& label) {
    Record record(label);
    record.Take(cluster);
    record.Take(Created("job-a", 100));  // of a team
    return record.ShareNotes();
  };
  using Lines = std::vector<std::string>;
  CHECK(notes("team").empty());  // an older coordinator does not say its own
  cluster.mutable_policy();
  CHECK(notes("").empty());
  CHECK(notes("team") == Lines{"the daemon shares by no label (lorad serve --share-label), the "
                               "history has who shares by 'team'"});
  cluster.mutable_policy()->set_share_label("user");
  CHECK(notes("team") == Lines{"the daemon shares by the label 'user' (lorad serve "
                               "--share-label), the history has who shares by 'team'"});
  CHECK(notes("user") == Lines{"no job has the label 'user'"});
  cluster.mutable_policy()->set_share_label("team");
  CHECK(notes("team").empty());
}

TEST_CASE("Moves and evictions are counted, of jobs that left a group") {
  Record record("");
  record.Take(Model());
  record.Take(Cluster());
  record.Take(Workers({Connected("gpu", 5)}), kStart + 200);
  const auto placed = [&](const std::string& name, Job::State state, int attempts) {
    Job job = Ended(Created(name, 100), state, 50);
    job.set_attempts(attempts);
    record.Take(job);
  };
  using Names = std::vector<std::string>;
  placed("job-still", Job::RUNNING, 1);
  placed("job-moved", Job::RUNNING, 2);
  placed("job-evicted", Job::QUEUED, 1);
  record.Take(Created("job-new", 150));
  CHECK(record.JobsThatLeft() == Names{"job-evicted", "job-moved"});
  v1::Event moved, evicted, other;
  moved.set_reason("MOVED");
  evicted.set_reason("EVICTED");
  other.set_reason("CREATED");
  record.Take("job-evicted", {other, evicted});
  record.Take("job-moved", {other, moved});
  CHECK(record.JobsThatLeft().empty());
  placed("job-moved", Job::RUNNING, 3);
  CHECK(record.JobsThatLeft() == Names{"job-moved"});
  record.Take("job-moved", {other, moved, evicted, moved});
  placed("job-moved", Job::SUCCEEDED, 3);
  record.Take("job-moved", {});  // it was deleted meanwhile
  CHECK(record.JobsThatLeft().empty());
  using Counts = std::tuple<std::string, std::optional<int64_t>, std::optional<int64_t>>;
  std::vector<Counts> counts;
  for (const planner::HistoryJob& job : Read(record).history.jobs) {
    counts.emplace_back(job.content.job, job.moves, job.evictions);
  }
  CHECK(counts == std::vector<Counts>{{"job-evicted", 0, 1},
                                      {"job-moved", 2, 1},
                                      {"job-new", std::nullopt, std::nullopt},
                                      {"job-still", 0, 0}});
}

TEST_CASE("Jobs are taken as far as they came") {
  Record record("");
  record.Take(Model());
  record.Take(Cluster());
  record.Take(Workers({Connected("gpu", 5)}), kStart + 200);
  record.Take(Ended(Created("job-failed", 0), Job::FAILED, 40));
  record.Take(Ended(Created("job-cancelled", 0), Job::CANCELLED, 0));
  Job finished = Ended(Created("job-finished", 0), Job::SUCCEEDED, 60);  // by its user
  finished.set_finish_step(60);
  record.Take(finished);
  finished.set_name("job-finishing");
  finished.set_state(Job::FINALIZING);
  finished.set_step(59);
  record.Take(finished);
  Job unknown = Created("job-validating", 0);
  unknown.set_total_steps(0);
  record.Take(unknown);
  Job strange = Created("job-strange", 0);
  strange.set_base_model("gone");
  record.Take(strange);
  Job old = Created("job-old", 0);
  old.set_longest_tokens(0);
  record.Take(old);
  const auto read = Read(record);
  REQUIRE(read.history.jobs.size() == 4);
  CHECK(read.history.jobs[0].content.job == "job-failed");
  CHECK(read.history.jobs[0].content.remaining_steps == 40);
  CHECK(read.history.jobs[0].content.label_group.empty());
  CHECK(read.history.jobs[1].content.job == "job-finished");
  CHECK(read.history.jobs[1].content.remaining_steps == 60);
  CHECK(read.history.jobs[1].content.step_tokens == 200);  // 20,000 of 100 were asked for
  CHECK(read.history.jobs[2].content.job == "job-finishing");
  CHECK(read.history.jobs[2].content.remaining_steps == 60);
  CHECK(read.history.jobs[3].content.longest_sequence == 512);  // an older release did not say
}

TEST_CASE("A clock that is set back makes no moment come before another") {
  Record record("");
  record.Take(Model());
  record.Take(Cluster());
  record.Take(Workers({Connected("early", 5), Connected("w", 500)}), kStart + 600);
  Job job = Ended(Created("job-a", 400), Job::SUCCEEDED, 100);
  job.mutable_start_time()->set_seconds(kStart - 3000);
  job.mutable_end_time()->set_seconds(kStart - 2000);
  record.Take(job);
  Job again = Ended(Created("job-b", -3500), Job::SUCCEEDED, 100);
  again.mutable_end_time()->set_seconds(kStart - 3495);  // before it started, by another step back
  record.Take(again);
  Worker lost = Connected("w", 500);
  lost.set_state(Worker::LOST);
  record.Take(Workers({Connected("early", 5), lost}), kStart - 2000);
  record.Take(Workers({Connected("early", 5), Connected("w", -1000)}), kStart - 900);
  const planner::History history = Read(record).history;
  REQUIRE(history.jobs.size() == 2);
  for (const planner::HistoryJob& one : history.jobs) {
    CHECK(one.comes_s >= 0);
    CHECK(one.started_s >= one.comes_s);
    CHECK(one.ended_s >= one.started_s);
  }
  REQUIRE(history.workers.size() == 3);
  CHECK(history.workers[0].comes_s == 0);
  CHECK(history.workers[1].comes_s == 4000);
  CHECK(history.workers[1].goes_s == 4000);
  CHECK(history.workers[2].comes_s == 4000);
  CHECK(history.workers[2].goes_s == planner::kNever);
}

TEST_CASE("Workers come, go, come back, and are drained") {
  Record record("");
  record.Take(Model());
  record.Take(Cluster());
  record.Take(Created("job-a", 100));
  const auto at = [&](std::int64_t after_s, const std::vector<Worker>& workers) {
    record.Take(Workers(workers), static_cast<double>(kStart + after_s));
  };
  Worker lost = Connected("w", 5);
  lost.set_state(GENERATE(Worker::LOST, Worker::AWAITED));
  Worker drained = Connected("v", 300);
  drained.set_state(Worker::DRAINED);
  drained.set_drained(true);
  at(150, {Connected("w", 5)});
  at(350, {lost, Connected("v", 300)});
  at(500, {Connected("w", 450), drained});
  at(600, {Connected("w", 550), Connected("v", 300)});  // w was lost unseen, v is undrained
  const auto read = Read(record);
  struct Expected {
    std::string name;
    double comes_s, goes_s;
  };
  const Expected expected[] = {{"v", 200, 400},
                               {"v/2", 500, planner::kNever},
                               {"w", 0, 250},
                               {"w/2", 350, 450},
                               {"w/3", 450, planner::kNever}};
  REQUIRE(read.history.workers.size() == std::size(expected));
  for (size_t i = 0; i < std::size(expected); ++i) {
    const planner::HistoryWorker& worker = read.history.workers[i];
    INFO(expected[i].name);
    CHECK(worker.view.name == expected[i].name);
    CHECK(worker.comes_s == expected[i].comes_s);
    CHECK(worker.goes_s == expected[i].goes_s);
  }
}

}  // namespace
}  // namespace lorad::client
