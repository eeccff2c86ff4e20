#include "planner/pipeline/timeline.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

namespace lorad::planner {
namespace {

Timeline Example() {
  return {"example",
          {{"stage 0", "compute"}, {"stage 0", "send"}, {"stage 1", "compute"}},
          {{0, 0, 4, "F0", "forward"},
           {2, 5, 9, "F0", "forward"},
           {1, 4, 5, "s<0", "transfer"},
           {0, 4, 10, "B0", "backward"}}};
}

TEST_CASE("As text") {
  CHECK(ToText(Example(), 10) ==
        "example: 10 ms, a column is 1 ms\n"
        "stage 0 compute |FFFFBBBBBB|\n"
        "stage 0 send    |....s.....|\n"
        "stage 1 compute |.....FFFF.|\n");
  CHECK(ToList(Example()) ==
        "stage 0 compute 0.000 4.000 F0\n"
        "stage 0 compute 4.000 10.000 B0\n"
        "stage 0 send 4.000 5.000 s<0\n"
        "stage 1 compute 5.000 9.000 F0\n");
}

TEST_CASE("Names of any characters") {
  CHECK(ToText(Timeline{"t", {{"a", ""}}, {{0, 0, 5, "é", "k"}, {0, 5, 10, "", "k"}}}, 10) ==
        "t: 10 ms, a column is 1 ms\na |##########|\n");
}

TEST_CASE("Nothing at all") {
  CHECK(ToText(Timeline{"empty", {{"a", ""}}, {}}, 10) ==
        "empty: 0 ms, a column is 0 ms\na |..........|\n");
  CHECK(ToSvg(Timeline{"empty", {}, {}}).find("</svg>") != std::string::npos);
  CHECK(nlohmann::json::parse(ToChromeTrace({}))["traceEvents"].empty());
  CHECK(ToText(Timeline{"instant", {{"a", ""}}, {{0, 0, 0, "F", "forward"}}}, 10) ==
        "instant: 0 ms, a column is 0 ms\na |..........|\n");
}

TEST_CASE("As a Chrome trace") {
  const auto trace = nlohmann::json::parse(ToChromeTrace(Example()));
  const auto& events = trace["traceEvents"];
  REQUIRE(events.size() == 2 + 3 + 4);
  CHECK(events[0] == nlohmann::json{{"name", "process_name"},
                                    {"ph", "M"},
                                    {"pid", 0},
                                    {"tid", 0},
                                    {"args", {{"name", "stage 0"}}}});
  CHECK(events[6] == nlohmann::json{{"name", "B0"},
                                    {"cat", "backward"},
                                    {"ph", "X"},
                                    {"pid", 0},
                                    {"tid", 0},
                                    {"ts", 4000.0},
                                    {"dur", 6000.0}});
}

TEST_CASE("As a picture") {
  const std::string svg = ToSvg(Example());
  CHECK(svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\"") == 0);
  CHECK(svg.find("<title>s&lt;0: 4 to 5 ms</title>") != std::string::npos);
  CHECK(svg.find("s<0") == std::string::npos);
  const std::string odd = ToSvg({"\x01 & \uFFFF", {{"a", ""}}, {{0, 0, 1, "\"é\uFFFE\"", "k"}}});
  CHECK(odd.find("  &amp; ?") != std::string::npos);
  CHECK(odd.find("<title>&quot;é?&quot;: 0 to 1 ms</title>") != std::string::npos);
}

}  // namespace
}  // namespace lorad::planner
