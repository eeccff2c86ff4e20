// What lorad-plan sweep and schedule say to what is wrong, and what they print.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "planner/scenario/schedule.h"
#include "planner/scenario/sweep.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;

json Sweep() {
  return json::parse(R"({
    "gpus": 2,
    "costs": {"base_bytes": 2, "rank_bytes": 1, "gpu_bytes": 12, "iteration_s": 1, "sample_s": 0.1,
              "degrees": [{"gpus": 1}, {"gpus": 2}]},
    "configurations": [{"name": "a", "rank": 8, "batch": 1, "steps": 4},
                       {"name": "b", "rank": 2, "batch": 1, "steps": 2},
                       {"name": "c", "rank": 2, "batch": 1, "steps": 2}]})");
}

json Schedule() {
  return json::parse(R"({
    "models": [{"name": "m", "layers": 2, "hidden": 16, "ffn": 32, "heads": 2, "kv_heads": 1,
                "head_size": 8, "vocabulary": 64}],
    "workers": [{"name": "w", "budget_bytes": 100000000}],
    "groups": [{"name": "g", "base_model": "m", "worker": "w", "longest_sequence": 64,
                "jobs": [{"name": "a", "rank": 8, "arrival": 1}]}],
    "queue": [{"name": "b", "base_model": "m", "rank": 8, "arrival": 2, "longest_sequence": 64}]})");
}

struct Case {
  std::string pointer;  // of the value that is replaced
  json value;
  std::string expected;  // stands in what is said
};

template <class Check>
void CheckCases(const json& good, const std::vector<Case>& cases, Check check) {
  REQUIRE(check(good).ok());
  for (const Case& c : cases) {
    json scenario = good;
    scenario[json::json_pointer(c.pointer)] = c.value;
    const std::string said(check(scenario).message());
    INFO(c.pointer << " " << c.value << ": " << said);
    CHECK(said.find(c.expected) != std::string::npos);
  }
}

TEST_CASE("Bad sweeps") {
  CheckCases(Sweep(),
             {{"/gpus", 0, "$.gpus: "},
              {"/gpus", 1e300, "$.gpus: "},
              {"/costs/iteration_s", 0, "$.costs.iteration_s: "},
              {"/costs/base_bytes", -1, "$.costs.base_bytes: "},
              {"/costs/load_factor", 1.5, "$.costs.load_factor: "},
              {"/costs/degrees/1/gpus", 3, "$.costs.degrees[1].gpus: is 3; give rising powers"},
              {"/costs/degrees/0/gpus", 4, "$.costs.degrees[0].gpus: "},
              {"/costs/degrees", json::array(), "$.costs.degrees: "},
              {"/configurations/1/rank", 0, "$.configurations[1].rank: "},
              {"/configurations/1/steps", 9e15, "$.configurations[1].steps: "},
              {"/configurations/1/name", "a", "is another configuration's too"},
              {"/configurations/1/rank", 400, "fits no degree"},
              {"/grid", json::object(), "stands beside grid"},
              {"/early_exit", json::object(), "has no curve of a"},
              {"/early_exit", {{"modelled", json::object()}}, "need a learning rate"},
              {"/early_exit", {{"keep_share", 0}}, "$.early_exit.keep_share: "},
              {"/more", 1, "$.more: "}},
             CheckSweep);
  json grid = Sweep();
  grid.erase("configurations");
  CHECK(!CheckSweep(grid).ok());
  grid["grid"] = {{"ranks", {8}}, {"batches", {1, 2}}, {"samples", 10}};
  CHECK(CheckSweep(grid).ok());
  grid["grid"]["steps"] = 10;
  CHECK(CheckSweep(grid).message().find("$.grid.samples: ") != std::string::npos);
  grid["grid"] = {{"ranks", json(std::vector<int>(1000, 8))},
                  {"batches", json(std::vector<int>(1000, 1))},
                  {"samples", 10}};
  CHECK(CheckSweep(grid).message().find("configurations; give at most") != std::string::npos);
}

TEST_CASE("A sweep's plan") {
  const auto result = RunSweep(Sweep());
  REQUIRE(result.ok());
  CHECK(result->text.substr(0, result->text.find('\n')) ==
        "3 configurations of 2 kinds on 2 GPUs; one each: 4.4 s");
  CHECK(result->json["plan"]["makespan_s"].get<double>() == Approx(4.4));
  CHECK(result->json["rules"].size() == 2);
  CHECK(result->timeline.has_value());
  json early = Sweep();
  early["early_exit"] = {{"warmup_share", 0.5}};
  for (json& c : early["configurations"]) c["validation"] = {2.0, 1.0};
  early["configurations"][1]["validation"] = {1.5, 0.5};
  const auto exits = RunSweep(early);
  REQUIRE(exits.ok());
  CHECK(exits->json["early_exit"]["samples_used"] == 5);
  CHECK(exits->json["early_exit"]["best_loss_kept"] == 0.5);
}

TEST_CASE("Bad schedules") {
  CheckCases(Schedule(),
             {{"/models", json::array(), "$.models: "},
              {"/models/0/layers", -3, "$.models[0].layers: "},
              {"/groups/0/base_model", "n", "$.groups[0].base_model: is n, which is no model"},
              {"/groups/0/worker", "v", "$.groups[0].worker: is v, which is no worker"},
              {"/groups/0/capacity_tokens", 63, "$.groups[0].capacity_tokens: "},
              {"/groups/0/jobs/0/targets", {"x_proj"}, "$.groups[0].jobs[0].targets[0]: "},
              {"/groups/1", Schedule()["groups"][0], "is another job's too"},
              {"/queue/0/name", "a", "$.queue[0].name: is another job's too"},
              {"/queue/0/rank", 513, "$.queue[0].rank: "},
              {"/queue/0/evaluations", {{"parts", -1}}, "$.queue[0].evaluations.parts: "},
              {"/groups/0/jobs/0/evaluations", {{"sets", 1}}, "jobs[0].evaluations.sets: "},
              {"/workers/0/doubtful", 1, "$.workers[0].doubtful: "},
              {"/workers/0/slowness", 0, "$.workers[0].slowness: "},
              {"/queue/0/longest_sequence", 1e12, "$.queue[0].longest_sequence: "},
              {"/policy", {{"points_max", -1}}, "$.policy.points_max: "}},
             CheckSchedule);
}

TEST_CASE("A schedule knows of evaluations, and of workers that are slow or nobody waits for") {
  json scenario = Schedule();
  scenario["groups"][0]["jobs"][0]["evaluations"] = {{"parts", 3}, {"tokens", 700}};
  scenario["queue"][0]["evaluations"] = {{"parts", 5}, {"tokens", 900}};
  scenario["workers"].push_back({{"name", "v"}, {"budget_bytes", 100000000}, {"doubtful", true}});
  scenario["workers"][0]["doubtful"] = true;
  scenario["workers"][0]["slowness"] = 2.5;
  const auto view = ReadSchedule(scenario);
  REQUIRE(view.ok());
  CHECK(view->groups[0].running[0].evaluations == EvaluationWork{3, 700});
  CHECK(view->queue[0].evaluations == EvaluationWork{5, 900});
  CHECK(view->workers[0].doubtful);
  CHECK(view->workers[0].slowness == 2.5);
  CHECK(view->workers[1].slowness == 1);
  CHECK_FALSE(view->workers[1].idle);
}

TEST_CASE("What is wrong in one place of a schedule hides nothing in another") {
  json scenario = Schedule();
  scenario["models"].push_back(scenario["models"][0]);
  scenario["workers"].push_back(scenario["workers"][0]);
  scenario["workers"][1]["threads"] = 0;
  scenario["groups"].push_back({{"name", "g"}, {"worker", "v"}, {"longest_sequence", 8}});
  scenario["queue"].push_back(scenario["queue"][0]);
  scenario["queue"][1]["base_model"] = "n";
  scenario["queue"][1]["rank"] = 0;
  CHECK(CheckSchedule(scenario).message() ==
        "$.models[1].name: is another model's too; give each its own name\n"
        "$.workers[1].name: is another worker's too; give each its own name\n"
        "$.workers[1].threads: is 0; give a whole number from 1 to 1024\n"
        "$.groups[1].name: is another group's too; give each its own name\n"
        "$.groups[1].base_model: is missing; give a text of 1 to 200 bytes\n"
        "$.groups[1].worker: is v, which is no worker; name one of workers\n"
        "$.queue[1].name: is another job's too; give each its own name\n"
        "$.queue[1].base_model: is n, which is no model; name one of models\n"
        "$.queue[1].rank: is 0; give a whole number from 1 to 512");
}

TEST_CASE("Who would have which blocks of a model on several workers") {
  json several = Schedule();
  several["groups"] = json::array();
  several["queue"][0]["stages"] = 2;
  json second = several["workers"][0];
  second["name"] = "second";
  several["workers"].push_back(second);
  for (json& worker : several["workers"]) worker["numerics_id"] = "n";
  const auto result = RunSchedule(several);
  REQUIRE(result.ok());
  INFO(result->text);
  const auto& decision = result->json["decisions"][0];
  REQUIRE(decision["kind"] == "form");
  REQUIRE(decision["stages"].size() == 2);
  CHECK(decision["stages"][0]["first_block"] == 0);
  CHECK(decision["stages"][0]["end_block"] == decision["stages"][1]["first_block"]);
  CHECK(decision["stages"][0]["worker"] == decision["worker"]);
  several["queue"][0]["stages"] = 17;
  CHECK(!RunSchedule(several).ok());
}

TEST_CASE("A schedule's decisions") {
  const auto result = RunSchedule(Schedule());
  REQUIRE(result.ok());
  CHECK(result->text == "admit g: b\n");
  CHECK(result->json["decisions"][0]["kind"] == "admit");
  json tight = Schedule();
  tight["workers"][0]["budget_bytes"] = 22000000;  // one of the two
  tight["queue"][0]["rank"] = 256;
  tight["groups"][0]["jobs"][0]["rank"] = 256;
  tight["queue"][0]["priority"] = 1;
  tight["policy"]["evict"] = true;
  const auto evicted = RunSchedule(tight);
  REQUIRE(evicted.ok());
  INFO(evicted->text);
  CHECK(evicted->json["decisions"][0]["kind"] == "evict");
  CHECK(evicted->json["decisions"][0]["for"] == "b");
}

}  // namespace
}  // namespace lorad::planner::scenario
