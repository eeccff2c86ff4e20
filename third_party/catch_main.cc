// The test runner's main(), and its count of what this machine cannot run: a case that warns
// "skipped: WHY". tools/test adds up the line "cases: N ran, N skipped".
#define CATCH_CONFIG_RUNNER
#include "third_party/catch_main.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <vector>

namespace lorad::testing {
namespace {

class SkipCounter : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;

  bool assertionEnded(const Catch::AssertionStats& stats) override {
    const Catch::AssertionResult& result = stats.assertionResult;
    warned_ = warned_ || (result.getResultType() == Catch::ResultWas::Warning &&
                          result.getMessage().rfind("skipped: ", 0) == 0);
    return false;
  }

  // A part of a case may be skipped, and another run: then it counts as both.
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    TestEventListenerBase::testCaseEnded(stats);
    skipped_ += warned_;
    ran_ += !warned_ || stats.totals.assertions.total() > 0;
    warned_ = false;
  }

  void testRunEnded(const Catch::TestRunStats& stats) override {
    TestEventListenerBase::testRunEnded(stats);
    std::printf("cases: %d ran, %d skipped\n", ran_, skipped_);
    std::fflush(stdout);
  }

 private:
  int ran_ = 0;
  int skipped_ = 0;
  bool warned_ = false;
};

CATCH_REGISTER_LISTENER(SkipCounter)

struct Additions {
  std::vector<std::function<void(Catch::clara::Parser*)>> flags;
  std::function<int(const std::function<int()>&)> runner;
};

Additions& Added() {
  static Additions additions;
  return additions;
}

int Main(int argc, char** argv) {
  Catch::Session session;
  Catch::clara::Parser parser = session.cli();
  for (const auto& add : Added().flags) add(&parser);
  session.cli(parser);
  if (const int error = session.applyCommandLine(argc, argv); error != 0) return error;
  const auto run = [&] { return session.run(); };
  return Added().runner ? Added().runner(run) : run();
}

}  // namespace

bool AddFlag(FlagValue value, const std::string& name, const std::string& hint,
             const std::string& help) {
  using Catch::clara::Opt;
  Added().flags.push_back([=](Catch::clara::Parser* parser) {
    if (bool* const* flag = std::get_if<bool*>(&value)) *parser |= Opt(**flag)[name](help);
    if (int* const* flag = std::get_if<int*>(&value)) *parser |= Opt(**flag, hint)[name](help);
    if (uint64_t* const* flag = std::get_if<uint64_t*>(&value)) {
      *parser |= Opt(**flag, hint)[name](help);
    }
    if (std::string* const* flag = std::get_if<std::string*>(&value)) {
      *parser |= Opt(**flag, hint)[name](help);
    }
  });
  return true;
}

bool RunTestsBy(std::function<int(const std::function<int()>& run)> runner) {
  Added().runner = std::move(runner);
  return true;
}

}  // namespace lorad::testing

int main(int argc, char** argv) { return lorad::testing::Main(argc, argv); }
