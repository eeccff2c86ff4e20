// The test runner's main(), and its count of what this machine cannot run: a case that warns
// "skipped: WHY". tools/test adds up the line "cases: N ran, N skipped".
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#include <cstdio>

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

}  // namespace
