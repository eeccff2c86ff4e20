#include "logging/stderr_sink.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/logger.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <string>

namespace lorad::logging {
namespace {

// A pipe and a logger that writes into it.
class Piped {
 public:
  Piped() {
    REQUIRE(pipe2(ends_, O_CLOEXEC) == 0);
    REQUIRE(fcntl(ends_[0], F_SETFL, O_NONBLOCK) == 0);
    logger_ = std::make_unique<spdlog::logger>("", std::make_shared<StderrSink>(ends_[1]));
    logger_->set_pattern("%v");
  }
  ~Piped() {
    close(ends_[0]);
    close(ends_[1]);
  }

  spdlog::logger& logger() { return *logger_; }

  std::string Read() {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(ends_[0], buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }

 private:
  int ends_[2];
  std::unique_ptr<spdlog::logger> logger_;
};

TEST_CASE("lines come whole, long ones too") {
  Piped piped;
  const std::string text(30'000, 'x');
  piped.logger().info("first");
  piped.logger().info(text);
  CHECK(piped.Read() == "first\n" + text + "\n");
}

TEST_CASE("a reader that has stopped costs lines and no time, and is told how many") {
  Piped piped;
  const std::string text(999, 'x');
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 10'000; ++i) piped.logger().info(text);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));

  const std::string kept = piped.Read();
  const size_t lines = kept.size() / 1000;
  CHECK(lines >= 8);
  piped.logger().info("here again");
  const std::string note = kept.ends_with('\n') ? "" : "\n";
  CHECK(piped.Read() == note + std::to_string(10'000 - lines) +
                            " lines of the log were lost: nobody read it\nhere again\n");
}

TEST_CASE("a long line whose reader stops in its middle is ended before the next") {
  Piped piped;
  piped.logger().info(std::string(100'000, 'x'));
  const std::string kept = piped.Read();
  CHECK(kept.size() < 100'000);
  piped.logger().info("here again");
  CHECK(piped.Read() == "\n1 lines of the log were lost: nobody read it\nhere again\n");
}

TEST_CASE("a reader that is gone for good keeps nobody") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  close(ends[0]);
  signal(SIGPIPE, SIG_IGN);
  StderrSink sink(ends[1]);
  sink.log(spdlog::details::log_msg("", spdlog::level::info, "nobody hears"));
  close(ends[1]);
}

}  // namespace
}  // namespace lorad::logging
