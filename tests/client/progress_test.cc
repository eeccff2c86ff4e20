#include "client/text/progress.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

#include "absl/strings/str_join.h"
#include "client/text/table.h"

namespace lorad::client {
namespace {

using v1::Job;

Job Running(const std::string& name, int step) {
  Job job;
  job.set_name(name);
  job.set_state(Job::RUNNING);
  job.set_step(step);
  job.set_total_steps(100);
  job.set_loss(1.40179);
  job.set_tokens_per_second(212.4);
  job.set_seconds_left(65);
  return job;
}

TEST_CASE("a job's progress as a line and as a bar") {
  const Job job = Running("job-a", 50);
  CHECK(ProgressLine(job) == "job-a  RUNNING  step 50/100  loss 1.4018  212 tokens/s  1m 05s left");
  CHECK(ProgressBar(job, 200) ==
        "job-a                    [############            ]  50% 50/100  loss 1.4018  212 "
        "tokens/s  1m 05s left");
  CHECK(ProgressBar(job, 40).size() == 39);

  Job failed = job;
  failed.set_state(Job::FAILED);
  failed.mutable_error()->set_reason("NOT_FINITE");
  failed.mutable_error()->set_message("the loss is not finite");
  CHECK(ProgressLine(failed) ==
        "job-a  FAILED  step 50/100  loss 1.4018  NOT_FINITE: the loss is not finite");
}

TEST_CASE("a paused job says what it waits for") {
  Job job = Running("job-a", 50);
  job.set_state(Job::PAUSING);
  CHECK(ProgressLine(job) ==
        "job-a  PAUSING  its last step is being saved  step 50/100  loss 1.4018  212 tokens/s  1m "
        "05s left");
  job.set_state(Job::PAUSED);
  CHECK(ProgressLine(job) ==
        "job-a  PAUSED  waits for `lora resume job-a`  step 50/100  loss 1.4018");
  CHECK_FALSE(IsDone(Job::PAUSED));
}

TEST_CASE("elsewhere than on a terminal: one line a second, and every change of state") {
  std::ostringstream out;
  ProgressView view(out, false, 0);
  view.Update(Running("job-a", 1), 10000);
  view.Update(Running("job-a", 2), 10300);
  view.Update(Running("job-a", 3), 11000);
  Job done = Running("job-a", 3);
  done.set_state(Job::SUCCEEDED);
  view.Update(done, 11001);
  view.Delete(done);
  const std::string text = out.str();
  CHECK(std::count(text.begin(), text.end(), '\n') == 4);
  CHECK(text.find("job-a  DELETED\n") != std::string::npos);
  CHECK(text.find("step 2/100") == std::string::npos);
  CHECK(text.find("SUCCEEDED") != std::string::npos);
}

TEST_CASE("on a terminal the jobs' lines are drawn again in their order") {
  std::ostringstream out;
  ProgressView view(out, true, 80);
  view.Update(Running("job-a", 1), 0);
  view.Update(Running("job-b", 1), 1);
  const std::string text = out.str();
  CHECK(text.find("\x1b[1A\r\x1b[2Kjob-a") != std::string::npos);
  CHECK(text.rfind("job-b") > text.rfind("job-a"));
}

TEST_CASE("a table puts numbers to the right and text to the left") {
  Table table({"NAME", "STEP", "SIZE"});
  table.Add({"a", "7", "1.0 KiB"});
  table.Add({"bcdefg", "100", "-"});
  std::ostringstream out;
  table.Print(out);
  CHECK(out.str() ==
        "NAME    STEP     SIZE\n"
        "a          7  1.0 KiB\n"
        "bcdefg   100        -\n");
}

TEST_CASE("a table that must fit loses its least columns, then cuts what is left") {
  Table table({"JOB", "STATE", "MODEL", "WHY"});
  table.Add({"job-a", "RUNNING", "smollm2", ""});
  table.Add({"job-\xc3\xbc", "QUEUED", "smollm2", "place 1: waits for a worker with more memory"});
  const std::vector<int> rank = {0, 1, 2};
  const auto fit = [&](int columns) { return absl::StrJoin(table.Fit(columns, rank), "\n"); };
  CHECK(fit(0) ==
        "JOB    STATE    MODEL    WHY\n"
        "job-a  RUNNING  smollm2\n"
        "job-\xc3\xbc  QUEUED   smollm2  place 1: waits for a worker with more memory");
  CHECK(fit(40) ==
        "JOB    STATE    MODEL    WHY\n"
        "job-a  RUNNING  smollm2\n"
        "job-\xc3\xbc  QUEUED   smollm2  place 1: waits");
  CHECK(fit(30) ==
        "JOB    STATE    MODEL\njob-a  RUNNING  smollm2\njob-\xc3\xbc  QUEUED   smollm2");
  CHECK(fit(20) == "JOB    STATE\njob-a  RUNNING\njob-\xc3\xbc  QUEUED");
  CHECK(fit(4) == "JOB\njob-\njob-");
  for (int columns = 1; columns < 80; ++columns) {
    for (const std::string& line : table.Fit(columns, rank)) {
      CHECK(std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; }) <= columns);
    }
  }
}

TEST_CASE("values as people read them") {
  CHECK(BytesText(512) == "512 B");
  CHECK(BytesText(98'000'000) == "93.5 MiB");
  CHECK(DurationText(12.4) == "12s");
  CHECK(DurationText(185) == "3m 05s");
  CHECK(DurationText(3725) == "1h 02m");
  CHECK(RateText(2e-4) == "0.0002");
  CHECK(CountText(12) == "12");
  CHECK(JoinText({}) == "-");
}

}  // namespace
}  // namespace lorad::client
