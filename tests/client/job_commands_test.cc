// The commands that change jobs and watch them, against services that a script plays.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "client/text/table.h"
#include "lorad/v1/checkpoints.grpc.pb.h"
#include "tests/client/fakes.h"
#include "tests/client/terminal.h"

namespace lorad::client {
namespace {

TEST_CASE_METHOD(Fixture, "a job is to finish, and says where it ends") {
  const Ran finished = Run("finish job-a");
  CHECK(finished.reason == "OK");
  CHECK(finished.out.empty());
  CHECK(finished.err == "job-a: RUNNING, ends at step 7 of 20\n");
  CHECK(Run("finish job-done").reason == "NOTHING_TRAINED");
  CHECK(Run("finish").reason == "USAGE");
}

TEST_CASE_METHOD(Fixture, "cancelling says where there was nothing to cancel any more") {
  CHECK(Run("cancel job-a").err == "job-a: CANCELLING\n");
  jobs.job.set_state(Job::SUCCEEDED);
  const Ran ran = Run("cancel job-a");
  CHECK(ran.reason == "OK");
  CHECK(ran.err == "job-a: SUCCEEDED: it had ended already, so nothing is cancelled\n");
}

TEST_CASE_METHOD(Fixture, "a job is shown as wide as the terminal, with all that is to say") {
  Job& job = jobs.job;
  job.set_state(Job::QUEUED);
  job.mutable_queue()->set_place(3);
  job.mutable_queue()->set_why(
      "waits until group-1 has room for it: it has 8 jobs, and their adapters take 1.5 GiB");
  job.mutable_adapter()->set_target_regex(std::string(150, 'x'));
  std::string all = Run("show job-a").out;
  std::erase_if(all, [](char c) { return c == ' ' || c == '\n'; });
  for (const unsigned short columns : {60, 80, 120}) {
    INFO(columns);
    const Terminal terminal(columns);
    std::string shown = Run("show job-a").out;
    CHECK(WiderThan(columns, shown).empty());
    CHECK(Has(shown, "\nqueue                    place 3: waits until group"));
    std::erase_if(shown, [](char c) { return c == ' ' || c == '\n'; });
    CHECK(shown == all);
  }
}

TEST_CASE_METHOD(Fixture, "a job that has a place and does nothing says so") {
  jobs.job.set_state(Job::RUNNING);
  CHECK_FALSE(Has(Run("ls").out, "stalled"));
  CHECK_FALSE(Has(Run("show job-a").out, "stalled"));
  jobs.job.set_stalled("the disk has no room");
  CHECK(Has(Run("ls").out, "RUNNING, stalled"));
  CHECK(Has(Run("show job-a").out, "stalled                  the disk has no room\n"));
  CHECK_FALSE(Has(Run("show job-a").out, "not saved"));
  jobs.job.set_unsaved("the disk is full");
  CHECK(Has(Run("show job-a").out, "not saved                the disk is full\n"));
  CHECK(Has(Run("ls").out, "RUNNING, stalled, not saved"));
}

// Of which the newest is asked for.
struct FakeCheckpoints final : v1::Checkpoints::Service {
  std::int64_t newest = 0;  // 0: there is none

  grpc::Status GetCheckpoint(GrpcContext*, const v1::GetCheckpointRequest* request,
                             v1::Checkpoint* response) override {
    if (newest == 0 || request->step() != 0) {
      return Refused(grpc::NOT_FOUND, "CHECKPOINT_NOT_FOUND");
    }
    response->set_step(newest);
    return grpc::Status::OK;
  }
};

TEST_CASE("a job shows the newest checkpoint that is there") {
  FakeJobs jobs;
  FakeCheckpoints checkpoints;
  const Served served{{&jobs, &checkpoints}};
  const auto shows = [&](const std::string& newest) {
    return Has(served.Run("show job-a").out, "\nlast checkpoint          " + newest + "\n");
  };
  CHECK(shows("-"));
  jobs.job.set_last_checkpoint_step(6);
  checkpoints.newest = 6;
  CHECK(shows("step 6"));
  checkpoints.newest = 4;  // that of step 6 was deleted
  CHECK(shows("step 4"));
  checkpoints.newest = 0;
  CHECK(shows("none: all were deleted"));
}

TEST_CASE_METHOD(Fixture, "a job that has no speed yet has none, not 0") {
  jobs.job.set_state(Job::RUNNING);
  jobs.job.set_seconds_left(65);
  CHECK(Has(Run("ls").out, " -  1m 05s "));
  CHECK(Has(Run("show job-a").out, "\ntokens/s                 -\n"));
  jobs.job.set_tokens_per_second(212.4);
  CHECK(Has(Run("ls").out, " 212  1m 05s "));
  CHECK(Has(Run("show job-a").out, "\ntokens/s                 212\n"));
}

TEST_CASE_METHOD(Fixture, "what was foretold of a job is shown beside what came of it") {
  Job& job = jobs.job;
  job.set_state(Job::SUCCEEDED);
  const auto at = [](google::protobuf::Timestamp* time, std::int64_t seconds) {
    time->set_seconds(1'800'000'000 + seconds);
  };
  at(job.mutable_start_time(), 65);
  at(job.mutable_foretold_start_time(), 65);
  at(job.mutable_end_time(), 1000);
  v1::Forecast& first = *job.mutable_first_forecast();
  at(first.mutable_make_time(), 0);
  at(first.mutable_start_time(), 60);
  at(first.mutable_start_earliest(), 30);
  at(first.mutable_start_latest(), 120);
  at(first.mutable_end_time(), 900);
  at(first.mutable_end_earliest(), 600);
  at(first.mutable_end_latest(), 1200);
  const auto text = [](std::int64_t seconds) {
    google::protobuf::Timestamp time;
    time.set_seconds(1'800'000'000 + seconds);
    return TimeText(time);
  };
  const auto row = [](const std::string& field, const std::string& value) {
    return "\n" + field + std::string(25 - field.size(), ' ') + value + "\n";
  };
  const std::string shown = Run("show job-a").out;
  CHECK(Has(shown, row("started", text(65))));
  CHECK(Has(shown, row("start foretold", text(60) + " (" + text(30) + " to " + text(120) + ")")));
  CHECK(Has(shown, row("ended", text(1000))));
  CHECK(Has(shown, row("end foretold", text(900) + " (" + text(600) + " to " + text(1200) + ")")));
  CHECK(Has(shown, row("foretold at", text(0))));
  CHECK_FALSE(Has(shown, "went on"));
  at(job.mutable_foretold_start_time(), 70);  // it had trained before
  CHECK(Has(Run("show job-a").out, row("went on", text(70))));
}

TEST_CASE_METHOD(Fixture, "an estimate without a forecast says why") {
  jobs.estimate.set_no_forecast("no worker is connected");
  CHECK(Has(Run("estimate job-a").out, "no forecast          no worker is connected\n"));
}

// Two workers that a job of two stages goes on, all as wide as it gets.
v1::JobEstimate WideEstimate() {
  constexpr int64_t kBytes = int64_t{1023} << 30;
  v1::JobEstimate estimate;
  estimate.set_seconds_basis("measured on this base model, extrapolated by 50 %");
  for (const char* name : {"gpu-node-17-1", "gpu-node-18-1"}) {
    v1::WorkerEstimate& worker = *estimate.add_workers();
    worker.set_worker(name);
    worker.set_budget_bytes(kBytes);
    worker.mutable_alone()->set_total(2 * kBytes);
    worker.set_group("group-123");
    worker.mutable_beside()->set_total(3 * kBytes);
    worker.set_forms_again(true);
    v1::StageEstimate& stage = *estimate.add_stages();
    stage.set_worker(name);
    stage.set_first_block(31);
    stage.set_end_block(61);
    stage.set_bytes(kBytes);
    stage.set_budget_bytes(kBytes);
  }
  return estimate;
}

TEST_CASE_METHOD(Fixture, "an estimate is as wide as the terminal") {
  jobs.estimate = WideEstimate();
  const std::string all = Run("estimate job-a").out;
  CHECK(Has(all,
            "gpu-node-18-1  2.0 TiB: does not fit  3.0 TiB: does not fit, formed again  "
            "group-123  1023.0 GiB\n"));
  CHECK(Has(all, "    1  gpu-node-18-1  1023.0 GiB  1023.0 GiB  15 (MLP) to 30 (attention)\n"));
  for (const unsigned short columns : {60, 80, 120}) {
    INFO(columns);
    const Terminal terminal(columns);
    const std::string shown = Run("estimate job-a").out;
    INFO(shown);
    CHECK(WiderThan(columns, shown).empty());
    CHECK(Has(shown,
              columns == 60
                  ? "gpu-node-18-1  2.0 TiB: does not fit  1023.0 GiB\n"
                  : "gpu-node-18-1  2.0 TiB: does not fit  3.0 TiB: does not fit, formed again"));
    CHECK(Has(shown, "group-123") == (columns == 120));
    CHECK(Has(shown, "    1  gpu-node-18-1  1023.0 GiB  1023.0 GiB  15 (MLP) to"));
    CHECK(Has(shown, "30 (attention)") == (columns > 60));
  }
}

TEST_CASE_METHOD(Fixture, "jobs are paused and resumed one after the other") {
  const Ran paused = Run("pause job-a job-b");
  CHECK(paused.reason == "OK");
  CHECK(paused.out.empty());
  CHECK(paused.err == "job-a: PAUSING\njob-b: PAUSING\n");
  CHECK(Has(Run("resume job-a", true).out, R"("state": "QUEUED")"));
  jobs.paused.clear();
  CHECK(Run("pause").reason == "USAGE");
}

TEST_CASE_METHOD(Fixture, "one of several jobs that is refused holds up no other") {
  const Ran one = Run("pause job-a job-done job-b job-a");
  CHECK(one.reason == "JOB_ENDED");
  CHECK(one.err == "job-a: PAUSING\njob-b: PAUSING\n");  // each of them once
  const Ran two = Run("pause job-done job-a job-ended");
  CHECK(two.error ==
        "error: JOB_ENDED: 2 of 3 jobs are as they were\n  job-done: as the script says\n"
        "  job-ended: as the script says\n");
  // Nothing is done where one of them is not there, or has no name.
  jobs.paused.clear();
  jobs.absent = "job-b";
  CHECK(Run("pause job-a job-b").reason == "JOB_NOT_FOUND");
  CHECK(Run("cancel job-a EMPTY").reason == "NO_NAME");
  CHECK(jobs.paused.empty());
}

TEST_CASE_METHOD(Fixture, "an empty name is a mistake, not all jobs") {
  for (const char* command :
       {"show EMPTY", "rm EMPTY", "watch EMPTY", "estimate EMPTY", "update --priority 1 EMPTY"}) {
    INFO(command);
    CHECK(Run(command).reason == "NO_NAME");
  }
  CHECK(Run("update job-a --priority 1 --etag EMPTY").reason == "USAGE");
  CHECK(Run("estimate").reason == "USAGE");
  CHECK(Run("estimate job-a -f job.json").reason == "USAGE");
  CHECK(Run("estimate -- job-a").reason == Run("estimate job-a").reason);
  CHECK(Run("estimate -- job-a").reason != "USAGE");
}

TEST_CASE_METHOD(Fixture, "a job is found by its name, unless several have it") {
  Job one;
  one.set_name("job-22222222");
  one.set_display_name("sums");
  one.set_state(Job::RUNNING);
  one.set_base_model("small");
  jobs.named = {one};
  one.set_name("job-33333333");
  one.set_display_name("job-twice");
  jobs.named.push_back(one);
  one.set_name("job-44444444");
  one.set_state(Job::FAILED);
  jobs.named.push_back(one);

  CHECK(Run("pause sums").err == "job-22222222: PAUSING\n");
  // All names are found before the first job is changed.
  jobs.paused.clear();
  const Ran twice = Run("pause sums job-twice");
  CHECK(twice.reason == "AMBIGUOUS_NAME");
  CHECK(twice.error ==
        "error: AMBIGUOUS_NAME: 2 jobs have the name 'job-twice'; say which by its id\n"
        "  job-33333333: RUNNING, of small\n  job-44444444: FAILED, of small\n");
  CHECK(jobs.paused.empty());
  for (const char* command :
       {"show", "events", "cancel", "rm", "update --priority 1", "resume", "metrics", "watch",
        "trace", "estimate", "checkpoint ls", "checkpoint get -o folder"}) {
    INFO(command);
    CHECK(Run(std::string(command) + " job-twice").reason == "AMBIGUOUS_NAME");
  }
  // An id is not looked for, and what names nothing is the service's to refuse.
  jobs.filter.clear();
  CHECK(Run("pause job-33333333").err == "job-33333333: PAUSING\n");
  CHECK(jobs.filter.empty());
  CHECK(Run("trace nobody").reason == "JOB_NOT_FOUND");
  Job odd;
  odd.set_name("job-55555555");
  odd.set_display_name(R"(\"a\")");  // as the filter writes it
  jobs.named = {odd};
  CHECK(Run(R"(pause '"a"')").err == "job-55555555: PAUSING\n");
}

TEST_CASE_METHOD(Fixture, "a priority is sent alone, with the etag if asked") {
  CHECK(Run("update job-a --priority -3").err == "job-a: priority -3, labels team=math\n");
  REQUIRE(jobs.updates.size() == 1);
  CHECK(jobs.updates[0].update_mask().paths_size() == 1);
  CHECK(jobs.updates[0].job().etag().empty());
  CHECK(Run("update job-a --priority 4 --etag 0").reason == "ETAG_MISMATCH");
  CHECK(jobs.updates.size() == 2);
  CHECK(Run("update job-a --priority 4 --etag 1").reason == "OK");
  CHECK(jobs.job.priority() == 4);
}

TEST_CASE_METHOD(Fixture, "labels are read, changed and written again until nobody came between") {
  jobs.races = 3;
  const Ran ran = Run("update job-a --label run=7 user=bob=ann --remove-label team");
  CHECK(ran.reason == "OK");
  CHECK(ran.err == "job-a: priority 0, labels raced=0, run=7, user=bob=ann\n");
  CHECK(jobs.updates.size() == 4);
  jobs.races = 1000;
  const Ran never = Run("update job-a --label run=8");
  CHECK(never.reason == "CHANGED_MEANWHILE");
  CHECK(never.error.find("etag") == std::string::npos);
  const std::size_t tries = jobs.updates.size() - 4;
  CHECK(tries > 10);
  CHECK(tries < 200);  // in some seconds, with pauses
  // A caller who names the etag wants no second try.
  CHECK(Run("update job-a --label run=8 --etag 1").reason == "ETAG_MISMATCH");
  CHECK(jobs.updates.size() == 4 + tries + 1);
  CHECK(Run("update job-a").reason == "USAGE");
  CHECK(Run("update job-a --label run").reason == "USAGE");
  CHECK(Run("update job-a --priority high").reason == "USAGE");
}

TEST_CASE_METHOD(Fixture, "a watch goes on behind a pause, and says what it waits for") {
  for (const Job::State state :
       {Job::RUNNING, Job::PAUSING, Job::PAUSED, Job::PAUSED, Job::QUEUED, Job::SUCCEEDED}) {
    jobs.job.set_state(state);
    jobs.watched.push_back(jobs.job);
  }
  Ran ran = Run("watch job-a");
  CHECK(ran.reason == "OK");
  CHECK(ran.err ==
        "lora: job-a is PAUSED; waiting until it is resumed (`lora resume job-a`) or cancelled\n");
  CHECK(Has(ran.out, "job-a  PAUSED  waits for `lora resume job-a`\n"));
  CHECK(Has(ran.out, "job-a  SUCCEEDED\n"));
  ran = Run("watch job-a", true);
  CHECK(std::count(ran.out.begin(), ran.out.end(), '\n') == 6);
}

TEST_CASE_METHOD(Fixture, "a watch of named jobs ends when all of them are done") {
  Job other = jobs.job;
  other.set_name("job-b");
  other.set_state(Job::FAILED);
  other.mutable_error()->set_reason("NOT_FINITE");
  other.mutable_error()->set_message("the loss is not finite");
  jobs.job.set_state(Job::SUCCEEDED);
  jobs.watched = {jobs.job};
  for (const char* command : {"watch job-a", "watch job-a --until-done"}) {  // ended before
    INFO(command);
    CHECK(Run(command).reason == "OK");
    CHECK(Run(command, true).reason == "OK");
  }
  jobs.job.set_state(Job::RUNNING);
  jobs.watched.push_front(other);
  jobs.watched.push_front(jobs.job);
  const Ran ran = Run("watch job-a job-b");
  CHECK(ran.reason == "NOT_SUCCEEDED");
  CHECK(Has(ran.error, "1 of 2 jobs did not succeed"));
  CHECK(Has(ran.error, "job-b: FAILED: the loss is not finite"));
  CHECK(Has(ran.out, "job-a  SUCCEEDED\n"));
}

TEST_CASE_METHOD(Fixture,
                 "a watch of all jobs ends only if it is to, when all that were live are done") {
  for (const Job::State state : {Job::SUCCEEDED, Job::RUNNING, Job::SUCCEEDED}) {
    jobs.job.set_name(jobs.watched.size() < 1 ? "job-a" : "job-b");
    jobs.job.set_state(state);
    jobs.watched.push_back(jobs.job);
  }
  Ran ran = Run("watch --until-done");
  CHECK(ran.reason == "OK");
  CHECK(ran.out == "job-a  SUCCEEDED\njob-b  RUNNING\njob-b  SUCCEEDED\n");
  jobs.watched.clear();  // none is live
  ran = Run("watch --until-done");
  CHECK(ran.reason == "OK");
  CHECK(ran.out.empty());
}

}  // namespace
}  // namespace lorad::client
