#include "client/text/progress.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <sstream>

#include "absl/strings/str_join.h"
#include "client/calls/transfer.h"
#include "client/text/plot.h"
#include "client/text/table.h"
#include "client/text/width.h"

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
  CHECK(ProgressBar(job, 0) == ProgressBar(job, 200));

  Job stalled = job;
  stalled.set_stalled("the disk of /data has 0 MiB free");
  stalled.clear_tokens_per_second();
  stalled.clear_seconds_left();
  CHECK(ProgressLine(stalled) ==
        "job-a  RUNNING  stalled: the disk of /data has 0 MiB free  step 50/100  loss 1.4018");
  CHECK(ProgressBar(stalled, 60) == "job-a  50% 50/100  stalled  loss 1.4018");

  Job unsaved = job;
  unsaved.set_unsaved("the checkpoint of step 40 cannot be written: the disk is full");
  CHECK(ProgressLine(unsaved) ==
        "job-a  RUNNING  not saved: the checkpoint of step 40 cannot be written: the disk is full  "
        "step 50/100  loss 1.4018  212 tokens/s  1m 05s left");
  CHECK(ProgressBar(unsaved, 80) ==
        "job-a  50% 50/100  not saved  loss 1.4018  212 tokens/s  1m 05s left");

  stalled.set_state(Job::PAUSING);
  CHECK(ProgressLine(stalled).find("is being saved") == std::string::npos);

  Job failed = job;
  failed.set_state(Job::FAILED);
  failed.mutable_error()->set_reason("NOT_FINITE");
  failed.mutable_error()->set_message("the loss is not finite");
  CHECK(ProgressLine(failed) ==
        "job-a  FAILED  step 50/100  loss 1.4018  NOT_FINITE: the loss is not finite");
}

TEST_CASE("a bar fits, and cuts no figure: the speed stays longest") {
  Job job = Running("job-a", 50);
  job.set_display_name("\xe6\x95\xb0\xe5\xad\xa6 sums of a long name");  // two wide letters
  job.set_validation_loss(1.25);
  CHECK(ProgressBar(job, 120) ==
        "job-a (\xe6\x95\xb0\xe5\xad\xa6 sums of a long name)  50% 50/100  loss 1.4018  validation "
        "1.2500  212 tokens/s  1m 05s left");
  CHECK(ProgressBar(job, 80) ==
        "job-a (\xe6\x95\xb0\xe5\xad\xa6 sums  50% 50/100  loss 1.4018  212 tokens/s  1m 05s left");
  CHECK(ProgressBar(job, 60) ==
        "job-a (\xe6\x95\xb0\xe5\xad\xa6 sums  50/100  212 tokens/s  1m 05s left");
  CHECK(ProgressBar(job, 40) == "job-a (\xe6\x95\xb0\xe5\xad\xa6 sums  50/100  212 tokens/s");
  CHECK(ProgressBar(job, 16) == "job-  50/100");
  CHECK(ProgressBar(job, 10) == "job-a (\xe6\x95\xb0");
  for (int columns = 30; columns < 200; ++columns) {
    const std::string line = ProgressBar(job, columns);
    CHECK(WidthOf(line) < static_cast<std::size_t>(columns));
    CHECK(line.find("212 tokens/s") != std::string::npos);
  }
}

TEST_CASE("bars are drawn again where the terminal has another size") {
  std::ostringstream out;
  TerminalSize size{24, 100};
  ProgressView view(out, out, true, [&] { return size; });
  view.Look(0);
  CHECK(out.str().empty());  // nothing is drawn yet
  Job job = Running("job-a", 50);
  view.Update(job, 0);
  view.Update(Running("job-b", 50), 100);
  out.str("");
  view.Look(1000);
  CHECK(out.str().empty());
  size.columns = 60;  // each of both lines, of 99 columns at most, is wrapped into two
  view.Look(1001);
  CHECK(out.str().starts_with("\x1b[4A\r\x1b[J"));
  CHECK(out.str().find("212 tokens/s") != std::string::npos);
  out.str("");
  view.Look(2000);
  CHECK(out.str().empty());
}

TEST_CASE("no more bars than the terminal has rows, and ten frames a second at most") {
  std::ostringstream out;
  TerminalSize size{15, 80};
  ProgressView view(out, out, true, [&] { return size; });
  const auto count = [&](const std::string& text) {
    const std::string drawn = out.str();
    std::size_t found = 0;
    for (std::size_t at = 0; (at = drawn.find(text, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  const auto name = [](int i) { return absl::StrCat("job-", i < 10 ? "0" : "", i); };
  for (int time_ms = 0; time_ms < 5000; ++time_ms) {
    view.Update(Running(name(time_ms % 30), time_ms / 30), time_ms);
  }
  CHECK(count("job-00") <= 50);
  CHECK(count("\n") <= 50 * 14);
  Job done = Running("job-00", 100);
  done.set_state(Job::SUCCEEDED);
  out.str("");
  view.Update(done, 5100);
  CHECK(count("\x1b[14A\r\x1b[2Kjob-01") == 1);  // what is done goes first
  CHECK(count("\n") == 14);
  CHECK(count("job-13") == 1);
  CHECK(count("and 17 more\n") == 1);
  size.rows = 10;
  out.str("");
  view.Look(5101);
  CHECK(count("\r\x1b[J") == 1);
  CHECK(count("\n") == 9);
  out.str("");
  view.End();
  for (int i = 0; i < 30; ++i) CHECK(count(name(i)) == 1);
}

TEST_CASE("what is said stands above the bars, which are drawn again below it") {
  std::ostringstream out;
  const auto size = [] { return TerminalSize{24, 80}; };
  ProgressView view(out, out, true, size);
  view.Say("first");
  view.Update(Running("job-a", 1), 0);
  view.Update(Running("job-b", 1), 100);
  out.str("");
  view.Say("second");
  CHECK(out.str().starts_with("\x1b[2A\r\x1b[Jsecond\n\r\x1b[2Kjob-a"));
  CHECK(out.str().find("\n\r\x1b[2Kjob-b") != std::string::npos);
  std::ostringstream bars, said;  // on two terminals, or one and a file
  ProgressView apart(bars, said, true, size);
  apart.Update(Running("job-a", 1), 0);
  apart.Say("third");
  CHECK(said.str() == "third\n");
  CHECK(bars.str().find("third") == std::string::npos);
}

TEST_CASE("a transfer's line fits, and keeps the share, the time left and the speed longest") {
  const Transferred half{.bytes = 48 << 20, .before = 8 << 20, .total = 96 << 20, .seconds = 4};
  CHECK(TransferLine("rows.jsonl", half, 120) ==
        "rows.jsonl  [############            ]   50%  48.0 MiB of 96.0 MiB  10.0 MiB/s  5s left");
  CHECK(TransferLine("rows.jsonl", half, 80) ==
        "rows.jsonl   50%  48.0 MiB of 96.0 MiB  10.0 MiB/s  5s left");
  CHECK(TransferLine("rows.jsonl", half, 40) == " 50%  10.0 MiB/s  5s left");
  CHECK(TransferLine("rows.jsonl", half, 20) == " 50%  5s left");
  CHECK(TransferLine("rows.jsonl", half, 19).empty());
  CHECK(TransferLine("-", {.bytes = 3 << 20, .before = 0, .total = 0, .seconds = 2}, 80) ==
        "-  3.0 MiB  1.5 MiB/s  2s");
  for (int columns = 20; columns < 150; ++columns) {
    const std::string line = TransferLine("\xe6\x95\xb0\xe5\xad\xa6.jsonl", half, columns);
    CHECK(WidthOf(line) < static_cast<std::size_t>(columns));
    CHECK(line.find(" 50%") != std::string::npos);
  }
}

TEST_CASE("a line of losses, from high to low") {
  std::vector<std::pair<std::int64_t, double>> points;
  for (std::int64_t step = 1; step <= 8; ++step) points.emplace_back(step, 9.0 - step);
  CHECK(Sparkline(points, 8, false) == "#*+=~-._");
  CHECK(Sparkline(points, 4, false) == "#+-_");  // means of two
  CHECK(WidthOf(Sparkline(points, 8, true)) == 8);
  points.emplace_back(9, std::numeric_limits<double>::quiet_NaN());
  CHECK(Sparkline(points, 100, false) == "#*+=~-._");
  CHECK(Sparkline({{1, 2.0}, {2, 2.0}}, 8, false).size() == 2);
  CHECK(Sparkline({}, 8, true).empty());
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
  ProgressView view(out, out, false, [] { return TerminalSize{}; });
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

TEST_CASE("elsewhere than on a terminal: every change of why a job is stalled or not saved") {
  std::ostringstream out;
  ProgressView view(out, out, false, [] { return TerminalSize{}; });
  Job job = Running("job-a", 1);
  view.Update(job, 10000);
  job.set_stalled("the disk has no room");
  view.Update(job, 10001);
  view.Update(job, 10002);
  job.set_unsaved("the disk is full");
  view.Update(job, 10003);
  job.clear_stalled();
  view.Update(job, 10004);
  job.clear_unsaved();
  view.Update(job, 10005);
  const std::string text = out.str();
  CHECK(std::count(text.begin(), text.end(), '\n') == 5);
  CHECK(text.find("stalled: the disk has no room  step") != std::string::npos);
  CHECK(text.find("not saved: the disk is full  stalled: ") != std::string::npos);
}

TEST_CASE("on a terminal the jobs' lines are drawn again in their order") {
  std::ostringstream out;
  ProgressView view(out, out, true, [] { return TerminalSize{24, 80}; });
  view.Update(Running("job-a", 1), 0);
  view.Update(Running("job-b", 1), 100);
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
  // Of a rank of its own, it has others go before it is cut to less than some words.
  const auto fit_why = [&](int columns) { return table.Fit(columns, {0, 1, 3, 2})[2]; };
  CHECK(fit_why(61) == "job-\xc3\xbc  QUEUED   smollm2  place 1: waits for a worker with mor");
  CHECK(fit_why(60) == "job-\xc3\xbc  QUEUED   place 1: waits for a worker with more memory");
  CHECK(fit_why(30) == "job-\xc3\xbc  QUEUED   place 1: waits");
  CHECK(fit_why(20) == "job-\xc3\xbc  QUEUED");
  for (int columns = 1; columns < 80; ++columns) {
    for (const auto& ranks : {rank, {0, 1, 3, 2}}) {
      for (const std::string& line : table.Fit(columns, ranks)) {
        CHECK(std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; }) <= columns);
      }
    }
  }
}

TEST_CASE("a column of words is cut before it goes, where enough of it is left") {
  Table table({"JOB", "NAME", "STATE", "STEP", "CREATED"});
  table.Add({"job-a", "a long name of a job", "RUNNING", "1/9", "today"});
  const std::vector<int> rank = {0, 3, 1, 2};
  const auto row = [&](int columns) { return table.Fit(columns, rank)[1]; };
  CHECK(row(80) == "job-a  a long name of a job  RUNNING   1/9  today");
  CHECK(row(42) == "job-a  a long name of a job  RUNNING   1/9");
  CHECK(row(41) == "job-a  a long name of a jo  RUNNING   1/9");
  CHECK(row(34) == "job-a  a long name   RUNNING   1/9");
  CHECK(row(33) == "job-a  RUNNING   1/9  today");
}

TEST_CASE("fields of one thing begin in one column, numbers or not") {
  Table table = Table::OfFields();
  table.Add({"a", "1"});
  table.Add({"bc", "2 of 3"});
  std::ostringstream out;
  table.Print(out);
  CHECK(out.str() == "FIELD  VALUE\na      1\nbc     2 of 3\n");
}

TEST_CASE("values that are longer than the terminal go on beneath, broken at blanks") {
  Table table = Table::OfFields();
  table.Add({"why", "it waits for a worker"});
  table.Add({"path", "abcdefghijklmnop"});
  table.Add({"none", ""});
  const auto printed = [&](int columns) {
    std::ostringstream out;
    table.PrintFields(out, columns);
    return out.str();
  };
  CHECK(printed(20) ==
        "FIELD  VALUE\n"
        "why    it waits for\n"
        "       a worker\n"
        "path   abcdefghijklm\n"
        "       nop\n"
        "none\n");
  CHECK(printed(21).starts_with("FIELD  VALUE\nwhy    it waits for a\n       worker\n"));
  CHECK(printed(28) == printed(0));
  CHECK(printed(18) ==
        "FIELD\n  VALUE\nwhy\n  it waits for a\n  worker\npath\n  abcdefghijklmnop\nnone\n\n");
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
