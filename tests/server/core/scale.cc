// Many jobs, many steps: what is kept of them, in memory and in the store.
#include <malloc.h>

#include <ctime>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "server/core/events/store_kinds.h"
#include "server/core/events/turn.h"
#include "server/store/startup.h"
#include "tests/bench/finished_jobs.h"
#include "tests/bench/one_worker.h"
#include "tests/server/core/scenario.h"
#include "tests/sim/disk/memory_store.h"

namespace lorad::server {
namespace {

using bench::OneWorker;
using Job = v1::Job;
using Mutation = storage::Mutation;

std::string EndedJob(World& world, const std::string& display_name, const std::string& id = "") {
  Job job = World::NewJob();
  job.set_display_name(display_name);
  const std::string name = world.Submit(job, id);
  REQUIRE(world.Call(Named<v1::CancelJobRequest>(name)).ok());
  return name;
}

StoredState ReadOk(storage::JobStore& store) {
  absl::StatusOr<StoredState> stored = ReadStore(store);
  INFO(stored.status().ToString());
  REQUIRE(stored.ok());
  return *std::move(stored);
}

// ---- jobs that have ended ----

TEST_CASE("a job that has ended is answered as it was, deleted by its etag, and gone then") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string name = world->Submit(World::NewJob(), "r1");
  world->RunUntilState(name, Job::SUCCEEDED);
  const std::string ended = world->Job(name).SerializeAsString();
  const std::string other = EndedJob(*world, "other");
  world->Settle();
  CHECK(world->Job(name).SerializeAsString() == ended);
  CHECK(world->Get<Job>(Named<v1::CancelJobRequest>(name)).SerializeAsString() == ended);
  CHECK(world->Submit(World::NewJob(), "r1") == name);
  const auto snapshot = world->Get<JobSnapshot>(SnapshotJobs{{name, other}});
  CHECK(snapshot.jobs.size() == 2);
  world->CrashCoordinator();
  CHECK(world->Job(name).SerializeAsString() == ended);

  v1::DeleteCheckpointRequest checkpoint;
  checkpoint.set_job(name);
  checkpoint.set_step(2);
  REQUIRE(world->Call(checkpoint).ok());
  CHECK(world->Job(name).revision() > 0);
  v1::DeleteJobRequest remove = Named<v1::DeleteJobRequest>(name);
  remove.set_etag(absl::StrCat(world->Job(name).revision() - 1));
  CHECK(Reason(world->Call(remove).status()) == "ETAG_MISMATCH");
  remove.set_etag(world->Job(name).etag());
  CHECK(world->Call(remove).ok());
  CHECK(absl::IsNotFound(world->Call(Named<v1::GetJobRequest>(name)).status()));
  const auto list = world->Get<v1::ListJobsResponse>(v1::ListJobsRequest());
  REQUIRE(list.jobs_size() == 1);
  CHECK(list.jobs(0).name() == other);
  world->CheckInvariants();
}

TEST_CASE("a page looks at a bounded number of jobs, and all pages together find every one") {
  auto world = MakeWorld();
  constexpr int kJobs = 4500;
  const std::string first = EndedJob(*world, "first");
  for (int i = 1; i < kJobs; ++i) EndedJob(*world, "other");
  const std::string last = world->Submit(World::NewJob());
  const auto all = [&](const std::string& filter, int* pages) {
    v1::ListJobsRequest request;
    request.set_filter(filter);
    std::vector<std::string> found;
    for (*pages = 1;; ++*pages) {
      const auto page = world->Get<v1::ListJobsResponse>(request);
      for (const Job& job : page.jobs()) found.push_back(job.name());
      if (page.next_page_token().empty()) return found;
      request.set_page_token(page.next_page_token());
    }
  };
  int pages = 0;
  CHECK(all("display_name = first", &pages) == std::vector{first});
  CHECK(pages == 10);  // 500 records are read for one
  // A state is known without a record.
  CHECK(all("state = QUEUED", &pages) == std::vector{last});
  CHECK(pages == 1);
  CHECK(all("state != CANCELLED", &pages) == std::vector{last});
  CHECK(all("", &pages).size() == kJobs + 1);
  CHECK(pages == kJobs / 100 + 1);
}

TEST_CASE("a job that has ended takes less than 1,500 bytes of the core") {
  constexpr int64_t kJobs = 5000;
  sim::MemoryStore store;
  REQUIRE(bench::StoreFinishedJobs(store, kJobs, 1'000'000).ok());
  const auto before = static_cast<int64_t>(mallinfo2().uordblks);
  std::vector<Effect> effects;
  const auto core = Core::Create({}, ReadOk(store), {2'000'000, 2'000'000}, &effects);
  REQUIRE(core.ok());
  CHECK((static_cast<int64_t>(mallinfo2().uordblks) - before) / kJobs < 1500);
}

// ---- steps ----

// Applies to a store what a core wants kept, and counts.
struct Counter {
  sim::MemoryStore store;
  std::map<std::string, int64_t> puts;
  int64_t bytes = 0;

  OneWorker::Persist persist() {
    return [this](const std::vector<Mutation>& mutations) {
      REQUIRE(store.Apply(mutations).ok());
      for (const Mutation& mutation : mutations) {
        if (mutation.value.empty()) continue;
        puts[mutation.kind]++;
        bytes += static_cast<int64_t>(mutation.kind.size() + mutation.key.size() + 8 +
                                      mutation.value.size());
      }
    };
  }
};

TEST_CASE("a step keeps its metric row and its job's progress, and seldom the whole job") {
  constexpr int64_t kSteps = 5000;
  Counter counter;
  OneWorker house(kSteps + 1, counter.persist());
  int64_t begin = 10;
  while (!house.Job().has_first_forecast()) house.RunUntil(++begin);
  counter.puts.clear();
  counter.bytes = 0;
  house.RunUntil(kSteps);
  const int64_t steps = kSteps - begin;
  CHECK(counter.puts["metrics"] == steps);
  CHECK(counter.puts["progress"] == steps - counter.puts["job"]);
  CHECK(counter.puts["revision"] == 0);
  CHECK(counter.puts["job"] <= steps / kWholeEvery + 1);
  CHECK(counter.puts["event"] == 0);
  CHECK(counter.puts.size() == 5);  // those that are counted here, and no other
  CHECK(counter.bytes / steps < 300);
}

// All that a log tells that has nothing in memory, 7 at a time.
std::vector<RevisionLog::Revision> ReadBack(storage::JobStore& store) {
  const StoredState stored = ReadOk(store);
  RevisionLog log(0);
  log.Start({stored.store, stored.trimmed_revision, stored.last_revision, &store});
  std::vector<RevisionLog::Revision> told;
  int64_t after = stored.trimmed_revision;
  while (after < log.newest()) {
    const auto found = log.ReadStored(after, 7);
    INFO(after << ": " << found.status());
    REQUIRE(found.ok());
    REQUIRE(found->up_to > after);
    after = found->up_to;
    for (const auto& revision : found->revisions) told.push_back(*revision);
  }
  return told;
}

TEST_CASE("the store has every change as watchers were told it, and of progress the newest") {
  constexpr int64_t kSteps = 3000;
  Counter counter;
  OneWorker house(kSteps + 1, counter.persist());
  house.RunUntil(kSteps);
  for (int i = 0; i < 20; ++i) house.ComeAndGo();
  const auto told = house.revisions().Read(0, 1000);
  REQUIRE(told.ok());
  RevisionLog::Revisions changes = told->revisions;
  REQUIRE(std::erase_if(changes, [](const auto& one) { return one->progress; }) == 1);
  const std::vector<RevisionLog::Revision> stored = ReadBack(counter.store);
  REQUIRE(stored.size() == changes.size());
  for (size_t i = 0; i < stored.size(); ++i) {
    CHECK(stored[i].revision == changes[i]->revision);
    CHECK(stored[i].job == changes[i]->job);
    CHECK(stored[i].message == changes[i]->message);
  }
  v1::WatchJobsResponse last;
  REQUIRE(last.ParseFromString(stored.back().message));
  CHECK(last.deleted());
  CHECK(ReadOk(counter.store).last_revision == house.revisions().newest());
}

TEST_CASE("changes are kept for an hour, however many steps there are, and then dropped") {
  CoreOptions options;
  options.watch_keep_ms = 10'000;
  Counter counter;
  OneWorker house(100'000, counter.persist(), options);
  const int64_t begin = house.now_us();
  const int64_t first = ReadOk(counter.store).last_revision;
  REQUIRE(first > 0);
  const auto kept = [&] { return ReadOk(counter.store).trimmed_revision < first; };
  int64_t steps = 0;
  while (house.now_us() - begin < 9'900'000) house.RunUntil(steps += 100);
  CHECK(kept());
  CHECK(steps > 2000);
  while (house.now_us() - begin < 12'000'000) house.RunUntil(steps += 100);
  CHECK_FALSE(kept());
  RevisionLog log(0);
  const StoredState stored = ReadOk(counter.store);
  log.Start({stored.store, 0, stored.last_revision, &counter.store});
  CHECK(Reason(log.ReadStored(first - 1, 10).status()) == "REVISION_GONE");
  CHECK(log.ReadStored(stored.trimmed_revision, 10).ok());
}

TEST_CASE("a difference that began long ago is seen in the rows that are kept") {
  constexpr int64_t kSteps = 3000;
  Counter counter;
  OneWorker house(kSteps + 1, counter.persist());
  house.RunUntil(kSteps);
  house.LoseWorker(/*loss_offset=*/1e-9);
  house.RunUntil(kSteps - kMetricRowsKept - 10);
  const auto mismatches = [&] {
    int64_t count = 0;
    const std::string name = house.Job().name();
    const auto events = counter.store.ReadSeries(kEventSeries, name, 0, kSteps * 10);
    for (const storage::Entry& entry : *events) {
      v1::Event event;
      REQUIRE(event.ParseFromString(entry.value));
      count += event.reason() == "NUMERICS_MISMATCH";
    }
    return count;
  };
  CHECK(mismatches() == 0);
  house.RunUntil(kSteps - 10);
  CHECK(mismatches() > 0);
  // The first rows stay.
  v1::StepMetrics row;
  const auto rows = counter.store.ReadSeries(kMetricsSeries, house.Job().name(), 0, 1);
  REQUIRE(row.ParseFromString(rows->at(0).value));
  CHECK(row.loss() == 2.0);
}

TEST_CASE("a long job that has saved nothing yet begins again after a crash, and counts right") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(500);
  content.mutable_training()->set_checkpoint_every_steps(0);
  const std::string job = world->Submit(content);
  world->RunUntil([&] { return world->Job(job).step() >= 1300; });
  world->CrashCoordinator();
  CHECK(world->Job(job).step() == 0);
  CHECK(world->Job(job).tokens() == 0);
  CHECK_FALSE(world->Job(job).has_loss());  // no step is done
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).loss() > 0);
  CHECK(world->Job(job).tokens() == world->Job(job).total_tokens());
  world->CheckInvariants();
}

// ---- request ids ----

TEST_CASE("a create that is repeated gets the first answer, also when what it made is gone") {
  auto world = MakeWorld();
  const std::string job = EndedJob(*world, "", "r1");
  RegisterModel model;
  model.model.set_name("m3");
  model.config_json = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": true, "vocab_size": 256,
    "torch_dtype": "float32"})";
  model.request_id = {"r2", "content"};
  const std::string made = world->Get<v1::Model>(model).SerializeAsString();
  REQUIRE(world->Call(Named<v1::DeleteJobRequest>(job)).ok());
  REQUIRE(world->Call(Named<v1::UnregisterModelRequest>("m3")).ok());
  for (int start = 0; start < 2; ++start) {
    CreateJob again;
    again.job = World::NewJob();
    again.job.set_display_name("");
    again.request_id = {"r1", again.job.SerializeAsString()};
    const Job answer = world->Get<Job>(again);
    CHECK(answer.name() == job);
    CHECK(answer.state() == Job::VALIDATING);
    CHECK(world->Get<v1::Model>(model).SerializeAsString() == made);
    CHECK(absl::IsNotFound(world->Call(Named<v1::GetJobRequest>(job)).status()));
    CHECK(Reason(world->Call(Named<v1::GetModelRequest>("m3")).status()) == "MODEL_NOT_FOUND");
    world->CrashCoordinator();
  }
}

TEST_CASE("request ids are forgotten while it runs: by age, and when too many came after") {
  WorldOptions options;
  options.core.request_ids_max = 3;
  options.core.request_answers_max = 1;
  auto world = MakeWorld(options);
  const auto submit = [&](int i) { return world->Submit(World::NewJob(), absl::StrCat("r", i)); };
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back(submit(i));
  CHECK(submit(1) == names[1]);
  CHECK(submit(3) == names[3]);
  for (const int i : {1, 3}) {
    REQUIRE(world->Call(Named<v1::CancelJobRequest>(names[i])).ok());
    REQUIRE(world->Call(Named<v1::DeleteJobRequest>(names[i])).ok());
  }
  for (int start = 0; start < 2; ++start) {
    CHECK(submit(3) == names[3]);
    CreateJob again;
    again.job = World::NewJob();
    again.request_id = {"r1", again.job.SerializeAsString()};
    CHECK(Reason(world->Call(again).status()) == "JOB_NOT_FOUND");  // its answer is not kept
    world->CrashCoordinator();
  }
  CHECK(submit(0) != names[0]);
  world->Sleep(int64_t{8} * 24 * 3600 * 1'000'000);
  CHECK(submit(4) != "");
  CHECK(submit(2) != names[2]);
}

// ---- stores of older versions ----

TEST_CASE("a store of the version before opens: its live job goes on, its request ids hold") {
  const Job config = bench::TypicalJob();
  StoredState stored = bench::HouseOf(config);
  records::JobRecord old;
  old.set_order(1);
  *old.mutable_job() = config;
  old.mutable_job()->set_name("job-aaaaaaaa");
  old.mutable_job()->set_state(Job::RUNNING);
  old.mutable_job()->set_revision(90);
  old.mutable_job()->set_total_steps(10);
  old.mutable_job()->set_step(6);
  old.mutable_job()->set_tokens(600);
  old.mutable_job()->set_last_checkpoint_step(4);
  old.set_furthest_step(7);
  old.add_checkpoint_steps(4);
  for (const int64_t step : {0, 2, 4}) old.add_evaluated_steps(step);
  stored.jobs.emplace_back("job-aaaaaaaa", old.SerializeAsString());
  for (const int64_t step : {5, 6, 7}) {
    v1::StepMetrics row;
    row.set_step(step);
    row.set_tokens(100 + step);
    stored.metrics.emplace_back("job-aaaaaaaa", row);
  }
  records::RequestRecord request;
  request.set_content("what was asked for");
  request.set_name("job-aaaaaaaa");
  request.set_time_us(1'000'000);
  stored.requests.emplace_back("job/r1", request.SerializeAsString());
  stored.last_revision = 95;
  std::vector<Effect> effects;
  auto core = Core::Create({}, std::move(stored), {2'000'000, 2'000'000}, &effects);
  REQUIRE(core.ok());

  records::JobRecord now;
  for (const Mutation& mutation : std::get<Persist>(effects.at(0)).mutations) {
    if (mutation.kind == kJobKind) REQUIRE(now.ParseFromString(mutation.value));
  }
  CHECK(now.job().state() == Job::QUEUED);
  CHECK(now.job().step() == 4);
  CHECK(now.job().tokens() == 600 - 105 - 106);
  CHECK(now.checkpoint_tokens() == now.job().tokens());
  CHECK(now.evaluated_end() == 5);
  CHECK(now.evaluated_steps().empty());
  CHECK(now.job().revision() > 95);
  const auto ask = [&](const std::string& content) {
    CreateJob create;
    create.job = config;
    create.request_id = {"r1", content};
    const auto answered = (*core)->Apply({{3'000'000, 3'000'000}, Requested{1, create}});
    return std::get<Reply>(answered.at(0));
  };
  CHECK(std::get<Job>(ask("what was asked for").value).name() == "job-aaaaaaaa");
  CHECK(Reason(ask("something else").status) == "REQUEST_ID_REUSED");
}

TEST_CASE("a store that lacks the model of a live job is not opened") {
  const Job config = bench::TypicalJob();
  StoredState stored = bench::HouseOf(config);
  records::JobRecord record;
  record.set_order(1);
  *record.mutable_job() = config;
  record.mutable_job()->set_name("job-aaaaaaaa");
  record.mutable_job()->set_state(Job::QUEUED);
  stored.jobs.emplace_back("job-aaaaaaaa", record.SerializeAsString());
  stored.models.clear();
  std::vector<Effect> effects;
  const auto core = Core::Create({}, std::move(stored), {2'000'000, 2'000'000}, &effects);
  CHECK(Reason(core.status()) == "STORE_CORRUPT");
  CHECK_THAT(std::string(core.status().message()), Catch::Contains("job-aaaaaaaa"));
}

}  // namespace
}  // namespace lorad::server
