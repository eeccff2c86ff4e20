// The jobs by themselves: their states, the queue, what is told and what is put away.
#include "server/core/jobs/job_table.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "server/core/events/store_kinds.h"

namespace lorad::server {
namespace {

using v1::Job;

struct Fixture {
  CoreOptions options;
  Turn turn;
  Answers answers{options, turn};
  Catalog catalog{turn, answers};
  RowChecks rows{options, turn, catalog};
  GroupTable groups{turn};
  Quotas quotas{turn};
  JobTable jobs{options, turn, rows, groups, quotas};

  Fixture() { turn.Start({1'000'000, 1'000'000}, 0); }

  JobState& Queued(int32_t priority = 0, const std::string& user = "", int64_t longest = 0) {
    Job content;
    content.set_priority(priority);
    if (!user.empty()) (*content.mutable_labels())["user"] = user;
    JobState& job = jobs.Create(content, 1, "");
    job.record.set_longest_tokens(longest);
    jobs.Transition(job, Job::QUEUED, "its rows are good");
    return job;
  }
  std::vector<Effect> End() {
    jobs.Settle();
    turn.TakeScheduleWanted();
    return turn.End();
  }
  std::vector<std::string> Seen() const {
    std::vector<std::string> names;
    for (const JobState* job : jobs.queue().View()) names.push_back(job->name());
    return names;
  }
};

int64_t CountAnnounced(const std::vector<Effect>& effects) {
  return std::ranges::count_if(
      effects, [](const Effect& effect) { return std::holds_alternative<Announce>(effect); });
}

TEST_CASE("a job that changes is told of once a turn, whatever happens to it") {
  Fixture house;
  JobState& job = house.Queued();
  CHECK_FALSE(house.jobs.CheckInvariants().ok());  // it is not published yet
  CHECK(CountAnnounced(house.End()) == 1);
  CHECK(house.jobs.CheckInvariants().ok());
  CHECK(house.jobs.count_by_state().at(Job::QUEUED) == 1);
  CHECK(house.jobs.count_by_state().at(Job::VALIDATING) == 0);
  CHECK(house.jobs.View(job).queue().place() == 1);
  CHECK(CountAnnounced(house.End()) == 0);
}

TEST_CASE("the queue goes by priority, then by arrival, and ids differ") {
  Fixture house;
  const std::string late = house.Queued(0).name(), later = house.Queued(0).name(),
                    first = house.Queued(7).name();
  CHECK(house.Seen() == std::vector{first, late, later});
  CHECK(house.jobs.queue().PlaceOf(*house.jobs.Find(later)) == 3);
  house.End();
  CHECK(house.jobs.CheckInvariants().ok());
}

TEST_CASE("of many users a decision looks at those who stand in front") {
  Fixture house;
  house.options.share_label = "user";
  std::vector<JobState*> all;
  for (int i = 0; i < 2000; ++i) all.push_back(&house.Queued(0, std::to_string(i)));
  JobState& second = house.Queued(0, "1999");
  std::vector<std::string> seen = house.Seen();
  CHECK(seen.size() == 256);
  CHECK(seen.front() == all[0]->name());
  CHECK(house.jobs.queue().Beyond(*all[0]) == 0);
  CHECK(house.jobs.queue().Beyond(*all[1999]) == 256);
  CHECK(house.jobs.queue().Beyond(second) == 256);
  // As fair share has them: the last first.
  std::vector<size_t> order;  // of 2001 that came one after the other
  for (size_t i = 2000; i-- > 0;) order.push_back(i);
  order.push_back(2000);
  house.jobs.Arrange(order);
  seen = house.Seen();
  CHECK(seen.size() == 256);
  CHECK(seen.front() == all[1744]->name());
  CHECK(house.jobs.queue().Beyond(*all[1999]) == 0);
  CHECK(house.jobs.queue().Beyond(second) == 256);  // behind its user's first
  CHECK(house.jobs.queue().Beyond(*all[0]) == 256);
  house.End();
  CHECK(house.jobs.CheckInvariants().ok());
  // Few users have more of each looked at.
  for (size_t i = 4; i < 2000; ++i) house.jobs.Transition(*all[i], Job::PREPARING, "joins");
  house.jobs.Transition(second, Job::PREPARING, "joins");
  for (int i = 0; i < 100; ++i) house.Queued(0, "0");
  CHECK(house.Seen().size() == 64 + 3);
}

TEST_CASE("thousands of lengths are few shapes") {
  Fixture house;
  for (int i = 0; i < 3000; ++i) house.Queued(0, "", 1000 + i);
  CHECK(house.Seen().size() <= 384);
  CHECK(house.Seen().size() >= 192);
  JobState& longest = house.Queued(0, "", 100'000);
  CHECK(std::ranges::count(house.Seen(), longest.name()) == 1);
  JobState& shortest = house.Queued(0, "", 1);
  CHECK(std::ranges::count(house.Seen(), shortest.name()) == 1);
}

TEST_CASE("who is on its way to another group while its slot comes is sent there once") {
  Fixture house;
  JobState& job = house.Queued();
  house.jobs.Transition(job, Job::PREPARING, "joins");
  job.moves_to = "group-2";
  job.sent_elsewhere = true;
  house.jobs.Transition(job, Job::RUNNING, "its slot is loaded");
  CHECK(job.moves_to == "group-2");
  CHECK(job.sent_elsewhere);
  house.jobs.Transition(job, Job::QUEUED, "it has left");
  CHECK(job.moves_to.empty());
  house.jobs.Transition(job, Job::PREPARING, "joins");
  house.jobs.Transition(job, Job::RUNNING, "its slot is loaded");
  CHECK_FALSE(job.sent_elsewhere);
}

TEST_CASE("who is postponed stands in the queue and is not looked at before its time") {
  Fixture house;
  JobState& job = house.Queued();
  house.End();
  job.passing = std::make_unique<Passing>();
  job.passing->tries = 3;
  job.why = "because";
  house.jobs.Postpone(job, 1'500'000);
  // A start of the coordinator goes by the record.
  CHECK(job.record.wait().until_us() - house.turn.wall_us() == 1'500'000 - house.turn.now_us());
  CHECK(job.record.wait().tries() == 3);
  CHECK(job.record.wait().why() == "because");
  const std::vector<Effect> effects = house.End();
  const auto timer = std::ranges::find_if(
      effects, [](const Effect& effect) { return std::holds_alternative<SetTimer>(effect); });
  REQUIRE(timer != effects.end());
  CHECK(std::get<SetTimer>(*timer).at_us == 1'500'000);
  CHECK(house.Seen().empty());
  CHECK_FALSE(house.jobs.queue().empty());
  CHECK(house.jobs.CheckInvariants().ok());
  CHECK(house.jobs.TakeDue().empty());
  house.turn.Begin({1'500'000, 0});
  CHECK(house.jobs.TakeDue() == std::vector{job.name()});
  CHECK_FALSE(house.jobs.CheckInvariants().ok());  // nothing would offer it
  house.jobs.Offer(job);
  CHECK(house.Seen() == std::vector{job.name()});
  CHECK(house.jobs.CheckInvariants().ok());
}

TEST_CASE("what has passed, and who has ended, is not postponed any more") {
  Fixture house;
  JobState& job = house.Queued();
  job.passing = std::make_unique<Passing>();
  house.jobs.Postpone(job, 1'500'000);
  house.End();
  SECTION("it goes on, and is postponed again") {
    house.jobs.EndPassing(job);
    CHECK_FALSE(job.passing);
    CHECK_FALSE(job.record.has_wait());
    job.passing = std::make_unique<Passing>();
    house.jobs.Postpone(job, 2'500'000);
    house.turn.Begin({1'500'000, 0});
    CHECK(house.jobs.TakeDue().empty());  // the first back-off does not cut the second short
    house.jobs.SetPostponedTimer();
  }
  SECTION("it ends") {
    house.jobs.Fail(job, v1::JobError::USER, "WHY", "because");
    house.turn.Begin({1'500'000, 0});
    CHECK(house.jobs.TakeDue().empty());
  }
  house.End();
  CHECK(house.jobs.CheckInvariants().ok());
}

TEST_CASE("a job that has ended is put away once nobody works on it, and is taken up to change") {
  Fixture house;
  const std::string name = house.Queued().name();
  JobState& job = *house.jobs.Find(name);
  job.commits = 1;
  house.jobs.Fail(job, v1::JobError::USER, "WHY", "because");
  house.End();
  CHECK(house.jobs.live().empty());
  CHECK(house.jobs.FindWhole(name));
  CHECK(house.jobs.CheckInvariants().ok());
  job.commits = 0;
  house.End();
  CHECK_FALSE(house.jobs.FindWhole(name));
  CHECK(house.jobs.View(*house.jobs.FindEntry(name)).error().reason() == "WHY");
  CHECK(house.jobs.SettledFolders() == std::vector{"checkpoints/" + name});
  CHECK(house.jobs.CheckInvariants().ok());

  house.jobs.Delete(*house.jobs.Find(name));
  CHECK_FALSE(house.jobs.FindEntry(name));
  const std::vector<Effect> effects = house.End();
  CHECK(effects.size() == 3);  // a Persist, the folder's removal, and the news
  CHECK(CountAnnounced(effects) == 1);
  CHECK(house.jobs.CheckInvariants().ok());
}

// Kinds of what is put, a '-' before those that are deleted.
std::string Stored(const std::vector<Effect>& effects) {
  std::string kinds;
  for (const storage::Mutation& mutation : std::get<Persist>(effects.at(0)).mutations) {
    const bool deleted = mutation.action == storage::Mutation::Action::kDeleteRecord;
    kinds += (deleted ? " -" : " ") + mutation.kind;
  }
  return kinds;
}

TEST_CASE("progress takes the place of older progress, and goes when its job is stored whole") {
  Fixture house;
  JobState& job = house.Queued();
  CHECK(Stored(house.End()) == " meta event event revision job");
  for (int step = 1; step <= 2; ++step) {
    job.job().set_step(step);
    house.jobs.TouchProgress(job);
    const std::vector<Effect> effects = house.End();
    CHECK(Stored(effects) == " progress");
    CHECK(std::get<Announce>(effects.at(1)).progress);
  }
  house.jobs.Touch(job);
  std::vector<Effect> effects = house.End();
  CHECK(Stored(effects) == " revision job -progress");
  CHECK_FALSE(std::get<Announce>(effects.at(1)).progress);
  house.jobs.Touch(job);
  CHECK(Stored(house.End()) == " revision job");
  // Now and then its record is written again, though nothing but progress has changed.
  for (int64_t i = 1; i < kWholeEvery; ++i) {
    house.jobs.TouchProgress(job);
    house.End();
  }
  house.jobs.TouchProgress(job);
  effects = house.End();
  CHECK(Stored(effects) == " job -progress");
  CHECK(std::get<Announce>(effects.at(1)).progress);
}

TEST_CASE("a member's job is not put away") {
  Fixture house;
  JobState& job = house.Queued();
  GroupState& group = house.groups.Form("m", {StageState{.worker = "w"}}, {});
  house.groups.Join(group, job.name(), {}, 0);
  house.jobs.Fail(job, v1::JobError::USER, "WHY", "because");
  house.End();
  CHECK(house.jobs.FindWhole(job.name()));
  house.groups.Erase(group, job.name());
  const std::string name = job.name();
  house.End();
  CHECK_FALSE(house.jobs.FindWhole(name));
}

TEST_CASE("what was stored is taken up, and a place that is taken twice is refused") {
  Fixture house;
  records::JobRecord live;
  live.mutable_job()->set_name("a");
  live.mutable_job()->set_state(Job::QUEUED);
  live.mutable_job()->set_revision(3);
  live.set_order(1);
  records::JobRecord ended = live;
  ended.mutable_job()->set_name("b");
  ended.mutable_job()->set_state(Job::SUCCEEDED);
  ended.mutable_job()->set_revision(4);
  StoredState stored;
  stored.jobs = {{"a", live.SerializeAsString()}, {"b", ended.SerializeAsString()}};
  stored.last_revision = 4;
  SECTION("two of one order") { CHECK(absl::IsDataLoss(house.jobs.Load(stored))); }
  SECTION("each its own") {
    ended.set_order(2);
    stored.jobs[1].second = ended.SerializeAsString();
    REQUIRE(house.jobs.Load(stored).ok());
    CHECK(house.jobs.CheckInvariants().ok());
    CHECK(house.Seen() == std::vector<std::string>{"a"});
    CHECK(house.jobs.FirstLive([](const JobState&) { return true; }) == "a");
  }
  SECTION("two of one revision") {
    ended.set_order(2);
    ended.mutable_job()->set_revision(3);
    stored.jobs[1].second = ended.SerializeAsString();
    REQUIRE(house.jobs.Load(stored).ok());
    CHECK_FALSE(house.jobs.CheckInvariants().ok());
  }
}

TEST_CASE("steps that were told are taken up, also of a job that is being cancelled") {
  const Job::State state = GENERATE(Job::RUNNING, Job::PAUSING, Job::CANCELLING, Job::QUEUED);
  records::JobRecord record;
  record.mutable_job()->set_name("a");
  record.mutable_job()->set_state(state);
  record.mutable_job()->set_revision(3);
  record.mutable_job()->set_step(7);
  record.mutable_job()->set_tokens(70);
  record.mutable_job()->set_total_tokens(100);
  record.mutable_job()->mutable_training()->set_batch_size(1);
  record.mutable_job()->mutable_training()->set_max_steps(10);
  record.set_training_rows(20);
  record.set_training_row_tokens(200);
  record.set_order(1);
  Job progress = record.job();
  progress.set_revision(5);
  progress.set_step(9);
  progress.set_tokens(101);  // longer rows than those that are left
  StoredState stored;
  stored.jobs = {{"a", record.SerializeAsString()}};
  stored.progress = {{"a", progress.SerializeAsString()}};
  stored.last_revision = 5;
  Fixture house;
  REQUIRE(house.jobs.Load(stored).ok());
  CHECK(house.jobs.Find("a")->job().step() == (state == Job::QUEUED ? 7 : 9));
  CHECK(house.jobs.Find("a")->job().total_tokens() == (state == Job::QUEUED ? 100 : 101 + 9));
}

TEST_CASE("checkpoints of an older version count from the next one on") {
  Fixture house;
  records::JobRecord older;
  older.mutable_job()->set_name("a");
  older.mutable_job()->set_state(Job::QUEUED);
  older.mutable_job()->set_revision(3);
  (*older.mutable_job()->mutable_labels())["team"] = "math";
  older.set_order(1);
  older.add_checkpoint_steps(2);
  StoredState stored;
  stored.jobs = {{"a", older.SerializeAsString()}};
  stored.last_revision = 3;
  REQUIRE(house.jobs.Load(stored).ok());
  JobState& job = *house.jobs.Find("a");
  CHECK(house.quotas.UseOf("team=math") == QuotaUse{.queued_jobs = 1});
  job.record.add_checkpoint_steps(4);
  house.jobs.StoreBytes(job, 4, 100);
  CHECK(house.quotas.UseOf("team=math").stored_bytes == 200);  // as large as this one
  job.record.mutable_checkpoint_steps()->RemoveLast();
  house.jobs.FreeBytes(job, 4);
  CHECK(house.quotas.UseOf("team=math").stored_bytes == 100);
  CHECK(house.jobs.CheckInvariants().ok());
}

TEST_CASE("a job that was changed behind the table's back is noticed") {
  Fixture house;
  JobState& job = house.Queued();
  house.End();
  REQUIRE(house.jobs.CheckInvariants().ok());
  SECTION("its state") { job.job().set_state(Job::RUNNING); }
  SECTION("its end") { job.job().set_state(Job::FAILED); }
  SECTION("its priority, in the queue") { job.job().set_priority(5); }
  SECTION("its shape, in the queue") { job.record.set_longest_tokens(9); }
  SECTION("its name") { job.job().set_name("other"); }
  SECTION("its order") { job.record.set_order(77); }
  SECTION("its revision") { job.job().set_revision(99); }
  SECTION("its group") { job.job().set_group("group-1"); }
  SECTION("its labels") { (*job.job().mutable_labels())["team"] = "math"; }
  CHECK_FALSE(house.jobs.CheckInvariants().ok());
}

}  // namespace
}  // namespace lorad::server
