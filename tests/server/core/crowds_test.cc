// Many shapes in the queue, and many who ask and leave, as stories.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

TEST_CASE("16 equal jobs have four workers in equal parts, however they come") {
  // Together before the workers, together after them, one by one.
  for (const int come : {0, 1, 2}) {
    CAPTURE(come);
    WorldOptions options;
    options.workers = 4;
    options.delay_us_max = 1000;  // so that steps take time
    auto world = MakeWorld(options);
    if (come > 0) world->StartWorkers();
    world->Settle();
    Job content = World::NewJob();
    content.mutable_training()->set_epochs(100'000);
    std::vector<std::string> jobs;
    for (int i = 0; i < 16; ++i) {
      jobs.push_back(world->Submit(content));
      if (come == 2) world->RunUntilState(jobs.back(), Job::RUNNING);
    }
    if (come == 0) world->StartWorkers();
    for (const std::string& job : jobs) world->RunUntilState(job, Job::RUNNING);
    std::map<std::string, int> of_group;
    for (const std::string& job : jobs) ++of_group[world->Job(job).group()];
    std::vector<int> parts;
    for (const auto& [group, count] : of_group) parts.push_back(count);
    CHECK(parts == std::vector<int>{4, 4, 4, 4});
  }
}

TEST_CASE("jobs of more shapes than a decision once looked at do not hide one that fits") {
  constexpr int kShapes = 1500;
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  for (int i = 0; i < kShapes; ++i) {
    const std::string name = absl::StrCat("long-", i);
    world->SetLongest(name, (1 << 20) - i);
    world->AddDataset(name, 4);
  }
  Job large = World::NewJob();
  large.mutable_adapter()->set_rank(512);
  for (const char* target : {"k_proj", "v_proj", "o_proj"}) {
    large.mutable_adapter()->add_target_modules(target);
  }
  large.mutable_training()->set_max_length(1 << 20);
  // Nobody knows yet that there is no worker for them: they are let in.
  std::vector<std::string> jobs;
  for (int i = 0; i < kShapes; ++i) {
    large.set_training_dataset(absl::StrCat("long-", i));
    jobs.push_back(world->Submit(large));
  }
  world->Settle();
  world->StartWorkers();
  const std::string small = world->Submit(World::NewJob());
  world->RunUntilState(small, Job::SUCCEEDED);
  for (const std::string& job : jobs) REQUIRE(world->StateOf(job) == Job::QUEUED);
}

TEST_CASE("who asked for rows to be checked and left: the check ends, unless others wait for it") {
  auto world = MakeWorld();
  world->AddDataset("slow", 12);
  world->SlowChecks("slow", int64_t{3600} * 1'000'000);
  Job content = World::NewJob();
  content.set_training_dataset("slow");
  int answered = 0;
  const auto count = [&](absl::StatusOr<ReplyValue> reply) {
    answered += absl::IsCancelled(reply.status()) ? 1 : 0;
  };
  CreateJob validate;
  validate.job = content;
  validate.validate_only = true;
  const uint64_t first = world->Ask(validate, count);
  const uint64_t second = world->Ask(EstimateJob{content}, count);
  world->RunNext();
  world->Ask(GiveUpRequest{first}, [](absl::StatusOr<ReplyValue>) {});
  world->RunUntil([&] { return answered == 1; });
  CHECK(world->cancelled_checks() == 0);
  world->Ask(GiveUpRequest{second}, [](absl::StatusOr<ReplyValue>) {});
  world->RunUntil([&] { return answered == 2 && world->cancelled_checks() == 1; });
}

TEST_CASE("who is answered for one dataset's sake waits for the other's check no more") {
  auto world = MakeWorld();
  world->AddDataset("ill", 12);
  world->AddDataset("slow", 12);
  world->FailChecks("ill", absl::UnavailableError("its share is away"));
  world->SlowChecks("slow", int64_t{3600} * 1'000'000);
  CreateJob validate;
  validate.job = World::NewJob();
  validate.job.set_training_dataset("ill");
  validate.job.set_validation_dataset("slow");
  validate.validate_only = true;
  CHECK(absl::IsUnavailable(world->Call(validate).status()));
  CHECK(world->cancelled_checks() == 1);
  CHECK(world->now_us() < int64_t{3600} * 1'000'000);
}

TEST_CASE("a check ends when the dataset that only an estimate wanted is deleted") {
  auto world = MakeWorld();
  world->AddDataset("slow", 12);
  world->SlowChecks("slow", int64_t{3600} * 1'000'000);
  EstimateJob estimate{World::NewJob()};
  estimate.job.set_training_dataset("slow");
  std::optional<absl::Status> answer;
  world->Ask(estimate, [&](absl::StatusOr<ReplyValue> reply) { answer = reply.status(); });
  world->RunNext();
  v1::DeleteDatasetRequest remove;
  remove.set_name("slow");
  REQUIRE(world->Call(remove).ok());
  CHECK(world->cancelled_checks() == 1);
  world->RunUntil([&] { return answer.has_value(); });
  CHECK(Reason(*answer) == "INVALID_FIELDS");  // it names what is not there
}

}  // namespace
}  // namespace lorad::server
