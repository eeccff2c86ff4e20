#include "worker/core/reports.h"

#include <catch2/catch.hpp>

namespace lorad::worker {
namespace {

v1::Report WindowDone(int64_t window) {
  v1::Report report;
  report.mutable_window_done()->set_window(window);
  return report;
}

TEST_CASE("reports are numbered per epoch and kept until acknowledged") {
  ReportLog log;
  log.BeginEpoch(7);
  for (int64_t i = 1; i <= 3; ++i) log.Add(7, WindowDone(i));
  CHECK(log.last_number() == 3);
  log.Acknowledge(7, 2);
  CHECK(log.kept().size() == 1);
  log.Acknowledge(6, 3);  // of another epoch
  REQUIRE(log.kept().size() == 1);
  CHECK(log.kept()[0].number() == 3);
  CHECK(log.kept()[0].epoch() == 7);
  const v1::Report* added = log.Add(7, WindowDone(4));
  REQUIRE(added != nullptr);
  CHECK(added->number() == 4);
}

TEST_CASE("a report of an epoch that is over is dropped") {
  ReportLog log;
  log.BeginEpoch(7);
  log.Add(7, WindowDone(1));
  log.BeginEpoch(8);
  CHECK(log.kept().empty());
  CHECK(log.Add(7, WindowDone(2)) == nullptr);
  CHECK(log.kept().empty());
  log.Add(8, WindowDone(1));
  CHECK(log.last_number() == 1);
}

}  // namespace
}  // namespace lorad::worker
