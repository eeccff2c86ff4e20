// A watch that is taken up again, against a service that a script plays.
#include "client/calls/follow.h"

#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "client/calls/error.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

// Each stream tells its revisions, of one store, and ends with a status.
struct Stream {
  std::vector<int64_t> revisions;
  grpc::StatusCode end = grpc::StatusCode::UNAVAILABLE;
  bool stays = false;  // open until the client leaves
};

struct FakeJobs final : v1::Jobs::Service {
  std::deque<Stream> streams;
  std::string store = "0123456789abcdef";
  std::vector<v1::WatchJobsRequest> requests;

  grpc::Status WatchJobs(grpc::ServerContext* context, const v1::WatchJobsRequest* request,
                         grpc::ServerWriter<v1::WatchJobsResponse>* writer) override {
    requests.push_back(*request);
    const Stream stream = streams.front();
    streams.pop_front();
    for (const int64_t revision : stream.revisions) {
      v1::WatchJobsResponse response;
      response.set_revision(revision);
      response.set_store(store);
      response.mutable_job()->set_name("job-a");
      writer->Write(response);
    }
    while (stream.stays && !context->IsCancelled()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return {stream.end, "as the script says"};
  }
};

struct Fixture {
  FakeJobs jobs;
  Session session;
  std::unique_ptr<grpc::Server> server;
  std::vector<int64_t> told;
  int anew = 0, lost = 0;

  Fixture() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&jobs);
    server = builder.BuildAndStart();
    REQUIRE(server);
    session.server = "127.0.0.1:" + std::to_string(port);
  }
  ~Fixture() { server->Shutdown(std::chrono::system_clock::now()); }

  // Until revision 9 is told.
  Following WhatToFollow() {
    Following following;
    following.jobs = {"job-a"};
    following.told = [this](const v1::WatchJobsResponse& news) {
      told.push_back(news.revision());
      return news.revision() != 9;
    };
    following.anew = [this] { ++anew; };
    following.lost = [this] { ++lost; };
    return following;
  }
};

TEST_CASE_METHOD(Fixture, "a watch goes on behind what it was told, of the same store") {
  jobs.streams = {{{3, 5}}, {{}}, {{7, 9}}};
  CHECK(Follower(session, WhatToFollow()).Run().ok());
  CHECK(told == std::vector<int64_t>{3, 5, 7, 9});
  CHECK(lost == 1);
  CHECK(anew == 0);
  REQUIRE(jobs.requests.size() == 3);
  CHECK(jobs.requests[0].resume_from_revision() == 0);
  CHECK(jobs.requests[0].resume_from_store().empty());
  CHECK(jobs.requests[0].bookmarks());
  CHECK(jobs.requests[0].names(0) == "job-a");
  CHECK(jobs.requests[2].resume_from_revision() == 5);
  CHECK(jobs.requests[2].resume_from_store() == jobs.store);
}

TEST_CASE_METHOD(Fixture, "where its revision is gone, or of another store, it begins anew") {
  jobs.streams = {{{3, 5}}, {{}, grpc::StatusCode::OUT_OF_RANGE}, {{2, 9}}};
  CHECK(Follower(session, WhatToFollow()).Run().ok());
  CHECK(told == std::vector<int64_t>{3, 5, 2, 9});
  CHECK(anew == 1);
  REQUIRE(jobs.requests.size() == 3);
  CHECK(jobs.requests[2].resume_from_revision() == 0);
  CHECK(jobs.requests[2].resume_from_store().empty());
}

TEST_CASE_METHOD(Fixture, "a refusal ends it, and so does a daemon that never was there") {
  jobs.streams = {{{3}, grpc::StatusCode::NOT_FOUND}};
  CHECK(ReasonOf(Follower(session, WhatToFollow()).Run()) == "NOT_FOUND");
  jobs.streams = {{{}, grpc::StatusCode::UNAVAILABLE}};
  CHECK(ReasonOf(Follower(session, WhatToFollow()).Run()) == "UNREACHABLE");
}

TEST_CASE_METHOD(Fixture, "whoever stops it from outside waits for no news") {
  jobs.streams = {{{3}, grpc::StatusCode::OK, /*stays=*/true}};
  std::promise<void> heard;
  Following following = WhatToFollow();
  following.told = [&](const v1::WatchJobsResponse&) {
    heard.set_value();
    return true;
  };
  Follower follower(session, following);
  std::thread stops([&] {
    heard.get_future().wait();
    follower.Stop();
  });
  CHECK(follower.Run().ok());
  stops.join();
  CHECK(follower.Run().ok());
  CHECK(jobs.requests.size() == 1);
}

}  // namespace
}  // namespace lorad::client
