// Which modules a PEFT config means, with which rank and alpha. What is expected here is what
// PEFT 0.21's check_target_module_exists and get_pattern_key give for the same paths;
// tests/golden/qwen3 and tests/golden/phi3 have whole adapters.
#include "storage/adapters/module_matcher.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "storage/adapters/peft.h"
#include "storage/models/model_description.h"
#include "tests/storage/published_configs.h"

namespace lorad::storage {
namespace {

using Catch::Matchers::Contains;
using Strings = std::vector<std::string>;

// "0.q_proj" of every module of the tiny model (2 layers) that is trained.
Strings Meant(const PeftConfig& config) {
  Strings names;
  for (const TargetModule& module : ResolveTargets(config, DescribeModel(kTiny).value()).modules) {
    names.push_back(std::to_string(module.layer) + "." + module.target);
  }
  return names;
}

// "FIELD: WHAT" of every problem.
std::string Problems(const PeftConfig& config) {
  std::string all;
  for (const auto& problem : ResolveTargets(config, DescribeModel(kTiny).value()).problems) {
    all += problem.field + ": " + problem.what + "\n";
  }
  return all;
}

PeftConfig Named(const Strings& names) {
  PeftConfig config;
  config.target_modules = names;
  return config;
}

PeftConfig Expression(const std::string& regex) {
  PeftConfig config;
  config.target_regex = regex;
  return config;
}

TEST_CASE("names, paths and endings of paths mean modules", "[peft]") {
  CHECK(Meant(Named({"down_proj", "q_proj"})) ==
        Strings{"0.q_proj", "0.down_proj", "1.q_proj", "1.down_proj"});
  CHECK(Meant(Named({"self_attn.q_proj"})) == Strings{"0.q_proj", "1.q_proj"});
  CHECK(Meant(Named({"layers.1.self_attn.q_proj", "model.layers.0.mlp.up_proj"})) ==
        Strings{"0.up_proj", "1.q_proj"});
  CHECK(Problems(Named({"q_proj"})) == "");
  PeftConfig all;
  all.all_linear = true;
  CHECK(Meant(all).size() == 14);
  all.exclude_modules = {"mlp.gate_proj", "layers.0.self_attn.q_proj", "lm_head"};
  CHECK(Meant(all).size() == 11);
  CHECK(Problems(all) == "");
  // A block's name is no end of its projections' paths.
  all.exclude_modules = {"mlp"};
  CHECK(Meant(all).size() == 14);
  CHECK_THAT(Problems(all), Contains("exclude_modules: the model has no module \"mlp\" to leave"));
}

TEST_CASE("an expression matches all of a path", "[peft]") {
  CHECK(Meant(Expression(R"(.*\.(gate|up)_proj)")) ==
        Strings{"0.gate_proj", "0.up_proj", "1.gate_proj", "1.up_proj"});
  CHECK(Meant(Expression(R"(model\.layers\.[1-9]\.self_attn\.[qv]_proj)")) ==
        Strings{"1.q_proj", "1.v_proj"});
  CHECK_THAT(Problems(Expression("q_proj")),
             Contains("target_modules: the expression \"q_proj\" matches no module"));
  PeftConfig config = Expression(".*_proj");
  config.exclude_regex = R"(.*(mlp|layers\.0).*)";
  CHECK(Meant(config) == Strings{"1.q_proj", "1.k_proj", "1.v_proj", "1.o_proj"});
  CHECK(Problems(config) == "");
}

TEST_CASE("an expression that means more than projections is refused, as PEFT does", "[peft]") {
  for (const char* regex : {".*", R"(.*self_attn.*)", ".*(q_proj|norm)", "(.*_proj|lm_head)"}) {
    INFO(regex);
    CHECK_THAT(Problems(Expression(regex)), Contains("target_modules: means "));
  }
  PeftConfig config = Expression(".*(q_proj|norm)");
  config.exclude_regex = ".*norm";
  CHECK(Problems(config) == "");
}

TEST_CASE("layers are chosen for names, and not for paths named whole", "[peft]") {
  PeftConfig config = Named({"model.layers.0.mlp.up_proj", "q_proj"});
  config.layers_to_transform = {1};
  CHECK(Meant(config) == Strings{"0.up_proj", "1.q_proj"});
  config.layers_pattern = {"layers"};
  CHECK(Meant(config) == Strings{"0.up_proj", "1.q_proj"});
  config.layers_pattern = {"h", "lay.*"};
  CHECK(Meant(config) == Strings{"0.up_proj", "1.q_proj"});
  CHECK(Problems(config) == "");
  config.layers_pattern = {"h"};
  CHECK(Meant(config) == Strings{"0.up_proj"});
  CHECK_THAT(Problems(config), Contains("layers_to_transform: layer 1 has no module"));
  config = Named({"q_proj"});
  config.layers_to_transform = {1, 2};
  CHECK_THAT(Problems(config), Contains("layer 2 has no module that is trained; the model has "
                                        "layers 0 to 1"));
}

// By "0.q_proj": rank and alpha.
std::map<std::string, std::pair<int, double>> Loras(const PeftConfig& config) {
  std::map<std::string, std::pair<int, double>> loras;
  for (const TargetModule& module : ResolveTargets(config, DescribeModel(kTiny).value()).modules) {
    loras[std::to_string(module.layer) + "." + module.target] = {module.rank, module.alpha};
  }
  return loras;
}

TEST_CASE("patterns give modules a rank and an alpha of their own", "[peft]") {
  PeftConfig config = Named({"q_proj", "v_proj"});
  config.rank = 4;
  config.alpha = 6;
  config.rank_pattern = {{"v_proj", 2}, {"model.layers.1.self_attn.q_proj", 16}};
  config.alpha_pattern = {{R"(layers\.[0]\.self_attn\.(q|v)_proj)", 0.5}};
  auto loras = Loras(config);
  CHECK(loras["0.q_proj"] == std::pair(4, 0.5));
  CHECK(loras["0.v_proj"] == std::pair(2, 0.5));
  CHECK(loras["1.q_proj"] == std::pair(16, 6.0));
  CHECK(loras["1.v_proj"] == std::pair(2, 6.0));
  CHECK(Problems(config) == "");
  // A dot stands for any character, and an ending begins behind a dot.
  config.rank_pattern = {{"self.attn.q_proj", 3}};
  CHECK(Loras(config)["0.q_proj"].first == 3);
  config.rank_pattern = {{"_proj", 3}, {"1.q_proj", 3}, {"attn.q_proj", 3}};
  CHECK(Loras(config)["0.q_proj"].first == 4);
  CHECK_THAT(Problems(config), Contains("rank_pattern: \"_proj\" matches no module") &&
                                   Contains("rank_pattern: \"1.q_proj\"") &&
                                   Contains("rank_pattern: \"attn.q_proj\""));
}

TEST_CASE("of patterns for one module the first counts, and it is told", "[peft]") {
  PeftConfig config = Named({"q_proj"});
  config.rank_pattern = {{"q_proj", 2}, {"layers.0.self_attn.q_proj", 4}};
  const auto targets = ResolveTargets(config, DescribeModel(kTiny).value());
  CHECK(targets.modules.at(0).rank == 4);  // "layers..." sorts first
  CHECK(targets.modules.at(1).rank == 2);
  CHECK(targets.problems.empty());
  REQUIRE(targets.contradictions.size() == 1);
  CHECK_THAT(targets.contradictions[0].what,
             Contains("\"layers.0.self_attn.q_proj\" says 4 and \"q_proj\" says 2 for "
                      "model.layers.0.self_attn.q_proj"));
  config.rank_pattern["layers.0.self_attn.q_proj"] = 2;
  CHECK(ResolveTargets(config, DescribeModel(kTiny).value()).contradictions.empty());
}

TEST_CASE("what means nothing is told with the nearest name", "[peft]") {
  CHECK_THAT(Problems(Named({"layers.9.self_attn.q_proj", "v_proj"})),
             Contains("target_modules: \"layers.9.self_attn.q_proj\" means no module: the model"));
  CHECK_THAT(Problems(Named({"q_porj", "v_proj"})),
             Contains("the model has no target module \"q_porj\"; did you mean q_proj?; it has: "));
  PeftConfig config = Named({"q_proj", "o_proj"});
  config.exclude_modules = {"o_proj", "v_prj"};
  config.rank_pattern = {{"gate_proj", 2}};
  config.alpha_pattern = {{"k_prj", 2}};
  CHECK(Meant(config) == Strings{"0.q_proj", "1.q_proj"});
  CHECK_THAT(Problems(config),
             !Contains("target_modules") &&
                 Contains("exclude_modules: the model has no module \"v_prj\" to leave out") &&
                 Contains("rank_pattern: \"gate_proj\" matches no module that is trained, though "
                          "the model has such a one; a pattern") &&
                 Contains("alpha_pattern: \"k_prj\" matches no module that is trained; did you"));
}

TEST_CASE("expressions that PEFT could not read or would not end with are refused", "[peft]") {
  for (const char* regex : {"(q_proj", R"(.*\hq_proj)", "(?R)", "(*ACCEPT)", "[[:alpha:]]*",
                            R"(\Qq_proj\E)", ".*(?i)q_proj", "(?|a|b)", R"(\Kq_proj)"}) {
    INFO(regex);
    CHECK_THAT(Problems(Expression(regex)), Contains("target_modules: the regular expression"));
    PeftConfig config = Named({"q_proj"});
    config.rank_pattern = {{regex, 2}};
    CHECK_THAT(Problems(config), Contains("rank_pattern: the regular expression"));
  }
  for (const char* regex : {"(?i).*Q_PROJ", R"(.*\.(?P<a>q)_proj)", ".*(?<!k)(?<=q)_proj",
                            R"(.*\x71_proj)", ".*(?i:Q)_proj", R"([a-z0-9_.]++q?_?p?r?o?j?)"}) {
    INFO(regex);
    CHECK_THAT(Problems(Expression(regex)), !Contains("the regular expression"));
  }
  const auto begin = std::chrono::steady_clock::now();
  PeftConfig config = Expression("(([a-z0-9._]+)+)+[0-9]{9}");
  for (int i = 0; i < 40; ++i) config.rank_pattern["(([a-z0-9._]+)+)+x" + std::to_string(i)] = 2;
  const std::string problems = Problems(config);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  CHECK_THAT(problems, Contains("target_modules: the regular expression") &&
                           Contains("takes too long on") &&
                           Contains("there are 41 regular expressions in all; at most 32"));
}

}  // namespace
}  // namespace lorad::storage
