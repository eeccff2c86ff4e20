#include "server/driver/mailbox.h"

#include <catch2/catch.hpp>

namespace lorad::server {
namespace {

class StillClock final : public Clock {
 public:
  Moment Now() override { return now; }
  Moment now{1, 1};
};

Mailbox::Content Ask(uint64_t request) { return Requested{request, v1::GetClusterRequest()}; }
Mailbox::Content Shard(uint64_t request) { return Requested{request, ShardUploaded{}}; }
Mailbox::Content Heartbeat(uint64_t connection, int64_t peak = 0) {
  WorkerSaid said{connection, {}};
  said.message.mutable_heartbeat()->set_peak_resident_bytes(peak);
  return said;
}
Mailbox::Content Report(uint64_t connection) {
  WorkerSaid said{connection, {}};
  said.message.mutable_report()->set_epoch(1);
  return said;
}

TEST_CASE("each kind of mail has its share, and the ends of effects always get in") {
  StillClock clock;
  int told = 0;
  Mailbox mailbox(clock, {.requests_max = 2, .shards_max = 1, .messages_max = 2}, [&] { ++told; });
  CHECK(mailbox.Post(Ask(1)));
  CHECK(mailbox.Post(Ask(2)));
  Mailbox::Content refused = Ask(3);
  CHECK_FALSE(mailbox.Post(std::move(refused)));
  CHECK(std::get<Requested>(refused).request == 3);  // handed back whole
  CHECK(mailbox.Post(Shard(4)));
  CHECK_FALSE(mailbox.Post(Shard(5)));
  for (const uint64_t connection : {7, 8}) {
    CHECK(mailbox.Post(Report(connection)));
    CHECK(mailbox.Post(Report(connection)));
    CHECK_FALSE(mailbox.Post(Report(connection)));
  }
  for (int i = 0; i < 100; ++i) CHECK(mailbox.Post(WorkerGone{7, "gone"}));
  CHECK(mailbox.Post(UploadMoved{1, absl::OkStatus()}));
  CHECK(told == 2 + 1 + 4 + 101);
  // What was taken makes room.
  CHECK(mailbox.Take(1).size() == 1);
  CHECK(mailbox.Post(Ask(6)));
  CHECK_FALSE(mailbox.Post(Ask(7)));
}

TEST_CASE("a worker's newest heartbeat stands for all, with the time at which it came") {
  StillClock clock;
  Mailbox mailbox(clock, {}, [] {});
  CHECK(mailbox.Post(Heartbeat(7, 1)));
  CHECK(mailbox.Post(Ask(1)));
  clock.now.steady_us = 5;
  for (int i = 2; i <= 10'000; ++i) CHECK(mailbox.Post(Heartbeat(7, i)));
  CHECK(mailbox.Post(Heartbeat(8, 3)));
  const std::vector<Mailbox::Mail> mail = mailbox.Take(100);
  REQUIRE(mail.size() == 3);
  CHECK(std::get<WorkerSaid>(mail[0].content).message.heartbeat().peak_resident_bytes() == 10'000);
  CHECK(mail[0].posted.steady_us == 5);
  CHECK(mail[1].posted.steady_us == 1);
  CHECK(mailbox.Post(Heartbeat(7, 11)));
  CHECK(mailbox.Take(100).size() == 1);
}

TEST_CASE("clients' requests are taken from between the others, which keep their order") {
  StillClock clock;
  Mailbox mailbox(clock, {}, [] {});
  CHECK(mailbox.TakeRequests().empty());
  for (Mailbox::Content& content :
       std::vector<Mailbox::Content>{Report(7), Ask(1), Shard(2), Ask(3), Heartbeat(7)}) {
    CHECK(mailbox.Post(std::move(content)));
  }
  const std::vector<Mailbox::Mail> requests = mailbox.TakeRequests();
  REQUIRE(requests.size() == 2);
  CHECK(std::get<Requested>(requests[0].content).request == 1);
  CHECK(std::get<Requested>(requests[1].content).request == 3);
  CHECK(mailbox.newest() == 5);
  CHECK(mailbox.HasUpTo(1));
  const std::vector<Mailbox::Mail> rest = mailbox.Take(100);
  REQUIRE(rest.size() == 3);
  CHECK(rest[1].number == 3);
  CHECK_FALSE(mailbox.HasUpTo(5));
}

TEST_CASE("after Close mail is dropped") {
  StillClock clock;
  Mailbox mailbox(clock, {}, [] {});
  CHECK(mailbox.Post(Ask(1)));
  mailbox.Close();
  CHECK(mailbox.Post(Ask(2)));
  CHECK(mailbox.Take(100).empty());
}

}  // namespace
}  // namespace lorad::server
