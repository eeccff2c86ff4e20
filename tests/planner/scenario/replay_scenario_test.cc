// Histories and loads as lorad-plan schedule reads them: what is wrong, what is drawn, what is
// printed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "planner/scenario/replay.h"
#include "planner/scenario/schedule.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;

json History() {
  return json::parse(R"({
    "models": [{"name": "m", "layers": 2, "hidden": 16, "ffn": 32, "heads": 2, "kv_heads": 1,
                "head_size": 8, "vocabulary": 64, "times": {"constant_ms": 100, "token_ms": 1}}],
    "workers": [{"name": "w", "budget_bytes": 100000000, "device": "cpu"}],
    "jobs": [{"name": "a", "base_model": "m", "rank": 8, "longest_sequence": 64,
              "step_tokens": 200, "steps": 10, "comes_s": 0}]})");
}

json Drawn(int64_t seed, int64_t jobs = 50) {
  json scenario = History();
  scenario.erase("jobs");
  scenario["load"] = {{"seed", seed},
                      {"jobs", jobs},
                      {"gap_s", 2},
                      {"burst", 3},
                      {"users", 4},
                      {"base_models", {{{"base_model", "m"}}}},
                      {"priorities", {{{"priority", 0}, {"share", 3}}, {{"priority", 5}}}},
                      {"ranks", {4, 8}},
                      {"longest_sequence", {{{"median", 64}, {"sigma", 0.5}, {"max", 128}}}},
                      {"step_tokens", {{{"median", 200}, {"sigma", 0.5}}}},
                      {"steps", {{{"median", 20}, {"sigma", 1}}}}};
  return scenario;
}

struct Case {
  std::string pointer;  // of the value that is replaced
  json value;
  std::string expected;  // stands in what is said
};

void CheckCases(const json& good, const std::vector<Case>& cases) {
  REQUIRE(CheckSchedule(good).ok());
  for (const Case& c : cases) {
    json scenario = good;
    scenario[json::json_pointer(c.pointer)] = c.value;
    const std::string said(CheckSchedule(scenario).message());
    INFO(c.pointer << " " << c.value << ": " << said);
    CHECK(said.find(c.expected) != std::string::npos);
  }
}

TEST_CASE("Bad histories") {
  CheckCases(
      History(),
      {{"/jobs", json::array(), "$.jobs: is empty, so that there is nothing"},
       {"/jobs/0/steps", 0, "$.jobs[0].steps: is 0"},
       {"/jobs/0/step_tokens", 0, "$.jobs[0].step_tokens: is 0"},
       {"/jobs/0/comes_s", -1, "$.jobs[0].comes_s: "},
       {"/jobs/0/base_model", "n", "$.jobs[0].base_model: is n, which is no model"},
       {"/jobs/1", History()["jobs"][0], "$.jobs[1].name: is another job's too"},
       {"/jobs/0/ended_s", -5, "$.jobs[0].ended_s: "},
       {"/jobs/0/moves", -1, "$.jobs[0].moves: is -1"},
       {"/jobs/0/evictions", 0.5, "$.jobs[0].evictions: is 0.5"},
       {"/jobs/0/more", 1, "$.jobs[0].more: "},
       {"/jobs/0/remaining_steps", 5, "$.jobs[0].remaining_steps: "},
       {"/workers", json::array(), "$.workers: "},
       {"/workers/0/goes_s", -1, "$.workers[0].goes_s: "},
       {"/workers/0/count", 5000, "$.workers[0].count: is 5000"},
       {"/workers/0/multiprocessors", 5000, "$.workers[0].multiprocessors: "},
       {"/models/0/times", {{"token_ms", 0}}, "$.models[0].times: say nothing of device 'cpu'"},
       {"/queue", json::array(), "$.queue: "},
       {"/policies", {{{"name", "a"}}, {{"name", "a"}}}, "is another policy's too"},
       {"/policies", {{{"name", "a"}, {"evict", 1}}}, "$.policies[0].evict: "},
       {"/policy",
        {{"points_per_hour", 3601}},
        "$.policy.points_per_hour: is 3601; give a number from 0 to 3600"},
       {"/policy", {{"minimum_run_s", 2592001}}, "$.policy.minimum_run_s: is 2592001"},
       {"/policy", {{"points_max", 1000001}}, "$.policy.points_max: is 1000001"},
       {"/policy", {{"least_gain", 1.5}}, "$.policy.least_gain: is 1.5"},
       {"/turn_s", -1, "$.turn_s: "},
       {"/look_s", 0, "$.look_s: "},
       {"/load", json::object(), "$.load: stands beside jobs; give one of them"}});
  json times = History();
  times["models"][0].erase("times");
  times["models"][0]["times_by_device"] = {{{"device", "gpu"}, {"token_ms", 1}}};
  CHECK(CheckSchedule(times).message().find("say nothing of device 'cpu'") != std::string::npos);
  json goes = History();
  goes["workers"][0]["comes_s"] = 5;
  goes["workers"][0]["goes_s"] = 4;
  CHECK(CheckSchedule(goes).message().find("$.workers[0].goes_s: is before comes_s") !=
        std::string::npos);
  json ends = History();
  ends["jobs"][0]["started_s"] = 9;
  ends["jobs"][0]["ended_s"] = 8;
  CHECK(CheckSchedule(ends).message().find("$.jobs[0].ended_s: is 8; give 9 or later") !=
        std::string::npos);
  json names = History();
  names["workers"] = {{{"name", "w-1"}, {"budget_bytes", 1}},
                      {{"name", "w"}, {"budget_bytes", 1}, {"count", 2}}};
  CHECK(CheckSchedule(names).message().find("makes another w-1") != std::string::npos);
}

// As `lora cluster --record` writes it before a job's rows are checked.
TEST_CASE("A recording without jobs says that, and what to do, alone") {
  json recording = {{"about", {"recorded"}},
                    {"recorded_policy", {{"evict", true}}},
                    {"models", json::array()},
                    {"workers", json::array()},
                    {"jobs", json::array()}};
  CHECK(CheckSchedule(recording).message() ==
        "$.jobs: is empty, so that there is nothing to replay; record again once jobs train (`lora "
        "cluster --record FILE`), give jobs, or a load to draw them from");
  recording.erase("jobs");
  for (const char* field : {"recorded_policy", "turn_s"}) {
    INFO(field);
    CHECK(CheckSchedule(recording).message() ==
          "$.jobs: is missing, so that there is nothing to replay; record again once jobs train "
          "(`lora cluster --record FILE`), give jobs, or a load to draw them from");
    recording.erase("recorded_policy");
    recording["turn_s"] = 2;
  }
}

TEST_CASE("Bad loads") {
  CheckCases(Drawn(1), {{"/load/jobs", 0, "$.load.jobs: is 0"},
                        {"/load/jobs", 100001, "$.load.jobs: is 100001"},
                        {"/load/gap_s", -1, "$.load.gap_s: "},
                        {"/load/burst", 0.5, "$.load.burst: "},
                        {"/load/base_models/0/base_model", "n", "which is no model"},
                        {"/load/base_models/0/share", 0, "$.load.base_models[0].share: is 0"},
                        {"/load/ranks", json::array(), "$.load.ranks: "},
                        {"/load/ranks/0", 0, "$.load.ranks[0]: is 0"},
                        {"/load/steps/0/sigma", -1, "$.load.steps[0].sigma: "},
                        {"/load/longest_sequence/0/min", 129, "$.load.longest_sequence[0].min: "},
                        {"/load/alone_s", {{{"median", 9}, {"sigma", 0}}}, "stands beside steps"},
                        {"/load/more", 1, "$.load.more: "}});
}

TEST_CASE("A job that takes too long is refused, and says on which worker") {
  json slow = History();
  slow["jobs"][0]["steps"] = int64_t{1} << 31;
  CHECK(CheckSchedule(slow).ok());  // 20 years
  slow["workers"].push_back(slow["workers"][0]);
  slow["workers"][1]["name"] = "snail";
  slow["workers"][1]["slowness"] = 100;
  CHECK(CheckSchedule(slow).message() ==
        "$.jobs[0].steps: is 2147483648, with which it trains for 6.44e+10 s alone on worker "
        "snail; give fewer steps, or times and slowness with which it ends within 1e+10 s");
  json drawn = Drawn(1);
  drawn["workers"] = slow["workers"];
  drawn["load"]["steps"][0] = {{"median", int64_t{1} << 31}, {"sigma", 0}};
  const auto result = RunSchedule(drawn);
  CHECK(result.status().message().find("$.load: draws job j1 of 2147483648 steps, with which it "
                                       "trains for ") == 0);
}

TEST_CASE("The same seed gives the same bytes, another one others") {
  const auto first = RunSchedule(Drawn(1));
  const auto again = RunSchedule(Drawn(1));
  const auto other = RunSchedule(Drawn(2));
  REQUIRE(first.ok());
  CHECK(first->text == again->text);
  CHECK(first->json.dump() == again->json.dump());
  CHECK(first->json.dump() != other->json.dump());
}

TEST_CASE("A replay's table") {
  json scenario = History();
  scenario["policies"] = {{{"name", "ours"}}, {{"name", "still"}, {"rebalance", false}}};
  scenario["jobs"][0]["started_s"] = 1;
  scenario["jobs"][0]["ended_s"] = 11;
  const auto result = RunSchedule(scenario);
  REQUIRE(result.ok());
  const auto& replays = result->json["replays"];
  REQUIRE(replays.size() == 5);
  const char* const names[] = {"ours", "still", "first come first served", "one group a base model",
                               "recorded"};
  for (size_t i = 0; i < 5; ++i) {
    CHECK(replays[i]["policy"] == names[i]);
    CHECK(replays[i]["mean_completion_s"].get<double>() == Approx(i == 4 ? 11 : 3));
    CHECK(result->text.find(names[i]) != std::string::npos);
  }
  scenario["baselines"] = false;
  scenario["jobs"][0].erase("ended_s");
  scenario["jobs"][0]["longest_sequence"] = 1000000;
  const auto never = RunSchedule(scenario);
  REQUIRE(never.ok());
  CHECK(never->json["replays"].size() == 2);
  CHECK(never->text.find("1 job never ended, as no worker alone has room, and several are not "
                         "replayed: a\n") != std::string::npos);
  scenario["workers"][0]["goes_s"] = 0.5;
  scenario["jobs"].push_back(scenario["jobs"][0]);
  scenario["jobs"][1].update({{"name", "b"}, {"longest_sequence", 64}});
  const auto gone = RunSchedule(scenario);
  REQUIRE(gone.ok());
  CHECK(
      gone->text.ends_with("\n1 job never ended, as no worker alone has room, and several are not "
                           "replayed: a\n1 job never ended, as the workers that have room had "
                           "gone (goes_s): b\n"));
}

TEST_CASE("A recorded history says under which settings, and what it does not know") {
  json scenario = History();
  scenario["jobs"][0]["started_s"] = 1;
  scenario["jobs"][0]["ended_s"] = 11;
  scenario["baselines"] = false;
  const auto old = RunSchedule(scenario);
  REQUIRE(old.ok());
  CHECK(old->text.find("recorded under settings that the file does not have\n") !=
        std::string::npos);
  CHECK_FALSE(old->json.contains("recorded_policy"));
  const auto& unknown = old->json["replays"][1];
  CHECK(unknown["policy"] == "recorded");
  for (const char* field : {"idle_share", "tokens_per_training_second", "moves", "preemptions",
                            "groups", "reforms", "turns"}) {
    CHECK(unknown[field].is_null());
    CHECK_FALSE(old->json["replays"][0][field].is_null());
  }
  const size_t row = old->text.find("\nrecorded  ");
  REQUIRE(row != std::string::npos);
  std::istringstream cells(old->text.substr(row));
  const std::vector<std::string> read{std::istream_iterator<std::string>(cells), {}};
  CHECK(read == std::vector<std::string>{"recorded", "11", "11", "1", "1", "-", read[6], "-", "-",
                                         "-", "-"});
  scenario["jobs"].push_back(scenario["jobs"][0]);  // one that does not say it, and one that does
  scenario["jobs"][1].update({{"name", "b"}, {"moves", 3}, {"evictions", 0}});
  const auto counted = RunSchedule(scenario);
  REQUIRE(counted.ok());
  CHECK(counted->json["replays"][1]["moves"] == 3);
  CHECK(counted->json["replays"][1]["preemptions"] == 0);
  CHECK(counted->json["replays"][1]["groups"].is_null());
  CHECK(counted->text.find("           -      3        0       -\n") != std::string::npos);
  const auto half = std::string("the row recorded is of the 2 of 3 jobs that had ended");
  CHECK(counted->json["recorded_jobs"] == 2);
  CHECK(counted->text.find(half) == std::string::npos);
  json partly = scenario;
  partly["jobs"].push_back(scenario["jobs"][0]);
  partly["jobs"][2]["name"] = "c";
  for (const char* field : {"started_s", "ended_s"}) partly["jobs"][2].erase(field);
  const auto live = RunSchedule(partly);
  REQUIRE(live.ok());
  CHECK(live->json["recorded_jobs"] == 2);
  CHECK(live->text.find(half) != std::string::npos);
  scenario["recorded_policy"] = {{"evict", false}, {"fair_share", true}, {"share_label", "team"}};
  const auto recorded = RunSchedule(scenario);
  REQUIRE(recorded.ok());
  CHECK(recorded->json["recorded_policy"]["evict"] == false);
  CHECK(recorded->json["recorded_policy"]["share_label"] == "team");
  CHECK(recorded->text.find("recorded under evict false, minimum_run_s 900, points_per_hour 1.0, "
                            "points_max 4.0, fair_share true, least_gain 0.0, rebalance true, "
                            "least_share 0.02, by the label team\n") != std::string::npos);
}

TEST_CASE("A history is replayed under what it was recorded under, where nothing else is said") {
  json scenario = History();
  scenario["recorded_policy"] = {{"evict", false}, {"minimum_run_s", 7}};
  const auto as_recorded = ReadReplay(scenario);
  REQUIRE(as_recorded.ok());
  REQUIRE(as_recorded->policies.size() == 1);
  CHECK_FALSE(as_recorded->policies[0].policy.evict);
  CHECK(as_recorded->policies[0].policy.minimum_run_s == 7);
  scenario["policy"] = {{"minimum_run_s", 9}};
  const auto other = ReadReplay(scenario);
  REQUIRE(other.ok());
  CHECK(other->policies[0].policy.evict);
  CHECK(other->policies[0].policy.minimum_run_s == 9);
  scenario.erase("policy");
  scenario["policies"] = {{{"name", "ours"}}};
  const auto several = ReadReplay(scenario);
  REQUIRE(several.ok());
  REQUIRE(several->policies.size() == 1);
  CHECK(several->policies[0].policy.evict);
  scenario["recorded_policy"]["evcit"] = true;
  CHECK(CheckSchedule(scenario).message().find("$.recorded_policy.evcit: ") != std::string::npos);
}

TEST_CASE("What is drawn follows what was asked for") {
  const auto read = ReadReplay(Drawn(3, 20000));
  REQUIRE(read.ok());
  const auto jobs = DrawJobs(*read->load);
  REQUIRE(jobs.size() == 20000);
  double urgent = 0, steps_log = 0, together = 0;
  for (size_t j = 0; j < jobs.size(); ++j) {
    urgent += jobs[j].content.priority == 5;
    steps_log += std::log(static_cast<double>(jobs[j].content.remaining_steps) + 0.5);
    if (j == 0) continue;
    REQUIRE(jobs[j].comes_s >= jobs[j - 1].comes_s);
    together += jobs[j].comes_s == jobs[j - 1].comes_s;
  }
  CHECK(jobs.back().comes_s / 20000 == Approx(2).epsilon(0.05));
  CHECK(urgent / 20000 == Approx(0.25).epsilon(0.06));
  CHECK(together / 20000 == Approx(2.0 / 3).epsilon(0.03));  // a burst of three in the mean
  CHECK(std::exp(steps_log / 20000) == Approx(20).epsilon(0.05));
  // Seconds alone become steps: 300 ms each at 200 tokens.
  json alone = Drawn(3);
  alone["load"].erase("steps");
  alone["load"]["alone_s"] = {{{"median", 30}, {"sigma", 0}}};
  alone["load"]["step_tokens"] = {{{"median", 200}, {"sigma", 0}}};
  const auto timed = ReadReplay(alone);
  REQUIRE(timed.ok());
  CHECK(DrawJobs(*timed->load)[0].content.remaining_steps == 100);
}

}  // namespace
}  // namespace lorad::planner::scenario
