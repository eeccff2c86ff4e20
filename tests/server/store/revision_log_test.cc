// What watchers are told, from memory and from the store.
#include "server/store/revision_log.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lorad/v1/jobs.pb.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "server/errors/errors.h"
#include "server/store/startup.h"
#include "tests/sim/disk/memory_store.h"

namespace lorad::server {
namespace {

std::string Message(const std::string& job, int64_t revision) {
  v1::WatchJobsResponse message;
  message.mutable_job()->set_name(job);
  message.mutable_job()->set_revision(revision);
  message.set_revision(revision);
  return message.SerializeAsString();
}

// A log with two changes in memory.
struct House {
  sim::MemoryStore store;
  RevisionLog log{2};

  House() { log.Start({"0123456789abcdef", 0, 0, &store}); }
  void Store(const std::string& job, int64_t revision) {
    REQUIRE(store.Apply({storage::PutEntry(kRevisionSeries, "", revision, Message(job, revision))})
                .ok());
  }
  void Change(const std::string& job, int64_t revision) {
    Store(job, revision);
    log.Append({revision, job, Message(job, revision)});
  }
  void Progress(const std::string& job, int64_t revision) {
    log.Append({revision, job, Message(job, revision), true});
  }
  void Trim(int64_t revision) {
    REQUIRE(store
                .Apply({storage::TrimSeries(kRevisionSeries, "", revision),
                        storage::PutRecord(kMetaKind, kTrimmedKey, absl::StrCat(revision))})
                .ok());
  }
};

// "JOB@REVISION ..., to UP_TO"; "in store"; or the reason of the error.
std::string Text(const absl::StatusOr<RevisionLog::Found>& found) {
  if (!found.ok()) return Reason(found.status());
  if (found->in_store) return "in store";
  std::string text = absl::StrJoin(found->revisions, " ", [](std::string* out, const auto& one) {
    absl::StrAppend(out, one->job, "@", one->revision);
  });
  return absl::StrCat(text, " to ", found->up_to);
}

TEST_CASE("older changes are read from the store, and newer ones from memory") {
  House house;
  for (int64_t revision = 1; revision <= 5; ++revision) house.Change("a", revision);
  CHECK(Text(house.log.Read(0, 10)) == "in store");
  CHECK(Text(house.log.ReadStored(0, 2)) == "a@1 a@2 to 2");
  CHECK(Text(house.log.ReadStored(2, 2)) == "a@3 to 3");
  CHECK(Text(house.log.Read(3, 10)) == "a@4 a@5 to 5");
  CHECK(Text(house.log.Read(3, 1)) == "a@4 to 4");
  CHECK(Text(house.log.Read(5, 10)) == " to 5");
  CHECK(Text(house.log.Read(6, 10)) == "REVISION_GONE");  // it is yet to come
}

TEST_CASE("what is in the store and not announced yet is not told") {
  House house;
  house.Change("a", 1);
  house.Store("a", 2);
  CHECK(Text(house.log.Read(0, 10)) == "a@1 to 1");
  house.Change("a", 3);
  house.Change("a", 4);
  CHECK(Text(house.log.Read(0, 10)) == "in store");
  CHECK(Text(house.log.ReadStored(0, 10)) == "a@1 to 1");
}

TEST_CASE("of progress the newest of each job is told, at its place among the changes") {
  House house;
  house.Progress("a", 1);
  house.Progress("b", 2);
  house.Progress("a", 3);
  house.Change("c", 4);
  house.Progress("b", 5);
  CHECK(Text(house.log.Read(0, 10)) == "a@3 c@4 b@5 to 5");
  CHECK(Text(house.log.Read(0, 2)) == "a@3 c@4 to 4");
  CHECK(Text(house.log.Read(0, 1)) == "a@3 to 3");
  CHECK(Text(house.log.Read(3, 10)) == "c@4 b@5 to 5");
  house.Change("a", 6);  // takes the place of its progress
  CHECK(Text(house.log.Read(0, 10)) == "c@4 b@5 a@6 to 6");
  house.Change("c", 7);
  house.Change("c", 8);  // now some are in the store alone, and a job's progress lies among them
  CHECK(Text(house.log.Read(0, 10)) == "in store");
  CHECK(Text(house.log.ReadStored(0, 10)) == "c@4 b@5 a@6 to 6");
  CHECK(Text(house.log.ReadStored(0, 2)) == "c@4 b@5 to 5");
  CHECK(Text(house.log.ReadStored(5, 2)) == "a@6 to 6");
}

TEST_CASE("what is trimmed in the store is told to be gone, whatever else is there") {
  House house;
  for (int64_t revision = 1; revision <= 9; ++revision) house.Change("a", revision);
  house.Trim(5);
  CHECK(Text(house.log.ReadStored(4, 10)) == "REVISION_GONE");
  CHECK(Text(house.log.ReadStored(5, 10)) == "a@6 a@7 to 7");
  house.Trim(8);
  CHECK(Text(house.log.Read(7, 10)) == "a@8 a@9 to 9");  // there is still memory
  house.log.Shutdown();
  CHECK(Text(house.log.Read(7, 10)) == "SHUTTING_DOWN");
  CHECK(Text(house.log.ReadStored(7, 10)) == "SHUTTING_DOWN");
}

TEST_CASE("a damaged change is the store's error, not silence") {
  House house;
  for (int64_t revision = 1; revision <= 5; ++revision) house.Change("a", revision);
  REQUIRE(house.store.Apply({storage::PutEntry(kRevisionSeries, "", 2, "\xff")}).ok());
  CHECK(Text(house.log.ReadStored(0, 10)) == "STORE_CORRUPT");
}

TEST_CASE("a store of before gets an identity; the steps among its changes are passed over") {
  House house;
  records::RevisionRecord step;
  step.set_progress_only(true);
  step.mutable_job()->set_name("a");
  house.Store("a", 11);
  for (const int64_t revision : {12, 13, 15}) {
    step.set_revision(revision);
    step.mutable_job()->set_revision(revision);
    REQUIRE(house.store
                .Apply({storage::PutEntry(kRevisionSeries, "", revision, step.SerializeAsString())})
                .ok());
  }
  house.Store("b", 14);
  absl::StatusOr<StoredState> stored = ReadStore(house.store);
  REQUIRE(stored.ok());
  CHECK(stored->store.empty());
  CHECK(stored->last_revision == 15);
  CHECK(stored->trimmed_revision == 10);
  REQUIRE(Identify(house.store, 0xabcdef).ok());
  stored = ReadStore(house.store);
  REQUIRE(stored.ok());
  CHECK(stored->store == "0000000000abcdef");
  RevisionLog log(2);
  log.Start({stored->store, stored->trimmed_revision, stored->last_revision, &house.store});
  CHECK(Text(log.ReadStored(10, 2)) == "a@11 to 12");
  CHECK(Text(log.ReadStored(12, 1)) == " to 13");
  CHECK(Text(log.ReadStored(13, 10)) == "b@14 to 15");
  CHECK(Text(log.ReadStored(9, 10)) == "REVISION_GONE");
}

TEST_CASE("after all jobs are deleted and their changes trimmed, revisions go on") {
  House house;
  house.Change("a", 1);
  house.Trim(700);
  const absl::StatusOr<StoredState> stored = ReadStore(house.store);
  REQUIRE(stored.ok());
  CHECK(stored->last_revision == 700);
}

TEST_CASE("a revision of another store is refused, and one that names no store is not") {
  House house;
  CHECK(house.log.CheckStore("0123456789abcdef").ok());
  CHECK(house.log.CheckStore("").ok());
  const absl::Status other = house.log.CheckStore("fedcba9876543210");
  CHECK(absl::IsOutOfRange(other));
  CHECK(Reason(other) == "OTHER_STORE");
  house.log.Start({"", 0, 0, nullptr});  // there was no room for one
  CHECK(house.log.CheckStore("fedcba9876543210").ok());
}

}  // namespace
}  // namespace lorad::server
