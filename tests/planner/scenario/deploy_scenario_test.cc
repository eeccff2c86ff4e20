// Scenarios of deploy, dispatch and fit: what is wrong with them, and what comes of small ones.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "planner/scenario/deploy.h"
#include "planner/scenario/dispatch.h"
#include "planner/scenario/fields.h"
#include "planner/scenario/fit.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;

const char kLayouts[] = R"([
  {"tensor_parallel": 1, "pipeline_stages": 1, "capacity_tokens": 100, "token_ms": 1},
  {"tensor_parallel": 2, "pipeline_stages": 1, "capacity_tokens": 300, "token_ms": 0.7}])";

json Deployable() {
  json scenario = {{"gpus", 4}, {"layouts", json::parse(kLayouts)}, {"filter", false}};
  scenario["expected"] = {{{"length", 100}, {"sequences", 8}}, {{"length", 300}, {"sequences", 1}}};
  return scenario;
}

// Each violation's path, in order.
std::vector<std::string> Paths(const absl::Status& status) {
  std::vector<std::string> paths;
  std::string line;
  const std::string text(status.message());
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    line = text.substr(at, end - at);
    if (line[0] == '$') paths.push_back(line.substr(0, line.find(": ")));
    at = end + 1;
  }
  return paths;
}

TEST_CASE("A deployment by hand") {
  const auto result = RunDeploy(Deployable());
  REQUIRE(result.ok());
  // Two replicas of one GPU train three of 100 each, the pair one of 300 and two of 100: 350 ms.
  CHECK(result->json["step_ms"] == 350);
  CHECK(result->json["optimal"] == true);
  CHECK(result->text.find("TP1 PP1 x 2, TP2 PP1 x 1: 0.350 s a step") != std::string::npos);
  CHECK_FALSE(result->json.contains("move"));
}

TEST_CASE("Owners and moving") {
  json scenario = Deployable();
  scenario["adapters"] = {{{"name", "a"}, {"sequences", {6, 0}}, {"reduction_ms", 1000}},
                          {{"name", "b"}, {"sequences", {2, 1}}, {"reduction_ms", 0}}};
  scenario["current"] = {{"replicas", {0, 2}}, {"remaining_steps", 100}, {"reload_s", 1}};
  const auto result = RunDeploy(scenario);
  REQUIRE(result.ok());
  CHECK(result->json["ownership"]["owners"][0]["shared"] == false);
  CHECK(result->json["ownership"]["step_ms"] < result->json["ownership"]["all_shared_ms"]);
  // Two pairs: 210 + 3 * 70 and 5 * 70.
  CHECK(result->json["move"]["current_step_s"].get<double>() == Approx(0.42));
  CHECK(result->json["move"]["move"] == true);
}

TEST_CASE("Steps instead of expected sequences") {
  json scenario = Deployable();
  scenario.erase("expected");
  scenario["steps"] = {{90, 90, 250}, {80, 100, 100, 30}};
  scenario["granularity"] = 10;
  const auto result = RunDeploy(scenario);
  REQUIRE(result.ok());
  CHECK(result->json["mean_step_ms"].get<double>() > 0);
}

TEST_CASE("Every violation of a deployment has its path") {
  struct Case {
    std::function<void(json*)> change;
    std::vector<std::string> paths;
  };
  const Case cases[] = {
      {[](json* s) { (*s)["gpus"] = 0; }, {"$.gpus"}},
      {[](json* s) { (*s)["gpus"] = 1e300; }, {"$.gpus"}},
      {[](json* s) { (*s)["layouts"][1]["token_ms"] = -1; }, {"$.layouts[1].token_ms"}},
      {[](json* s) { (*s)["layouts"][0]["token_ms"] = 0; }, {"$.layouts[0].token_ms"}},
      {[](json* s) { (*s)["layouts"][0].erase("capacity_tokens"); },
       {"$.layouts[0].capacity_tokens"}},
      {[](json* s) { (*s)["expected"][1]["length"] = 301; }, {"$.expected[1].length"}},
      {[](json* s) { (*s)["expected"][1]["length"] = 100; }, {"$.expected[1].length"}},
      {[](json* s) { (*s)["expected"][0]["sequences"] = -2; }, {"$.expected[0].sequences"}},
      {[](json* s) { (*s)["steps"] = {{1}}; }, {"$"}},
      {[](json* s) { s->erase("expected"); }, {"$"}},
      {[](json* s) { (*s)["more"] = 1; }, {"$.more"}},
      {[](json* s) {
         (*s)["current"] = {{"replicas", {1}}, {"remaining_steps", 1}};
       },
       {"$.current.replicas"}},
      {[](json* s) {
         s->erase("expected");
         (*s)["steps"] = {{1, 2}, {3, 400}};
       },
       {"$.steps[1][1]"}},
      {[](json* s) {
         s->erase("expected");
         (*s)["steps"] = {json::array(), {1, 0}, "x"};
       },
       {"$.steps[0]", "$.steps[1][1]", "$.steps[2]"}},
      {[](json* s) {
         (*s)["current"] = {{"replicas", {0, 0}}, {"remaining_steps", 1}};
       },
       {"$.current.replicas"}},
      {[](json* s) {
         (*s)["current"] = {{"replicas", {1, 2}}, {"remaining_steps", 1}};
       },
       {"$.current.replicas"}},
      {[](json* s) {
         (*s)["adapters"] = {{{"name", "a"}, {"sequences", {1}}},
                             {{"name", "b"}, {"sequences", {1, -1}}}};
       },
       {"$.adapters[0].sequences", "$.adapters[1].sequences[1]"}},
  };
  for (const Case& c : cases) {
    json scenario = Deployable();
    c.change(&scenario);
    const absl::Status status = CheckDeploy(scenario);
    INFO(scenario.dump() << "\n" << status.message());
    CHECK(Paths(status) == c.paths);
    CHECK(RunDeploy(scenario).status() == status);
  }
  CHECK(CheckDeploy(Deployable()).ok());
}

TEST_CASE("What is wrong in one place of a deployment hides nothing in another") {
  json scenario = Deployable();
  scenario["gpus"] = "4";
  scenario["layouts"][0]["token_ms"] = 0;
  scenario["expected"] = {{{"length", 301}, {"sequences", -1}},
                          {{"length", 300}, {"sequences", 1}}};
  scenario["adapters"] = {{{"name", "a"}, {"sequences", {1, 1}}},
                          {{"name", "a"}, {"sequences", {1, 2}}}};
  scenario["current"] = {{"replicas", {1}}};
  CHECK(Paths(CheckDeploy(scenario)) ==
        std::vector<std::string>{"$.gpus", "$.layouts[0].token_ms", "$.expected[0].sequences",
                                 "$.expected[0].length", "$.expected[1].length",
                                 "$.adapters[1].name", "$.current.remaining_steps"});
  scenario = Deployable();
  scenario["more"] = 1;
  scenario["adapters"] = {{{"name", "a"}, {"sequences", {1}}}};
  scenario["current"] = {{"replicas", {1}}, {"remaining_steps", 1}};
  CHECK(Paths(CheckDeploy(scenario)) ==
        std::vector<std::string>{"$.adapters[0].sequences", "$.current.replicas", "$.more"});
  // What is not known is not compared.
  scenario = Deployable();
  scenario["layouts"][1]["capacity_tokens"] = 0;
  CHECK(Paths(CheckDeploy(scenario)) == std::vector<std::string>{"$.layouts[1].capacity_tokens"});
}

TEST_CASE("No deployment: another error than a wrong scenario") {
  json scenario = Deployable();
  scenario["gpus"] = 1;
  CHECK(CheckDeploy(scenario).ok());
  for (const bool filter : {true, false}) {
    scenario["filter"] = filter;
    const absl::Status status = RunDeploy(scenario).status();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(status.message() ==
          "no layout on 1 GPUs holds a sequence of 300 tokens; the smallest that does is TP2 PP1, "
          "which needs 2");
  }
  scenario["gpus"] = 4;
  scenario["current"] = {{"replicas", {4, 0}}, {"remaining_steps", 1}};
  CHECK(RunDeploy(scenario).status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("Dispatch") {
  json scenario = {{"replicas", json::parse(kLayouts)}, {"lengths", {90, 100, 250}}};
  scenario["granularity"] = 10;
  const auto result = RunDispatch(scenario);
  REQUIRE(result.ok());
  CHECK(result->json["step_ms"].get<double>() == Approx(190));
  CHECK(result->json["groups"][1]["sequences_of_replicas"][0] == json({0, 0, 1}));
  scenario["boundaries"] = {100, 300};
  CHECK(RunDispatch(scenario)->json["step_ms"].get<double>() == Approx(210));

  scenario["boundaries"] = {300, 300};
  scenario["lengths"] = {90, 0, 301};
  scenario["replicas"][0]["count"] = 0;
  CHECK(Paths(CheckDispatchScenario(scenario)) ==
        std::vector<std::string>{"$.replicas[0].count", "$.lengths[1]", "$.lengths[2]",
                                 "$.boundaries[1]", "$.lengths[2]"});

  scenario["lengths"] = {90, 250};
  scenario["boundaries"] = {100, 301, 400};  // nothing is padded to 400
  scenario["replicas"] = json::parse(kLayouts);
  CHECK(Paths(CheckDispatchScenario(scenario)) == std::vector<std::string>{"$.boundaries[1]"});
  scenario["boundaries"] = {100, 300, 400};
  CHECK(RunDispatch(scenario).ok());
}

TEST_CASE("Fit") {
  json scenario;
  for (int i = 1; i <= 20; ++i) {
    scenario["microbatches"].push_back(
        {{"tokens", 100 * i}, {"squared_lengths", 1000 * i * i}, {"ms", 5 + 2.0 * i}});
    scenario["peaks"].push_back({{"counted_bytes", 1000'000},
                                 {"tokens", 100 * i},
                                 {"squared_lengths", 1000 * i * i},
                                 {"peak_bytes", 1010'000 + 100 * i}});
  }
  scenario["microbatches_to_come"] = {{{"tokens", 4000}, {"squared_lengths", 100'000}}};
  scenario["peaks_to_come"] = {
      {{"counted_bytes", 1000'000}, {"tokens", 1000}, {"squared_lengths", 100'000}}};
  const auto result = RunFit(scenario);
  REQUIRE(result.ok());
  CHECK(result->json["time"]["constant_ms"].get<double>() == Approx(5).epsilon(1e-3));
  CHECK(result->json["time"]["token_ms"].get<double>() == Approx(0.02).epsilon(1e-3));
  CHECK(result->json["time"]["predictions"][0]["outside"].get<double>() == Approx(1));
  CHECK(result->json["memory"]["predictions"][0]["value"].get<double>() == Approx(1'011'000));
  CHECK(result->json["memory"]["mean_error"].get<double>() < 1e-4);
  CHECK(result->text.find("100 % outside the observed range") != std::string::npos);

  CHECK(Paths(CheckFit(json::object())) == std::vector<std::string>{"$"});
  scenario["peaks"][3]["tokens"] = 0;
  scenario["microbatches"][1]["ms"] = 0;
  CHECK(Paths(CheckFit(scenario)) ==
        std::vector<std::string>{"$.microbatches[1].ms", "$.peaks[3].tokens"});
  const auto few = RunFit({{"microbatches", {{{"tokens", 1}, {"squared_lengths", 1}, {"ms", 1}}}}});
  REQUIRE(few.ok());
  CHECK(few->json["time"]["mean_error"].is_null());
  CHECK(Paths(CheckFit({{"microbatches", scenario["microbatches_to_come"]},
                        {"peaks_to_come", scenario["peaks_to_come"]},
                        {"more", 1}})) ==
        std::vector<std::string>{"$.microbatches[0].ms", "$.more"});
  scenario.erase("peaks");
  scenario["microbatches"][1]["ms"] = 1;
  CHECK(Paths(CheckFit(scenario)) == std::vector<std::string>{"$.peaks_to_come"});
}

TEST_CASE("Fits to measurements that are all alike leave open what they do not say") {
  json scenario;
  for (int i = 0; i < 10; ++i) {
    scenario["microbatches"].push_back({{"tokens", 100}, {"squared_lengths", 1000}, {"ms", 5}});
    scenario["peaks"].push_back({{"counted_bytes", 1'000'000},
                                 {"tokens", 100},
                                 {"squared_lengths", 1000},
                                 {"peak_bytes", 1'000'000}});
  }
  scenario["microbatches_to_come"] = {{{"tokens", 100}, {"squared_lengths", 1000}},
                                      {{"tokens", 200}, {"squared_lengths", 4000}},
                                      {{"tokens", 100}, {"squared_lengths", 0}}};
  scenario["peaks_to_come"] = {
      {{"counted_bytes", 1'000'000}, {"tokens", 100}, {"squared_lengths", 1000}}};
  const auto result = RunFit(scenario);
  REQUIRE(result.ok());
  const json& times = result->json["time"]["predictions"];
  CHECK(times[0]["value"].get<double>() == Approx(5));
  CHECK(times[0]["high"].get<double>() == Approx(5));
  CHECK(times[1]["high"].is_null());  // 10, if all is a token's time, and 5, if nothing is
  CHECK(times[1]["outside"] == 3.0);
  CHECK(times[2]["outside"].is_null());
  CHECK(result->text.find("nothing like it was observed") != std::string::npos);
  CHECK(result->json["memory"]["predictions"][0]["high"] == 1'000'000.0);
}

}  // namespace
}  // namespace lorad::planner::scenario
