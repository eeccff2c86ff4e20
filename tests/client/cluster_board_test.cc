// The board of `lora top`: what is on it, in which order, and that it fits.
#include "client/text/cluster_board.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace lorad::client {
namespace {

using v1::Job;
using v1::Worker;

void Tell(ClusterBoard& board, const std::string& name, Job::State state, int place = 0,
          int64_t time = 0, bool deleted = false) {
  v1::WatchJobsResponse news;
  news.set_deleted(deleted);
  Job& job = *news.mutable_job();
  job.set_name(name);
  job.set_state(state);
  job.set_base_model("m");
  if (place > 0) job.mutable_queue()->set_place(place);
  if (place > 0) job.mutable_queue()->set_why("waits for a worker that has room for it");
  job.mutable_create_time()->set_seconds(time);
  job.mutable_start_time()->set_seconds(time);
  job.mutable_end_time()->set_seconds(time);
  board.Take(news);
}

void SetWorkers(ClusterBoard& board, int count) {
  v1::ListWorkersResponse workers;
  v1::ClusterStatus cluster;
  for (int i = 0; i < count; ++i) {
    Worker& worker = *workers.add_workers();
    worker.set_name(absl::StrCat("worker-", i));
    worker.set_state(Worker::BUSY);
    worker.set_group(absl::StrCat("group-", i));
    v1::Group& group = *cluster.add_groups();
    group.set_name(worker.group());
    group.add_jobs("job");
    group.set_tokens_per_second(100);
  }
  board.Take(std::move(workers), std::move(cluster));
}

// The first words of lines, which name what they are of.
std::string Names(const std::vector<std::string>& lines) {
  std::vector<std::string> names;
  for (const std::string& line : lines) names.push_back(line.substr(0, line.find(' ')));
  return absl::StrJoin(names, " ");
}

TEST_CASE("jobs stand in the order in which they run, the ended ones last") {
  ClusterBoard board;
  Tell(board, "ended-1", Job::FAILED, 0, 100);
  Tell(board, "ended-2", Job::SUCCEEDED, 0, 200);
  Tell(board, "paused", Job::PAUSED);
  Tell(board, "checked", Job::VALIDATING);
  Tell(board, "second", Job::QUEUED, 2);
  Tell(board, "first", Job::QUEUED, 1, 50);
  Tell(board, "late", Job::RUNNING, 0, 70);
  Tell(board, "early", Job::RUNNING, 0, 60);
  CHECK(Names(board.Lines(0, 0)) ==
        "0  JOB early late first second checked paused ended-2 ended-1");
  CHECK(board.Lines(0, 0)[0] == "0 workers, 2 jobs run, 3 wait, 1 paused; 0 tokens/s");
  Tell(board, "first", Job::RUNNING, 0, 80);
  Tell(board, "ended-1", Job::FAILED, 0, 100, /*deleted=*/true);
  CHECK(Names(board.Lines(0, 0)) == "0  JOB early late first second checked paused ended-2");
  board.ClearJobs();
  CHECK(board.Lines(0, 0).size() == 1);
}

TEST_CASE("a job that has a place and does nothing says why") {
  ClusterBoard board;
  v1::WatchJobsResponse news;
  news.mutable_job()->set_name("job");
  news.mutable_job()->set_state(Job::RUNNING);
  news.mutable_job()->set_stalled("the disk has no room");
  board.Take(news);
  CHECK_THAT(board.Lines(0, 0).back(), Catch::EndsWith("  the disk has no room"));
  news.mutable_job()->set_unsaved("step 40 cannot be written");
  board.Take(news);
  CHECK_THAT(board.Lines(0, 0).back(),
             Catch::EndsWith("  the disk has no room; not saved: step 40 cannot be written"));
  news.mutable_job()->clear_stalled();
  board.Take(news);
  CHECK_THAT(board.Lines(0, 0).back(), Catch::EndsWith("  not saved: step 40 cannot be written"));
}

// After one step, or while a worker is silent.
TEST_CASE("a speed that is not known is none") {
  ClusterBoard board;
  v1::WatchJobsResponse news;
  Job& job = *news.mutable_job();
  job.set_name("job");
  job.set_base_model("small");
  job.set_state(Job::RUNNING);
  const auto row = [&] {
    board.Take(news);
    const std::string line = board.Lines(0, 0).back();
    return std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()));
  };
  // JOB NAME STATE STEP LEFT LOSS VALIDATION TOKENS/S
  CHECK(row().at(7) == "-");
  job.set_tokens_per_second(212.4);
  CHECK(row().at(7) == "212");
  job.set_tokens_per_second(21.24);
  CHECK(row().at(7) == "21.2");

  v1::ListWorkersResponse workers;
  workers.add_workers()->set_name("w");
  workers.mutable_workers(0)->set_group("group-1");
  v1::ClusterStatus cluster;
  cluster.add_groups()->set_name("group-1");
  cluster.mutable_groups(0)->set_base_model("small");
  ClusterBoard still;
  still.Take(std::move(workers), std::move(cluster));
  // WORKER STATE JOBS TOKENS/S MODEL
  CHECK_THAT(still.Lines(0, 0).back(), Catch::Contains(" 0         -  small"));
}

TEST_CASE("a worker that is slower than its kind says so, unless it says more") {
  const auto why = [](double speed, const std::string& resting) {
    ClusterBoard board;
    v1::ListWorkersResponse workers;
    Worker& worker = *workers.add_workers();
    worker.set_name("w");
    worker.set_relative_speed(speed);
    worker.set_resting(resting);
    board.Take(std::move(workers), {});
    return board.Lines(0, 0).back();
  };
  CHECK_THAT(why(0.418, ""), Catch::EndsWith("  has 0.42 x the speed of its kind"));
  CHECK_THAT(why(0.418, "rests"), Catch::EndsWith("  rests"));
  CHECK_THAT(why(1, ""), !Catch::Contains("speed"));
  CHECK_THAT(why(0, ""), !Catch::Contains("speed"));
}

TEST_CASE("a board fits its terminal, and says how much it leaves out") {
  ClusterBoard board;
  SetWorkers(board, 10);
  for (int i = 0; i < 100; ++i) Tell(board, absl::StrCat("job-", i), Job::QUEUED, i + 1);
  const auto lines = board.Lines(24, 60);
  CHECK(lines.size() == 24);
  CHECK(lines[0] == "10 workers, 0 jobs run, 100 wait, 0 paused; 1000 tokens/s");
  CHECK(Names({lines.begin() + 2, lines.begin() + 9}) ==
        "WORKER worker-0 worker-1 worker-2 worker-3 worker-4 and");
  CHECK(lines[8] == "and 5 more");
  CHECK(lines[11].starts_with("job-0 "));
  CHECK(lines[22].starts_with("job-11 "));
  CHECK(lines[23] == "and 88 more");
  for (int rows = 1; rows < 130; ++rows) {
    for (const int columns : {1, 5, 20, 60, 200}) {
      const auto fitted = board.Lines(rows, columns);
      CHECK(std::ssize(fitted) <= rows);
      CHECK(std::ranges::all_of(fitted,
                                [&](const auto& line) { return std::ssize(line) <= columns; }));
    }
  }
  // Where there is room, nothing is left out.
  CHECK(board.Lines(200, 60).size() == 1 + 12 + 102);
}

TEST_CASE("of jobs that have ended the newest few stay on the board") {
  ClusterBoard board;
  Tell(board, "lives", Job::RUNNING);
  for (int i = 0; i < 100; ++i) Tell(board, absl::StrCat("job-", i), Job::SUCCEEDED, 0, 1000 + i);
  CHECK(board.jobs().size() == 21);
  CHECK(board.jobs().contains("lives"));
  CHECK(board.jobs().contains("job-99"));
  CHECK_FALSE(board.jobs().contains("job-79"));
}

}  // namespace
}  // namespace lorad::client
