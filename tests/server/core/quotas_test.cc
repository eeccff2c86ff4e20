// Quotas by label, as stories.
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/rpc/error_details.pb.h"
#include "server/core/events/store_kinds.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

constexpr int64_t kNone = -1;
constexpr int64_t kLarge = int64_t{1} << 40;

v1::SetQuotaRequest Quota(const std::string& label, int64_t running, int64_t queued = kNone,
                          int64_t stored = kNone) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_label(label);
  if (running != kNone) request.mutable_quota()->set_running_jobs(running);
  if (queued != kNone) request.mutable_quota()->set_queued_jobs(queued);
  if (stored != kNone) request.mutable_quota()->set_stored_bytes(stored);
  return request;
}

// Labels as "team=math,user=bob".
Job Of(const std::string& labels, int epochs = 20) {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(epochs);
  for (const absl::string_view label : absl::StrSplit(labels, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> entry =
        absl::StrSplit(label, absl::MaxSplits('=', 1));
    (*job.mutable_labels())[entry.first] = entry.second;
  }
  return job;
}

absl::Status Create(World& world, const Job& job) {
  CreateJob request;
  request.job = job;
  return world.Call(request).status();
}

v1::ListQuotasResponse Quotas(World& world) {
  return world.Get<v1::ListQuotasResponse>(v1::ListQuotasRequest());
}

absl::StatusOr<ReplyValue> Relabel(World& world, const std::string& name, const Job& labels) {
  v1::UpdateJobRequest request;
  request.mutable_job()->set_name(name);
  *request.mutable_job()->mutable_labels() = labels.labels();
  request.mutable_update_mask()->add_paths("labels");
  return world.Call(request);
}

std::vector<std::string> SubjectsOf(const absl::Status& status) {
  google::rpc::QuotaFailure detail;
  const auto payload = status.GetPayload("type.googleapis.com/google.rpc.QuotaFailure");
  if (payload) detail.ParseFromString(std::string(*payload));
  std::vector<std::string> subjects;
  for (const auto& violation : detail.violations()) subjects.push_back(violation.subject());
  return subjects;
}

std::string WhyOf(World& world, const std::string& job) { return world.Job(job).queue().why(); }

bool IsIn(World& world, const std::string& job) { return IsPlaced(world.StateOf(job)); }

TEST_CASE("beyond its quota a job waits and says so; those of others run") {
  auto world = MakeWorld();
  world->Get<v1::Quota>(Quota("team=math", 1));
  world->StartWorkers();
  const std::string first = world->Submit(Of("team=math", 3));
  const std::string second = world->Submit(Of("team=math", 3));
  const std::string other = world->Submit(Of("team=art", 3));
  world->RunUntilState(first, Job::RUNNING);
  CHECK(IsIn(*world, other));
  CHECK(world->StateOf(second) == Job::QUEUED);
  CHECK(WhyOf(*world, second) == "quota team=math: 1 of 1 job runs");
  world->RunUntilState(first, Job::SUCCEEDED);
  world->RunUntilState(second, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("one scheduling turn places no more than is left, in the order of the queue") {
  auto world = MakeWorld();
  world->Get<v1::Quota>(Quota("team=math", 2));
  std::vector<std::string> jobs;
  for (int i = 0; i < 5; ++i) {
    Job job = Of("team=math");
    job.set_priority(i);
    jobs.push_back(world->Submit(job));
  }
  world->Settle();
  world->StartWorkers();
  world->RunUntilState(jobs[4], Job::RUNNING);
  CHECK(IsIn(*world, jobs[3]));
  for (int i = 0; i < 3; ++i) CHECK(WhyOf(*world, jobs[i]) == "quota team=math: 2 of 2 jobs run");
  // A limit that is raised, or deleted, is used at once.
  world->Get<v1::Quota>(Quota("team=math", 3));
  CHECK(IsIn(*world, jobs[2]));
  CHECK_FALSE(IsIn(*world, jobs[1]));
  v1::DeleteQuotaRequest remove;
  remove.set_label("team=math");
  world->Get<std::monostate>(remove);
  CHECK(IsIn(*world, jobs[0]));
  CHECK(Reason(world->Call(remove).status()) == "QUOTA_NOT_FOUND");
  world->RunUntilState(jobs[0], Job::SUCCEEDED);
}

TEST_CASE("use is counted from the beginning, and shown") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string done = world->Submit(Of("team=math", 2));
  world->RunUntilState(done, Job::SUCCEEDED);
  const std::string runs = world->Submit(Of("team=math"));
  world->RunUntilState(runs, Job::RUNNING);
  world->Get<Job>(Named<v1::PauseJobRequest>(world->Submit(Of("team=math"))));
  const v1::Quota quota = world->Get<v1::Quota>(Quota("team=math", 1, 1, kLarge));
  REQUIRE(quota.use_size() == 1);
  CHECK(quota.use(0).label() == "team=math");
  CHECK(quota.use(0).running_jobs() == 1);
  CHECK(quota.use(0).queued_jobs() == 0);
  CHECK(quota.use(0).stored_bytes() == 3 * sim::kCheckpointBytes);  // of the one that has ended
  world->Get<std::monostate>(Named<v1::DeleteJobRequest>(done));
  CHECK(Quotas(*world).quotas(0).use(0).stored_bytes() ==
        world->Job(runs).last_checkpoint_step() / 2 * sim::kCheckpointBytes);
}

TEST_CASE("beyond queued jobs creates, resumes and other labels are refused") {
  auto world = MakeWorld();
  world->Get<v1::Quota>(Quota("team=math", kNone, 1));
  const std::string paused = world->Submit(Of("team=math"));
  world->Get<Job>(Named<v1::PauseJobRequest>(paused));  // counts no more
  const std::string waits = world->Submit(Of("team=math"));
  const std::string other = world->Submit(Of("team=art"));
  absl::Status refused = Create(*world, Of("team=math"));
  CHECK(refused.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Reason(refused) == "QUOTA_EXCEEDED");
  CHECK(refused.message() ==
        "quota team=math: 1 of 1 job is queued: wait until some of them run or end, pause or "
        "cancel some, or have the limit raised (lora quota set)");
  CHECK(SubjectsOf(refused) == std::vector<std::string>{"team=math queued_jobs"});
  CHECK(Reason(world->Call(Named<v1::ResumeJobRequest>(paused)).status()) == "QUOTA_EXCEEDED");
  CHECK(world->StateOf(paused) == Job::PAUSED);
  CHECK(Reason(Relabel(*world, other, Of("team=math")).status()) == "QUOTA_EXCEEDED");
  CHECK(world->Job(other).labels().at("team") == "art");
  // A job keeps the labels that it has.
  CHECK(Relabel(*world, waits, Of("team=math,run=7")).ok());
  world->Get<Job>(Named<v1::CancelJobRequest>(waits));
  CHECK(Relabel(*world, other, Of("team=math")).ok());
  CHECK(Reason(Create(*world, Of("team=math"))) == "QUOTA_EXCEEDED");
}

TEST_CASE("of a job that a quota would refuse nothing is foretold") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Get<v1::Quota>(Quota("team=math", kNone, 0));
  const auto estimate = world->Get<v1::JobEstimate>(EstimateJob{.job = Of("team=math")});
  CHECK_FALSE(estimate.has_forecast());
  CHECK_THAT(estimate.no_forecast(), Catch::StartsWith("quota team=math: 0 of 0 jobs are queued"));
  CHECK(estimate.peak_memory_bytes().total() > 0);
  CHECK(world->Get<v1::JobEstimate>(EstimateJob{.job = Of("team=art")}).has_forecast());
}

TEST_CASE("a running job gets no label whose jobs are as many as may run") {
  auto world = MakeWorld();
  world->Get<v1::Quota>(Quota("team=math", 1));
  world->StartWorkers();
  const std::string first = world->Submit(Of("team=math"));
  const std::string other = world->Submit(Of("team=art"));
  world->RunUntilState(other, Job::RUNNING);
  const absl::Status refused = Relabel(*world, other, Of("team=math")).status();
  CHECK(SubjectsOf(refused) == std::vector<std::string>{"team=math running_jobs"});
  world->Get<Job>(Named<v1::CancelJobRequest>(first));
  world->RunUntilState(first, Job::CANCELLED);
  CHECK(Relabel(*world, other, Of("team=math")).ok());
}

TEST_CASE("beyond stored bytes no job is created, until some are deleted") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Get<v1::Quota>(Quota("team=math", kNone, kNone, 3 * sim::kCheckpointBytes));
  const std::string job = world->Submit(Of("team=math", 2));
  world->RunUntilState(job, Job::SUCCEEDED);
  const absl::Status refused = Create(*world, Of("team=math"));
  CHECK(Reason(refused) == "QUOTA_EXCEEDED");
  CHECK(SubjectsOf(refused) == std::vector<std::string>{"team=math stored_bytes"});
  CHECK_THAT(
      std::string(refused.message()),
      Catch::EndsWith(" bytes are stored in checkpoints: delete ended jobs that nobody needs "
                      "(lora rm), or have the limit raised (lora quota set)"));
  world->CrashCoordinator();
  CHECK(Reason(Create(*world, Of("team=math"))) == "QUOTA_EXCEEDED");
  v1::DeleteCheckpointRequest remove;
  remove.set_job(job);
  remove.set_step(2);
  world->Get<std::monostate>(remove);
  CHECK(Create(*world, Of("team=math")).ok());
}

TEST_CASE("a quota of each value is of each by itself, but of those that have their own") {
  auto world = MakeWorld();
  world->Get<v1::Quota>(Quota("team=*", 1));
  world->Get<v1::Quota>(Quota("team=ops", kNone));  // without limits
  world->StartWorkers();
  std::map<std::string, std::vector<std::string>> jobs;
  for (const std::string team : {"math", "art", "ops"}) {
    for (int i = 0; i < 2; ++i) jobs[team].push_back(world->Submit(Of("team=" + team)));
  }
  const std::string nobodys = world->Submit(Of(""));
  world->RunUntilState(nobodys, Job::RUNNING);
  CHECK(IsIn(*world, jobs["math"][0]));
  CHECK(IsIn(*world, jobs["art"][0]));
  CHECK(IsIn(*world, jobs["ops"][1]));
  CHECK(WhyOf(*world, jobs["math"][1]) == "quota team=math: 1 of 1 job runs");
  CHECK(WhyOf(*world, jobs["art"][1]) == "quota team=art: 1 of 1 job runs");
  const v1::ListQuotasResponse quotas = Quotas(*world);
  REQUIRE(quotas.quotas_size() == 2);
  REQUIRE(quotas.quotas(0).use_size() == 2);
  CHECK(quotas.quotas(0).use(0).label() == "team=art");
  CHECK(quotas.quotas(0).use(1).label() == "team=math");
  CHECK(quotas.quotas(1).use(0).running_jobs() == 2);
}

TEST_CASE("a job is held to the quotas of all of its labels") {
  auto world = MakeWorld();
  world->Get<v1::Quota>(Quota("team=math", 2, 1));
  world->Get<v1::Quota>(Quota("user=bob", 1, 0));
  world->StartWorkers();
  // Both limits that are in the way are named.
  world->Submit(Of("team=math"));
  CHECK(SubjectsOf(Create(*world, Of("team=math,user=bob"))) ==
        std::vector<std::string>{"team=math queued_jobs", "user=bob queued_jobs"});
  world->Get<v1::Quota>(Quota("user=bob", 1));
  world->Get<v1::Quota>(Quota("team=math", 2));
  const std::string bobs = world->Submit(Of("team=math,user=bob"));
  const std::string bobs_second = world->Submit(Of("user=bob"));
  const std::string third = world->Submit(Of("team=math"));
  world->RunUntilState(bobs, Job::RUNNING);
  CHECK(WhyOf(*world, bobs_second) == "quota user=bob: 1 of 1 job runs");
  CHECK(WhyOf(*world, third) == "quota team=math: 2 of 2 jobs run");
  world->Get<Job>(Named<v1::CancelJobRequest>(bobs));
  world->RunUntilState(bobs_second, Job::RUNNING);
  world->RunUntilState(third, Job::RUNNING);
}

TEST_CASE("a quota lowered under what runs evicts nobody, and holds for those who come") {
  auto world = MakeWorld();
  world->StartWorkers();
  std::vector<std::string> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(world->Submit(Of("team=math", 20 + 20 * i)));
  world->RunUntilState(jobs[2], Job::RUNNING);
  CHECK(world->Get<v1::Quota>(Quota("team=math", 1)).use(0).running_jobs() == 3);
  const std::string late = world->Submit(Of("team=math"));
  world->RunUntilState(jobs[0], Job::SUCCEEDED);
  CHECK(WhyOf(*world, late) == "quota team=math: 2 of 1 jobs run");
  CHECK(world->Job(jobs[2]).attempts() == 1);
  world->RunUntilState(jobs[2], Job::SUCCEEDED);
  CHECK(world->Job(jobs[1]).attempts() == 1);
  CHECK(world->Job(jobs[2]).attempts() == 1);
  world->RunUntilState(late, Job::SUCCEEDED);
}

TEST_CASE("a quota holds over a restart, also where more ran before it was lowered") {
  auto world = MakeWorld();
  world->StartWorkers();
  std::vector<std::string> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(world->Submit(Of("team=math")));
  world->RunUntilState(jobs[2], Job::RUNNING);
  world->Get<v1::Quota>(Quota("team=math", 1, 7));
  world->CrashCoordinator();
  const v1::Quota quota = Quotas(*world).quotas(0);
  CHECK(quota.label() == "team=math");
  CHECK(quota.running_jobs() == 1);
  CHECK(quota.queued_jobs() == 7);
  CHECK_FALSE(quota.has_stored_bytes());
  world->RunUntilState(jobs[0], Job::RUNNING);
  CHECK_FALSE(IsIn(*world, jobs[1]));
  CHECK_FALSE(IsIn(*world, jobs[2]));
  for (const std::string& job : jobs) world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a crowd that a quota holds hides nobody") {
  auto world = MakeWorld();
  world->Get<v1::Quota>(Quota("team=math", 1));
  for (int i = 0; i < 300; ++i) world->Submit(Of("team=math"));
  const std::string other = world->Submit(Of("team=art"));
  world->StartWorkers();
  world->RunUntilState(other, Job::RUNNING);
  CHECK(Quotas(*world).quotas(0).use(0).running_jobs() == 1);
  CHECK(Quotas(*world).quotas(0).use(0).queued_jobs() == 299);
}

TEST_CASE("a job that no worker in service could hold takes nothing of its quota") {
  WorldOptions options;
  options.workers = 2;
  options.gpu_memory_bytes = int64_t{380} << 20;
  auto world = MakeWorld(options);
  world->SetLongest("long", 100'000);
  world->AddDataset("long", 12);
  world->Get<v1::Quota>(Quota("team=math", 1));
  Job large = Of("team=math");
  large.set_training_dataset("long");
  const std::string first = world->Submit(large);
  const std::string second = world->Submit(Of("team=math"));
  world->StartWorkers();
  world->RunUntilState(second, Job::RUNNING);
  CHECK(world->StateOf(first) == Job::QUEUED);
}

// ---- random histories ----

constexpr const char* kTeams[] = {"math", "art", "ops"};

// All that quotas count, of every label, by the jobs and the store alone.
std::map<std::string, std::vector<int64_t>> Recount(World& world) {
  std::map<std::string, std::vector<int64_t>> counted;
  const auto listed = world.Get<v1::ListJobsResponse>(v1::ListJobsRequest());
  for (const Job& job : listed.jobs()) {
    const bool leaves = job.state() == Job::CANCELLING && !job.group().empty();
    const bool queued = job.state() == Job::QUEUED || job.state() == Job::VALIDATING;
    int64_t stored = 0;
    const auto checkpoints = world.store().ReadSeries(kCheckpointSeries, job.name(), 0, 1000);
    for (const storage::Entry& entry : *checkpoints) {
      v1::Checkpoint checkpoint;
      REQUIRE(checkpoint.ParseFromString(entry.value));
      for (const v1::CheckpointFile& file : checkpoint.files()) stored += file.size_bytes();
    }
    for (const auto& [key, value] : job.labels()) {
      std::vector<int64_t>& use =
          counted.try_emplace(absl::StrCat(key, "=", value), 3, 0).first->second;
      use[0] += IsPlaced(job.state()) || leaves;
      use[1] += queued;
      use[2] += stored;
    }
  }
  return counted;
}

// Whether the quotas had the very use that is counted; not looked at where a job moved meanwhile.
bool CheckUse(World& world) {
  const auto before = Recount(world);
  const v1::ListQuotasResponse quotas = Quotas(world);
  if (before != Recount(world)) return false;
  for (const v1::Quota& quota : quotas.quotas()) {
    for (const v1::Quota::Use& use : quota.use()) {
      const auto found = before.find(use.label());
      const auto expected = found == before.end() ? std::vector<int64_t>(3, 0) : found->second;
      INFO(use.label());
      CHECK(std::vector<int64_t>{use.running_jobs(), use.queued_jobs(), use.stored_bytes()} ==
            expected);
    }
  }
  return true;
}

class History {
 public:
  explicit History(uint64_t seed)
      : random_(seed), lasting_(seed % 2 == 0), world_(MakeWorld(OptionsOf(seed))) {
    if (lasting_) {
      for (const char* label : {"team=*", "team=ops"}) SetQuota(label);
    }
    world_->StartWorkers();
  }

  // How often the use was looked at.
  int Run() {
    int looks = 0;
    for (int i = 0; i < 25; ++i) {
      Act();
      const int64_t until_us = world_->now_us() + static_cast<int64_t>(random_() % 12'000);
      while (world_->now_us() < until_us && world_->RunNext()) {
      }
      looks += CheckUse(*world_);
      CheckLimits();
    }
    return looks;
  }

 private:
  static WorldOptions OptionsOf(uint64_t seed) {
    WorldOptions options;
    options.seed = seed;
    options.workers = 1 + static_cast<int>(seed % 2);
    options.delay_us_max = seed % 3 == 0 ? 3000 : 0;
    options.core.losses_without_progress_max = 1'000'000;
    return options;
  }

  Job RandomJob() {
    Job job = Of("", 1 + static_cast<int>(random_() % 4));
    if (random_() % 4) (*job.mutable_labels())["team"] = kTeams[random_() % 3];
    if (random_() % 4 == 0) (*job.mutable_labels())["user"] = "bob";
    if (random_() % 4 == 0) job.set_base_model("m2");
    return job;
  }

  void SetQuota(const std::string& label) {
    const int64_t running = static_cast<int64_t>(random_() % 4) - (lasting_ ? 0 : 1);
    world_->Get<v1::Quota>(Quota(label, running, static_cast<int64_t>(random_() % 5) - 1));
  }

  void ActOn(const std::string& job) {
    switch (random_() % 6) {
      case 0:
        return static_cast<void>(world_->Call(Named<v1::CancelJobRequest>(job)));
      case 1:
        return static_cast<void>(world_->Call(Named<v1::PauseJobRequest>(job)));
      case 2:
        return static_cast<void>(world_->Call(Named<v1::ResumeJobRequest>(job)));
      case 3:
        return static_cast<void>(Relabel(*world_, job, RandomJob()));
      case 4:
        return static_cast<void>(world_->Call(Named<v1::DeleteJobRequest>(job)));
      default: {
        v1::DeleteCheckpointRequest request;
        request.set_job(job);
        request.set_step(2);
        return static_cast<void>(world_->Call(request));
      }
    }
  }

  void Act() {
    const uint64_t what = random_() % 12;
    if (what < 4 || jobs_.empty()) {
      CreateJob request;
      request.job = RandomJob();
      if (const auto reply = world_->Call(request); reply.ok()) {
        jobs_.push_back(std::get<Job>(*reply).name());
      }
    } else if (what < 9) {
      ActOn(jobs_[random_() % jobs_.size()]);
    } else if (what == 9) {
      world_->worker(0).Kill();
    } else if (what == 10) {
      world_->CrashCoordinator();
    } else if (!lasting_) {
      const std::string label = random_() % 3 == 0   ? "team=*"
                                : random_() % 4 == 0 ? "user=bob"
                                                     : absl::StrCat("team=", kTeams[random_() % 3]);
      v1::DeleteQuotaRequest request;
      request.set_label(label);
      random_() % 3 ? SetQuota(label) : static_cast<void>(world_->Call(request));
    }
  }

  // Quotas that never change are never passed.
  void CheckLimits() {
    if (!lasting_) return;
    const v1::ListQuotasResponse quotas = Quotas(*world_);
    for (const v1::Quota& quota : quotas.quotas()) {
      for (const v1::Quota::Use& use : quota.use()) {
        INFO(use.label());
        CHECK(use.running_jobs() <= quota.running_jobs());
      }
    }
  }

  std::mt19937_64 random_;
  const bool lasting_;
  std::unique_ptr<World> world_;
  std::vector<std::string> jobs_;
};

TEST_CASE("1,000 random histories: the use is what a recount finds, and limits hold") {
  int looks = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    INFO("quotas_test: seed " << seed);
    looks += History(seed).Run();
  }
  CHECK(looks > 10'000);
}

}  // namespace
}  // namespace lorad::server
