// The lines of a daemon's log, and those that it passes on of its workers, in processes of their own.
#include "logging/log.h"

#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace lorad::logging {
namespace {

// What a process that does this has on stderr, line by line.
std::vector<std::string> Said(const std::function<void()>& what) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    what();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  waitpid(pid, nullptr, 0);
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

const std::string kTime = R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)";

void SayAll() {
  spdlog::info("worker cpu-0: [2 threads] numerics 1f");
  spdlog::warn("an order is late");
  spdlog::error("the worker ends");
}

TEST_CASE("a worker that somebody started by hand says the time itself") {
  const auto lines = Said([] {
    SetUpForWorker(/*supervised=*/false);
    SayAll();
  });
  REQUIRE(lines.size() == 3);
  CHECK(std::regex_match(lines[0],
                         std::regex(kTime + R"( info worker cpu-0: \[2 threads\] numerics 1f)")));
  CHECK(std::regex_match(lines[2], std::regex(kTime + " error the worker ends")));
}

TEST_CASE("a supervised worker's lines have one time and its level, behind the daemon") {
  auto lines = Said([] {
    SetUpForWorker(/*supervised=*/true);
    SayAll();
  });
  REQUIRE(lines.size() == 3);
  // From libraries, which know nothing of it.
  for (const char* other : {"[rank 0] NCCL said so", "terminate called", "[", "[off] x"}) {
    lines.emplace_back(other);
  }
  const auto pass_on = [&](Format format, const std::string& level) {
    return Said([&] {
      SetUp(format, level);
      for (const std::string& line : lines) PassOn("cpu-0", line);
    });
  };
  const std::vector<std::string> wanted = {
      R"(info \[cpu-0\] worker cpu-0: \[2 threads\] numerics 1f)",
      R"(warning \[cpu-0\] an order is late)",
      R"(error \[cpu-0\] the worker ends)",
      R"(info \[cpu-0\] \[rank 0\] NCCL said so)",
      R"(info \[cpu-0\] terminate called)",
      R"(info \[cpu-0\] \[)",
      R"(info \[cpu-0\] \[off\] x)"};
  const auto passed = pass_on(Format::kText, "info");
  REQUIRE(passed.size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    INFO(passed[i]);
    CHECK(std::regex_match(passed[i], std::regex(kTime + " " + wanted[i])));
  }
  const auto objects = pass_on(Format::kJson, "warning");
  REQUIRE(objects.size() == 2);
  const auto object = nlohmann::json::parse(objects[0]);
  CHECK(object["level"] == "warning");
  CHECK(object["message"] == "[cpu-0] an order is late");
}

}  // namespace
}  // namespace lorad::logging
