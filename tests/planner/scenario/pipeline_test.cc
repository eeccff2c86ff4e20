#include "planner/scenario/pipeline.h"

#include <catch2/catch.hpp>

#include "planner/scenario/pack.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;

json Good() {
  return json::parse(R"({
    "stages": 2, "capacity": 100,
    "model": {"layers": 2, "attention": {"forward": {"token_ms": 1}, "backward": {"token_ms": 1}},
              "mlp": {"forward": {"token_ms": 2}, "backward": {"token_ms": 2}}},
    "adapters": [{"name": "a", "batches": [[50, 60], [70]]},
                 {"name": "b", "draw": {"seed": 1, "batches": 2, "global_batch": 3,
                                        "kinds": [{"median": 30, "sigma": 0.5}]}}]})");
}

// The good scenario with `value` at `path` ("" removes it), as its violations.
std::string Errors(const std::string& path, const std::string& value) {
  json scenario = Good();
  const json::json_pointer pointer(path);
  if (value.empty()) {
    scenario[pointer.parent_pointer()].erase(pointer.back());
  } else {
    scenario[pointer] = json::parse(value);
  }
  return std::string(CheckPipeline(scenario).message());
}

TEST_CASE("Sound") {
  CHECK(CheckPipeline(Good()).message() == "");
  const auto result = RunPipeline(Good());
  REQUIRE(result.ok());
  CHECK(result->timeline.has_value());
  CHECK(result->json["stages"].size() == 2);
  CHECK(result->json["microbatches"].size() > 2);
  CHECK(result->text.find("group 0: a") == 0);
}

TEST_CASE("Transfers that block on both sides") {
  json scenario = Good();
  scenario["buffers"] = {{"receive", 0}, {"send", 0}};
  const absl::Status status = RunPipeline(scenario).status();
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(status.message().find("the lists wait for ever: stage 0 at ") == 0);
  CHECK(status.message().find("; give buffers.receive or buffers.send 1") != std::string::npos);
}

TEST_CASE("Each violation has its path") {
  struct Case {
    std::string path, value, expected;
  };
  const Case cases[] = {
      {"/stages", "0", "$.stages: is 0; give a whole number from 1 to 64"},
      {"/stages", "5", "$.stages: is 5; the model has 4 parts to cut between"},
      {"/capacity", "-1", "$.capacity: is -1; give a whole number from 1 to 16777216"},
      {"/padding", "101", "$.padding: is 101; give at most the capacity, 100"},
      {"/groups", "3", "$.groups: is 3; give at most one for each of 2 adapters, or 0"},
      {"/step_ms", "-1", "$.step_ms: is -1; give a number from 0 to 1e+09"},
      {"/buffers", R"({"send": -1})", "$.buffers.send: is -1; give a whole number from 0 to 1024"},
      {"/measure", R"({"skipped_batches": 1, "batches": 2})",
       "$.measure: needs 3 global batches of each adapter; one has 2: skip or measure fewer"},
      {"/packing", "\"full\"",
       "$.packing: is \"full\"; give one of \"level\", \"packed\", \"merged\""},
      {"/model", "", "$.model: is missing; give an object"},
      {"/model/layers", "1025", "$.model.layers: is 1025; give a whole number from 1 to 1024"},
      {"/model/mlp/forward", "", "$.model.mlp.forward: is missing; give an object"},
      {"/model/mlp/forward/token_ms", "\"1\"",
       "$.model.mlp.forward.token_ms: is \"1\"; give a number from 0 to 1e+09"},
      {"/adapters/1/name", "\"a\"",
       "$.adapters[1].name: is another adapter's too; give each its own name"},
      {"/adapters/0/batches/0/1", "101",
       "$.adapters[0].batches[0][1]: is 101; give a whole number from 1 to 100"},
      {"/adapters/0/batches/1", "[]",
       "$.adapters[0].batches[1]: is a list of 0; give a list of 1 to 4096 entries, each a whole "
       "number from 1 to 100"},
      {"/adapters/1/batches", "[[1]]",
       "$.adapters[1].batches: stands beside draw; give one of them"},
      {"/first_blocks", "[0]", "$.first_blocks: has 1 entries; give one for each of the 2 stages"},
      {"/first_blocks", "[0, 4]",
       "$.first_blocks[1]: is 4; let the first blocks of the stages rise from 0 to at most 3"},
      {"/first_blocks", "[1, 2]",
       "$.first_blocks[0]: is 1; let the first blocks of the stages rise from 0 to at most 3"},
      {"/first_blocks", "[0, 0]",
       "$.first_blocks[1]: is 0; let the first blocks of the stages rise from 0 to at most 3"},
      {"/adapters/1/draw/kinds/0/min", "101",
       "$.adapters[1].draw.kinds[0].min: is 101; give a whole number from 1 to 100"},
      {"/adapters/1/draw/kinds/0/max", "0",
       "$.adapters[1].draw.kinds[0].max: is 0; give a whole number from 1 to 100"},
  };
  for (const Case& c : cases) {
    INFO(c.path << " = " << c.value);
    CHECK(Errors(c.path, c.value) == c.expected);
  }
}

TEST_CASE("What is wrong in one place hides nothing in another") {
  json scenario = Good();
  scenario["capacity"] = 0;  // what it holds is not known
  scenario["stages"] = 9;
  scenario["groups"] = 3;
  scenario["measure"] = {{"skipped_batches", 2}, {"batches", 1}};
  scenario["more"] = 1;
  CHECK(CheckPipeline(scenario).message() ==
        "$.stages: is 9; the model has 4 parts to cut between\n"
        "$.capacity: is 0; give a whole number from 1 to 16777216\n"
        "$.measure: needs 3 global batches of each adapter; one has 2: skip or measure fewer\n"
        "$.groups: is 3; give at most one for each of 2 adapters, or 0\n"
        "$.more: is not known here; remove it; there are about, adapters, buffers, capacity, "
        "first_blocks, groups, in_flight, measure, model, packing, padding, stages, step_ms, "
        "transfer");
}

TEST_CASE("Too many sequences") {
  json scenario = Good();
  scenario["adapters"][1]["draw"]["batches"] = 10000;
  scenario["adapters"][1]["draw"]["global_batch"] = 4096;
  CHECK(CheckPipeline(scenario).message() ==
        "$.adapters: have 40960003 sequences; give at most 100000");
}

TEST_CASE("A draw of one seed is the same everywhere") {
  const auto input = ReadPipeline(Good());
  REQUIRE(input.ok());
  CHECK(input->adapters[1].batches == ReadPipeline(Good())->adapters[1].batches);
  CHECK(input->adapters[1].batches.size() == 2);
  CHECK(input->adapters[1].batches[0].size() == 3);
}

TEST_CASE("pack: each violation has its path") {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"capacity": 10, "adapters": [{"name": "a", "lengths": [10, 1]}]})", ""},
      {R"({"capacity": 10, "adapters": [{"name": "a", "lengths": [1, 11]}]})",
       "$.adapters[0].lengths[1]: is 11; a microbatch holds 10 tokens of one adapter: cut the "
       "sequence or raise capacity"},
      {R"({"capacity": 10, "adapters": [{"name": "a", "batches": [[1], [2, 12]]}]})",
       "$.adapters[0].batches[1][1]: is 12; a microbatch holds 10 tokens of one adapter: cut the "
       "sequence or raise capacity"},
      {R"({"capacity": 10, "merge": {"stages": 0}, "adapters": [{"name": "a", "lengths": [1]}]})",
       "$.merge.stages: is 0; give a whole number from 1 to 1024"},
      {R"({"capacity": 10, "solver": "x", "adapters": [{"name": "a", "lengths": [1]}]})",
       "$.solver: is \"x\"; give one of \"bin_completion\", \"highs\""},
      {R"({"capacity": 10, "padding": 4, "adapters": [{"name": "a", "lengths": [9]}]})",
       "$.adapters[0].lengths[0]: is 9; a microbatch holds 8 tokens of one adapter: cut the "
       "sequence or raise capacity"},
      {R"({"capacity": 10, "adapters": []})",
       "$.adapters: is a list of 0; give a list of 1 to 4096 entries, each an object"},
      {R"({"capacity": 10, "adapters": [{"name": "a", "lengths": [1]}, {"name": "a", "lengths": [1]}]})",
       "$.adapters[1].name: is another adapter's too; give each its own name"},
      {R"({"capacity": 0, "adapters": [{"name": "a", "lengths": [5]}]})",
       "$.capacity: is 0; give a whole number from 1 to 1099511627776"},
      {R"({"capacity": 10, "padding": 16, "adapters": [{"name": "a", "lengths": [5]}]})",
       "$.padding: is 16; give at most the capacity, 10"},
      {R"({"capacity": 10, "adapters": [{"name": "a", "lengths": [5], "batches": [[5]]}]})",
       "$.adapters[0].lengths: stands beside batches; give one of them"},
      {R"({"capacity": 10, "adapters": [{"name": "", "lengths": [5]}, {"name": 3, "lengths": [5]}, 7, 8]})",
       "$.adapters[2]: is 7; give an object\n"
       "$.adapters[3]: is 8; give an object\n"
       "$.adapters[0].name: is \"\"; give a text of 1 to 200 bytes\n"
       "$.adapters[1].name: is 3; give a text of 1 to 200 bytes"},
  };
  for (const auto& [text, expected] : cases) {
    CHECK(CheckPack(json::parse(text)).message() == expected);
  }
}

TEST_CASE("pack names samples as their adapters do") {
  const auto result = RunPack(json::parse(R"({"capacity": 10, "adapters": [
      {"name": "a", "batches": [[6, 7], [8]]}, {"name": "b", "batches": [[], [9, 1]]}]})"));
  REQUIRE(result.ok());
  CHECK(result->json["bins"][2]["samples"] ==
        json::parse(R"([{"adapter": "b", "batch": 1, "sample": 0, "tokens": 9},
                        {"adapter": "b", "batch": 1, "sample": 1, "tokens": 1}])"));
}

TEST_CASE("pack takes 100,000 sequences") {
  json scenario = {{"capacity", 1000}};
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 100'000; ++i) lengths.push_back(i * 7919 % 990 + 1);
  for (const int64_t padding : {1, 16}) {
    scenario["padding"] = padding;
    scenario["adapters"] = {{{"name", "a"}, {"lengths", lengths}}};
    const auto result = RunPack(scenario);
    REQUIRE(result.ok());
    CHECK(result->json["batches"][0]["bins"].get<double>() <=
          1.01 * result->json["batches"][0]["bound_bins"].get<double>());
  }
}

}  // namespace
}  // namespace lorad::planner::scenario
