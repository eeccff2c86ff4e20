// WatchJobs: the present state, then every change, over a real channel.
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "lorad/v1/cluster.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "server/core/events/store_kinds.h"
#include "server/validation/limits.h"
#include "tests/server/services/api_fixture.h"
#include "tests/sim/disk/memory_store.h"

namespace lorad::server {
namespace {

v1::Job Named(const std::string& name, int64_t revision) {
  v1::Job job;
  job.set_name(name);
  job.set_revision(revision);
  return job;
}

struct WatchFixture : ApiFixture {
  explicit WatchFixture(ApiServerOptions options = {})
      : ApiFixture(storage::RealFiles(), std::move(options)), stub(v1::Jobs::NewStub(channel)) {
    driver.revisions().Start({kStore, 0, 10, &store});
    driver.answer = [](const Request& request) -> absl::StatusOr<ReplyValue> {
      JobSnapshot snapshot;
      const auto& asked = std::get<SnapshotJobs>(request);
      for (const auto& [name, revision] :
           std::vector<std::pair<std::string, int64_t>>{{"b", 3}, {"c", 5}, {"a", 9}}) {
        const auto& names = asked.names;
        const bool among =
            names.empty() || std::find(names.begin(), names.end(), name) != names.end();
        if (among && revision > asked.after) snapshot.jobs.push_back(Named(name, revision));
      }
      return ReplyValue(snapshot);
    };
  }

  // As the driver does it: a change is in the store first.
  void Tell(const std::string& name, int64_t revision, bool progress = false, size_t bytes = 0) {
    v1::WatchJobsResponse response;
    *response.mutable_job() = Named(name, revision);
    response.mutable_job()->set_display_name(std::string(bytes, 'x'));
    response.set_revision(revision);
    std::string message = response.SerializeAsString();
    if (!progress) {
      REQUIRE(store.Apply({storage::PutEntry(kRevisionSeries, "", revision, message)}).ok());
    }
    driver.revisions().Append({revision, name, std::move(message), progress});
  }

  // "NAME@REVISION" of the next response, "@REVISION" of a bookmark; "end" when there is none.
  static std::string Next(grpc::ClientReader<v1::WatchJobsResponse>& reader) {
    v1::WatchJobsResponse response;
    if (!reader.Read(&response)) return "end";
    CHECK(response.store() == kStore);
    return response.job().name() + "@" + std::to_string(response.revision());
  }
  // A watch that resumes.
  std::unique_ptr<grpc::ClientReader<v1::WatchJobsResponse>> Resume(
      Context& context, int64_t revision, const std::string& of_store = "",
      const std::vector<std::string>& names = {}, bool bookmarks = false) {
    v1::WatchJobsRequest request;
    for (const std::string& name : names) request.add_names(name);
    request.set_resume_from_revision(revision);
    request.set_resume_from_store(of_store);
    request.set_bookmarks(bookmarks);
    return stub->WatchJobs(&context, request);
  }

  std::unique_ptr<v1::Jobs::Stub> stub;
  sim::MemoryStore store;
};

TEST_CASE_METHOD(WatchFixture, "a watch begins with the present state and goes on with changes") {
  Context context;
  auto reader = stub->WatchJobs(&context, {});
  CHECK(Next(*reader) == "b@3");
  CHECK(Next(*reader) == "c@5");
  CHECK(Next(*reader) == "a@9");
  Tell("c", 11);
  Tell("a", 12);
  CHECK(Next(*reader) == "c@11");
  CHECK(Next(*reader) == "a@12");
  server->BeginStop();
  CHECK(Next(*reader) == "end");
  CHECK(ErrorInfoOf(reader->Finish()).reason() == "SHUTTING_DOWN");
}

TEST_CASE_METHOD(WatchFixture, "a watch of names, and one that resumes") {
  v1::WatchJobsRequest request;
  request.add_names("c");
  Context context;
  auto named = stub->WatchJobs(&context, request);
  CHECK(Next(*named) == "c@5");
  Tell("b", 11);
  Tell("c", 12);
  CHECK(Next(*named) == "c@12");
  context.TryCancel();

  request.clear_names();
  request.set_resume_from_revision(11);
  Context second;
  auto resumed = stub->WatchJobs(&second, request);
  CHECK(Next(*resumed) == "c@12");
  second.TryCancel();

  request.set_resume_from_revision(99);
  Context third;
  auto gone = stub->WatchJobs(&third, request);
  CHECK(Next(*gone) == "end");
  CHECK(gone->Finish().error_code() == grpc::OUT_OF_RANGE);

  request.set_resume_from_revision(-1);
  Context fourth;
  CHECK(Summary(stub->WatchJobs(&fourth, request)->Finish()) ==
        "INVALID_FIELDS resume_from_revision: must not be negative;");
}

TEST_CASE_METHOD(WatchFixture, "a resumed watch makes no snapshot") {
  Tell("a", 11);
  Tell("a", 12);
  v1::WatchJobsRequest request;
  request.set_resume_from_revision(11);
  Context context;
  auto reader = stub->WatchJobs(&context, request);
  CHECK(Next(*reader) == "a@12");
  CHECK(driver.Requests<SnapshotJobs>().empty());
  context.TryCancel();
}

TEST_CASE_METHOD(WatchFixture, "a snapshot comes in pages, and only as fast as it is read") {
  constexpr int64_t kJobs = 1000;
  constexpr size_t kPages = kJobs / 64 + 1;
  driver.answer = [](const Request& request) -> absl::StatusOr<ReplyValue> {
    const auto& asked = std::get<SnapshotJobs>(request);
    JobSnapshot snapshot;
    for (int64_t revision = asked.after + 1; revision <= kJobs; ++revision) {
      if (static_cast<int64_t>(snapshot.jobs.size()) == asked.limit) break;
      v1::Job job = Named("j" + std::to_string(revision), revision);
      job.set_display_name(std::string(16 << 10, 'x'));
      snapshot.jobs.push_back(job);
    }
    return ReplyValue(snapshot);
  };
  driver.revisions().Start({kStore, 0, kJobs, &store});
  Context context;
  auto reader = stub->WatchJobs(&context, {});
  CHECK(Next(*reader) == "j1@1");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(driver.Requests<SnapshotJobs>().size() < kPages);
  for (int64_t revision = 2; revision <= kJobs; ++revision) {
    REQUIRE(Next(*reader) == "j" + std::to_string(revision) + "@" + std::to_string(revision));
  }
  Tell("j1", kJobs + 1);
  CHECK(Next(*reader) == "j1@1001");
  CHECK(driver.Requests<SnapshotJobs>().size() == kPages);
  context.TryCancel();
}

TEST_CASE_METHOD(WatchFixture, "a watcher that reads slowly misses no change, nor its jobs' news") {
  constexpr int64_t kNewest = 2000;  // twenty times what is in memory
  Context context;
  auto reader = stub->WatchJobs(&context, {});
  reader->WaitForInitialMetadata();
  for (int64_t revision = 11; revision <= kNewest; ++revision) {
    Tell(revision % 3 == 0 ? "b" : "a", revision, revision % 3 == 0, 8 << 10);
  }
  int64_t last = 0;
  std::set<int64_t> told;
  v1::WatchJobsResponse message;
  while (last < kNewest && reader->Read(&message)) {
    REQUIRE(message.revision() > last);
    told.insert(last = message.revision());
  }
  for (int64_t revision = 11; revision <= kNewest; ++revision) {
    if (revision % 3 != 0) REQUIRE(told.contains(revision));
  }
  CHECK(told.contains(kNewest - kNewest % 3));  // the newest progress of b
  context.TryCancel();
}

TEST_CASE_METHOD(WatchFixture, "a revision behind which changes are gone, or of another store") {
  for (int64_t revision = 11; revision <= 300; ++revision) Tell("a", revision);
  {
    Context context;
    auto kept = Resume(context, 20, kStore);
    for (int64_t revision = 21; revision <= 300; ++revision) {
      REQUIRE(Next(*kept) == "a@" + std::to_string(revision));
    }
    CHECK(driver.Requests<SnapshotJobs>().empty());
    context.TryCancel();
  }
  REQUIRE(store
              .Apply({storage::TrimSeries(kRevisionSeries, "", 50),
                      storage::PutRecord(kMetaKind, kTrimmedKey, "50")})
              .ok());
  {
    Context context;
    auto gone = Resume(context, 49, kStore);
    CHECK(Next(*gone) == "end");
    const grpc::Status status = gone->Finish();
    CHECK(status.error_code() == grpc::OUT_OF_RANGE);
    CHECK(ErrorInfoOf(status).reason() == "REVISION_GONE");
    CHECK(ErrorInfoOf(status).metadata().at("oldest_revision") == "51");
  }
  {
    Context context;
    auto kept = Resume(context, 50, kStore);
    CHECK(Next(*kept) == "a@51");
    context.TryCancel();
  }
  Context context;
  const grpc::Status status = Resume(context, 299, "fedcba9876543210")->Finish();
  CHECK(status.error_code() == grpc::OUT_OF_RANGE);
  CHECK(ErrorInfoOf(status).reason() == "OTHER_STORE");
  CHECK(status.error_message().find("watch again without resume_from_revision") !=
        std::string::npos);
}

TEST_CASE_METHOD(WatchFixture, "one who comes back is told of a job's newest progress, once") {
  Tell("a", 11, true);
  Tell("b", 12, true);
  Tell("a", 13, true);
  Tell("b", 14);
  Context context;
  auto reader = Resume(context, 10);
  CHECK(Next(*reader) == "a@13");
  CHECK(Next(*reader) == "b@14");
  Tell("a", 15, true);
  CHECK(Next(*reader) == "a@15");
  context.TryCancel();
}

struct BookmarkFixture : WatchFixture {
  static ApiServerOptions Soon() {
    ApiServerOptions options;
    options.bookmark_wait = absl::Milliseconds(300);
    return options;
  }
  BookmarkFixture() : WatchFixture(Soon()) {}
};

TEST_CASE_METHOD(BookmarkFixture, "bookmarks: behind the present state, and in silence") {
  v1::WatchJobsRequest request;
  request.add_names("c");
  request.set_bookmarks(true);
  Context context;
  auto reader = stub->WatchJobs(&context, request);
  CHECK(Next(*reader) == "c@5");
  CHECK(Next(*reader) == "@10");
  // Of others: nothing is told, but for the newest revision after a while.
  const absl::Time began = absl::Now();
  Tell("a", 11);
  Tell("b", 12, true);
  CHECK(Next(*reader) == "@12");
  CHECK(absl::Now() - began > absl::Milliseconds(250));
  Tell("c", 13);
  CHECK(Next(*reader) == "c@13");
  Tell("a", 14);
  CHECK(Next(*reader) == "@14");
  context.TryCancel();

  Context again;
  auto resumed = Resume(again, 14, kStore, {"c"}, true);
  resumed->WaitForInitialMetadata();
  Tell("c", 15);
  CHECK(Next(*resumed) == "c@15");
  again.TryCancel();
}

TEST_CASE_METHOD(BookmarkFixture, "who changes as a watch begins is told before its bookmark") {
  driver.answer = [](const Request&) -> absl::StatusOr<ReplyValue> {
    return ReplyValue(JobSnapshot{.jobs = {Named("b", 3)}, .changed = {"a", "c"}});
  };
  v1::WatchJobsRequest request;
  request.set_live_only(true);
  request.set_bookmarks(true);
  Context context;
  auto reader = stub->WatchJobs(&context, request);
  CHECK(Next(*reader) == "b@3");
  std::this_thread::sleep_for(
      std::chrono::milliseconds(400));  // the core has them, the log not yet
  Tell("c", 11);
  CHECK(Next(*reader) == "c@11");
  Tell("b", 12);
  CHECK(Next(*reader) == "b@12");
  Tell("a", 13);
  CHECK(Next(*reader) == "a@13");
  CHECK(Next(*reader) == "@13");
  context.TryCancel();
}

TEST_CASE_METHOD(BookmarkFixture, "who asks for no bookmarks gets none") {
  Context context;
  auto reader = Resume(context, 10, kStore, {"c"});
  reader->WaitForInitialMetadata();
  Tell("a", 11);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  Tell("c", 12);
  CHECK(Next(*reader) == "c@12");
  context.TryCancel();
}

// Watches on as many connections as they take.
struct ManyWatches {
  ManyWatches(WatchFixture& api, int count) {
    for (int i = 0; i < count; ++i) {
      if (i % 250 == 0) stubs.push_back(v1::Jobs::NewStub(api.NewChannel()));
      contexts.push_back(std::make_unique<Context>());
      readers.push_back(stubs.back()->WatchJobs(contexts.back().get(), {}));
    }
    for (const auto& reader : readers) REQUIRE(WatchFixture::Next(*reader) == "b@3");
  }
  ~ManyWatches() {
    for (const auto& context : contexts) context->TryCancel();
  }
  std::vector<std::unique_ptr<v1::Jobs::Stub>> stubs;
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchJobsResponse>>> readers;
};

size_t Threads() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                           std::filesystem::directory_iterator()));
}

TEST_CASE_METHOD(WatchFixture, "a thousand watches take no thread each") {
  const ManyWatches first(*this, 1);
  const size_t before = Threads();
  const ManyWatches watches(*this, 1000);
  // The server's, the clients' and the test's own.
  CHECK(Threads() <= 48);
  CHECK(Threads() <= before + 16);
  Tell("a", 11);
  for (const auto& reader : watches.readers) {
    REQUIRE(Next(*reader) == "c@5");
    REQUIRE(Next(*reader) == "a@9");
    REQUIRE(Next(*reader) == "a@11");
  }
}

TEST_CASE_METHOD(WatchFixture, "watches are limited, and unary calls go on beside them") {
  {
    const ManyWatches watches(*this, kWatchesMax);
    Context context;
    const grpc::Status refused = stub->WatchJobs(&context, {})->Finish();
    CHECK(refused.error_code() == grpc::RESOURCE_EXHAUSTED);
    CHECK(ErrorInfoOf(refused).reason() == "TOO_MANY_CALLS");
    Context second;
    v1::GetMetricsResponse metrics;
    CHECK(stub->GetMetrics(&second, {}, &metrics).ok());
  }
  CHECK(Eventually([&] {
    Context again;
    auto reader = stub->WatchJobs(&again, {});
    const bool heard = Next(*reader) == "b@3";
    again.TryCancel();
    return heard;
  }));
}

}  // namespace
}  // namespace lorad::server
