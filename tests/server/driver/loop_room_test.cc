// What the coordinator's loop does on a disk without room.
#include "server/core/room.h"
#include "tests/server/driver/loop_fixture.h"

namespace lorad::server {
namespace {

TEST_CASE("while the store has no room reads are answered as committed, and writes are refused") {
  for (const absl::Status& failure : {DiskFull(), absl::UnavailableError("read-only")}) {
    Coordinator coordinator;
    REQUIRE(coordinator.Call(NewModel("m")).ok());
    REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
    const std::string job = std::get<v1::Job>(*coordinator.Call(NewJob())).name();
    const int64_t revision =
        std::get<JobSnapshot>(*coordinator.Call(SnapshotJobs{})).jobs.at(0).revision();
    Connect(coordinator, 1, /*memory_bytes=*/1);  // the job waits for a larger one
    coordinator.store.failure = failure;
    const uint64_t waits = coordinator.Ask(Named<v1::CancelJobRequest>(job));
    coordinator.Settle();
    CHECK(absl::IsUnavailable(coordinator.writable));

    const auto read = coordinator.Call(Named<v1::GetJobRequest>(job));
    REQUIRE(read.ok());
    CHECK(std::get<v1::Job>(*read).state() == v1::Job::QUEUED);  // the cancel is not committed
    CHECK(std::get<v1::Job>(*read).queue().why().find("cannot be written") != std::string::npos);
    CHECK(absl::IsNotFound(coordinator.Call(Named<v1::GetJobRequest>("job-x")).status()));
    CHECK(std::get<v1::ListJobsResponse>(*coordinator.Call(v1::ListJobsRequest())).jobs_size() ==
          1);
    CHECK(std::get<v1::Model>(*coordinator.Call(Named<v1::GetModelRequest>("m"))).name() == "m");
    const auto datasets = coordinator.Call(v1::ListDatasetsRequest());
    CHECK(std::get<v1::ListDatasetsResponse>(*datasets).datasets(0).name() == "d");
    const auto snapshot = std::get<JobSnapshot>(*coordinator.Call(SnapshotJobs{}));
    REQUIRE(snapshot.jobs.size() == 1);
    CHECK(snapshot.jobs[0].revision() == revision);
    SnapshotJobs before;
    before.up_to = revision - 1;
    CHECK(std::get<JobSnapshot>(*coordinator.Call(before)).jobs.empty());
    // What is of this process alone is told from its memory.
    const auto workers = coordinator.Call(v1::ListWorkersRequest());
    REQUIRE(workers.ok());
    CHECK(std::get<v1::ListWorkersResponse>(*workers).workers(0).name() == "w");
    const auto cluster = coordinator.Call(v1::GetClusterRequest());
    REQUIRE(cluster.ok());
    CHECK(std::get<v1::ClusterStatus>(*cluster).workers() == 1);
    // Its jobs are counted as they are stored.
    CHECK(std::get<v1::ClusterStatus>(*cluster).jobs_by_state().at("QUEUED") == 1);
    CHECK(std::get<v1::ClusterStatus>(*cluster).jobs_by_state_size() == 1);
    CHECK(coordinator.Call(EstimateJob{NewJob().job}).ok());
    EstimateJob unchecked{NewJob().job};
    unchecked.job.mutable_training()->set_max_length(32);
    CHECK(absl::IsUnavailable(coordinator.Call(unchecked).status()));

    const CreateDataset upload = NewDataset(coordinator, "e");
    for (const Request& write :
         {Request(upload), Request(NewModel("n")), Request(NewJob()), Request(StopRequested{})}) {
      CHECK(absl::IsUnavailable(coordinator.Call(write).status()));
    }
    CHECK_FALSE(fs::exists(upload.upload));
    CHECK_FALSE(coordinator.answers.contains(waits));
    coordinator.Sleep(4 * kSecond);
    CHECK_FALSE(coordinator.answers.contains(waits));
    coordinator.Sleep(2 * kSecond);
    REQUIRE(coordinator.answers.contains(waits));
    CHECK(absl::IsUnavailable(coordinator.answers.at(waits).status()));
    CHECK(coordinator.answers.at(waits).status().message().find(
              "/disk has 1000 MiB free, and 0 KiB are wanted") != std::string::npos);

    // A worker that speaks meanwhile is heard at its time, however long that lasts.
    for (int i = 0; i < 60; ++i) {
      SayHeartbeat(coordinator, 1);
      coordinator.Sleep(kSecond);
    }
    coordinator.store.failure = absl::OkStatus();
    coordinator.Sleep(2 * kSecond);
    CHECK(coordinator.writable.ok());
    CHECK(coordinator.closed.empty());
    const auto cancelled = coordinator.Call(Named<v1::GetJobRequest>(job));
    CHECK(std::get<v1::Job>(*cancelled).state() == v1::Job::CANCELLED);
  }
}

TEST_CASE("while the store cannot be written jobs that have a place say that they wait, and why") {
  for (const absl::Status& failure : {DiskFull(), absl::UnavailableError("it was moved away")}) {
    Coordinator coordinator;
    REQUIRE(coordinator.Call(NewModel("m")).ok());
    REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
    const std::string job = std::get<v1::Job>(*coordinator.Call(NewJob())).name();
    Connect(coordinator, 1);
    REQUIRE(coordinator.sent.back().has_form_group());
    v1::ListJobsRequest summaries;
    summaries.set_view(v1::ListJobsRequest::SUMMARY);
    const auto shown = [&] {
      return std::vector<v1::Job>{
          std::get<v1::Job>(*coordinator.Call(Named<v1::GetJobRequest>(job))),
          std::get<JobSnapshot>(*coordinator.Call(SnapshotJobs{})).jobs.at(0),
          std::get<v1::ListJobsResponse>(*coordinator.Call(v1::ListJobsRequest())).jobs(0),
          std::get<v1::ListJobsResponse>(*coordinator.Call(summaries)).jobs(0)};
    };
    const auto cluster = [&] {
      return std::get<v1::ClusterStatus>(*coordinator.Call(v1::GetClusterRequest()));
    };
    const auto estimate = [&] {
      return std::get<v1::JobEstimate>(*coordinator.Call(EstimateJob{NewJob().job}));
    };
    for (const v1::Job& one : shown()) CHECK(one.stalled().empty());
    CHECK(cluster().warnings().empty());
    CHECK(estimate().has_forecast());

    coordinator.store.failure = failure;
    coordinator.Ask(NewModel("n"));
    coordinator.Settle();
    const std::string why(coordinator.writable.message());
    CHECK_THAT(why, Catch::StartsWith("the store cannot be written") &&
                        Catch::Contains(std::string(failure.message())));
    for (const v1::Job& one : shown()) {
      CHECK(one.state() == v1::Job::PREPARING);
      CHECK(one.stalled() == why);
      CHECK(one.tokens_per_second() == 0);
      CHECK_FALSE(one.has_seconds_left());
    }
    REQUIRE(cluster().warnings_size() == 1);
    CHECK(cluster().warnings(0) == why + "; jobs wait until then");
    CHECK_FALSE(estimate().has_forecast());
    CHECK(estimate().no_forecast() == why);

    coordinator.store.failure = absl::OkStatus();
    coordinator.Sleep(2 * kSecond);
    for (const v1::Job& one : shown()) CHECK(one.stalled().empty());
    CHECK(cluster().warnings().empty());
    CHECK(estimate().has_forecast());
  }
}

TEST_CASE("a read that comes with the write that the store has no room for does not wait for it") {
  Coordinator coordinator;
  REQUIRE(coordinator.Call(NewModel("m")).ok());
  REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
  const std::string job = std::get<v1::Job>(*coordinator.Call(NewJob())).name();
  coordinator.store.failure = DiskFull();
  const uint64_t before = coordinator.Ask(Named<v1::GetJobRequest>(job));
  const uint64_t write = coordinator.Ask(Named<v1::CancelJobRequest>(job));
  const uint64_t after = coordinator.Ask(Named<v1::GetJobRequest>(job));
  const uint64_t workers = coordinator.Ask(v1::ListWorkersRequest());
  coordinator.Settle();
  for (const uint64_t read : {before, after}) {
    REQUIRE(coordinator.answers.contains(read));
    REQUIRE(coordinator.answers.at(read).ok());
    CHECK(std::get<v1::Job>(*coordinator.answers.at(read)).state() != v1::Job::CANCELLED);
  }
  REQUIRE(coordinator.answers.contains(workers));
  CHECK(coordinator.answers.at(workers).ok());
  CHECK_FALSE(coordinator.answers.contains(write));

  // Each is answered once, and the write when it is on the disk.
  coordinator.answers.clear();
  coordinator.store.failure = absl::OkStatus();
  coordinator.Sleep(2 * kSecond);
  CHECK(coordinator.answers.size() == 1);
  REQUIRE(coordinator.answers.contains(write));
  CHECK(coordinator.answers.at(write).ok());
}

TEST_CASE("a create that the store has no room for is refused within seconds, and made once") {
  Coordinator coordinator;
  REQUIRE(coordinator.Call(NewModel("m")).ok());
  REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
  coordinator.store.failure = DiskFull();
  const CreateDataset upload = NewDataset(coordinator, "e");
  const uint64_t job = coordinator.Ask(NewJob("request-1")), dataset = coordinator.Ask(upload);
  coordinator.Settle();
  coordinator.Sleep(6 * kSecond);
  for (const uint64_t request : {job, dataset}) {
    REQUIRE(coordinator.answers.contains(request));
    CHECK(ReasonOf(coordinator.answers.at(request).status()) == "DISK_FULL");
  }
  const auto none = coordinator.Call(v1::ListJobsRequest());
  CHECK(std::get<v1::ListJobsResponse>(*none).jobs_size() == 0);
  CHECK(absl::IsUnavailable(coordinator.Call(NewJob("request-1")).status()));
  coordinator.store.failure = absl::OkStatus();
  coordinator.Sleep(2 * kSecond);
  const auto again = coordinator.Call(NewJob("request-1"));
  REQUIRE(again.ok());
  const auto all = coordinator.Call(v1::ListJobsRequest());
  REQUIRE(std::get<v1::ListJobsResponse>(*all).jobs_size() == 1);
  CHECK(std::get<v1::ListJobsResponse>(*all).jobs(0).name() == std::get<v1::Job>(*again).name());
}

TEST_CASE("reads of what is committed are made beside the loop, and summaries where asked for") {
  Coordinator coordinator;
  REQUIRE(coordinator.Call(NewModel("m")).ok());
  REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
  REQUIRE(coordinator.Call(NewJob()).ok());
  coordinator.store.failure = DiskFull();
  coordinator.Ask(NewModel("n"));
  coordinator.Settle();
  v1::ListJobsRequest request;
  request.set_view(v1::ListJobsRequest::SUMMARY);
  const uint64_t list = coordinator.Ask(request);
  while (coordinator.Step()) {
  }
  CHECK(coordinator.tasks.tasks.size() == 1);
  CHECK_FALSE(coordinator.answers.contains(list));
  coordinator.Settle();
  REQUIRE(coordinator.answers.contains(list));
  const auto page = std::get<v1::ListJobsResponse>(*coordinator.answers.at(list));
  REQUIRE(page.jobs_size() == 1);
  CHECK(page.jobs(0).adapter().rank() == 4);
  CHECK_FALSE(page.jobs(0).has_training());
  CHECK_FALSE(page.jobs(0).has_queue());
}

TEST_CASE("a watch that begins while the store is written again has what was told before") {
  Coordinator coordinator;
  REQUIRE(coordinator.Call(NewModel("m")).ok());
  REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
  coordinator.store.failure = DiskFull();
  coordinator.Ask(NewJob());
  while (coordinator.Step()) {
  }
  SnapshotJobs begin;
  begin.up_to = coordinator.revisions->newest();
  const uint64_t snapshot = coordinator.Ask(begin);
  while (coordinator.Step()) {
  }
  // Its read comes behind the commit.
  coordinator.store.failure = absl::OkStatus();
  coordinator.Sleep(2 * kSecond);
  REQUIRE(coordinator.answers.at(snapshot).ok());
  CHECK(std::get<JobSnapshot>(*coordinator.answers.at(snapshot)).jobs.empty());
  const auto told = coordinator.revisions->Read(begin.up_to, 10);
  REQUIRE(told.ok());
  CHECK_FALSE(told->revisions.empty());
}

TEST_CASE("lists of what is committed come in pages, as the core's do") {
  Coordinator coordinator;
  for (const char* name : {"m", "n", "o"}) REQUIRE(coordinator.Call(NewModel(name)).ok());
  REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
  for (int i = 0; i < 5; ++i) REQUIRE(coordinator.Call(NewJob()).ok());
  const auto walk = [&] {
    std::string seen;
    v1::ListModelsRequest models;
    models.set_page_size(2);
    do {
      const auto page = std::get<v1::ListModelsResponse>(*coordinator.Call(models));
      for (const v1::Model& model : page.models()) seen += model.name() + " ";
      models.set_page_token(page.next_page_token());
      seen += "| ";
    } while (!models.page_token().empty());
    v1::ListJobsRequest jobs;
    jobs.set_page_size(2);
    do {
      const auto page = std::get<v1::ListJobsResponse>(*coordinator.Call(jobs));
      for (const v1::Job& job : page.jobs()) seen += job.name() + " ";
      jobs.set_page_token(page.next_page_token());
      seen += "| ";
    } while (!jobs.page_token().empty());
    return seen;
  };
  const std::string before = walk();
  coordinator.store.failure = DiskFull();
  coordinator.Ask(NewModel("p"));
  coordinator.Settle();
  CHECK(walk() == before);
}

TEST_CASE("a full disk: the store goes on in the ballast's room, and creates are refused") {
  constexpr int64_t kReserve = 64 * kMiB;
  Coordinator coordinator(kReserve);
  coordinator.Settle();
  CHECK(coordinator.disk.ballast_bytes == kReserve);
  REQUIRE(coordinator.Call(NewModel("m")).ok());

  coordinator.disk.free_bytes = 10 * kMiB;
  coordinator.Sleep(kSecond);
  CHECK(ReasonOf(coordinator.writable) == "DISK_FULL");
  const absl::Status refused = coordinator.Call(NewModel("n")).status();
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(refused.message().find("/disk has 10 MiB free, and 80 MiB are wanted") !=
        std::string::npos);
  CHECK(coordinator.disk.ballast_bytes == kReserve);  // the store can still write

  // Others take the rest; the first commit that fails finds room.
  coordinator.disk.free_bytes = 0;
  coordinator.store.failure = DiskFull();
  const uint64_t request = coordinator.Ask(Named<v1::UnregisterModelRequest>("m"));
  REQUIRE(coordinator.Step());
  REQUIRE(coordinator.Step());
  CHECK(coordinator.disk.ballast_bytes == 0);
  coordinator.store.failure = absl::OkStatus();
  coordinator.Settle();
  CHECK(coordinator.answers.at(request).ok());

  // A little room is not enough to start over; enough makes the ballast again.
  coordinator.disk.free_bytes = 130 * kMiB;
  coordinator.Sleep(kSecond);
  CHECK_FALSE(coordinator.writable.ok());
  CHECK_FALSE(coordinator.Call(NewModel("n")).ok());
  coordinator.disk.free_bytes = 200 * kMiB;
  coordinator.Sleep(kSecond / 10);
  CHECK(coordinator.writable.ok());
  CHECK(coordinator.Call(NewModel("n")).ok());
  CHECK(coordinator.disk.ballast_bytes == kReserve);

  // Who makes room and asks at once is not refused by what was free before.
  coordinator.disk.free_bytes = 10 * kMiB;
  coordinator.Sleep(kSecond);
  coordinator.disk.free_bytes = 79 * kMiB;
  const absl::Status still = coordinator.Call(NewModel("o")).status();
  CHECK(still.message().find("/disk has 79 MiB free, and 80 MiB are wanted") != std::string::npos);
  coordinator.disk.free_bytes = 80 * kMiB;
  CHECK(coordinator.Call(NewModel("o")).ok());
  CHECK(coordinator.writable.ok());
}

TEST_CASE("of a small disk a sixteenth is kept at most") {
  HandDisk disk;
  disk.size_bytes = 32 * kMiB;
  disk.free_bytes = 20 * kMiB;
  RoomWatch room(disk, 64 * kMiB);
  CHECK_FALSE(room.Look().has_value());
  CHECK(disk.ballast_bytes == 2 * kMiB);
  disk.free_bytes = kMiB;
  const std::optional<RoomChanged> low = room.Look();
  REQUIRE(low.has_value());
  CHECK(low->low());
  CHECK_FALSE(room.Look().has_value());
  CHECK(ReasonOf(room.Check()) == "DISK_FULL");
  disk.free_bytes = 3 * kMiB;
  CHECK(room.Check().ok());  // there is room since the last look
  disk.free_bytes = kMiB;
  CHECK(room.Check().message().find("has 1 MiB free") != std::string::npos);
  disk.free_bytes = 3 * kMiB;
  CHECK_FALSE(room.Look()->low());
  CHECK(room.Check().ok());
}

TEST_CASE("a disk without inodes has no room, though bytes are free") {
  HandDisk disk;
  RoomWatch room(disk, 64 * kMiB);
  CHECK_FALSE(room.Look().has_value());
  disk.free_files = RoomWatch::kFilesMin - 1;
  const std::optional<RoomChanged> low = room.Look();
  REQUIRE(low.has_value());
  const absl::Status status = CheckRoom(*low);
  CHECK(ReasonOf(status) == "DISK_FULL");
  CHECK(status.message().find("has 127 inodes free, and 160 are wanted") != std::string::npos);
  disk.free_files = 159;
  CHECK(room.Look()->low());
  disk.free_files = 160;
  CHECK_FALSE(room.Look()->low());
  CHECK_FALSE(room.Look().has_value());
}

TEST_CASE("a real disk: the ballast holds room that its removal gives back") {
  std::string pattern = (fs::temp_directory_path() / "lorad_disk_XXXXXX").string();
  const std::string directory = mkdtemp(pattern.data());
  const std::unique_ptr<Disk> disk = RealDisk(directory);
  CHECK(disk->Free()->bytes > 0);
  CHECK(disk->Free()->files > 0);
  CHECK(disk->SizeBytes().value() >= disk->Free()->bytes);
  CHECK_FALSE(disk->HasBallast(kMiB));
  REQUIRE(disk->MakeBallast(kMiB).ok());
  CHECK(disk->HasBallast(kMiB));
  CHECK_FALSE(disk->HasBallast(2 * kMiB));
  CHECK(fs::file_size(directory + "/ballast") == kMiB);
  // More than any disk has leaves nothing behind.
  CHECK_FALSE(disk->MakeBallast(int64_t{1} << 61).ok());
  CHECK_FALSE(fs::exists(directory + "/ballast"));
  CHECK(disk->DropBallast().ok());
  fs::remove_all(directory);
}

}  // namespace
}  // namespace lorad::server
