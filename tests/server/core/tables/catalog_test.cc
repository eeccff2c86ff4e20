// The catalog by itself: names, uploads, and what it says of its own state.
#include "server/core/catalog/catalog.h"

#include <catch2/catch.hpp>

#include "server/core/events/store_kinds.h"

namespace lorad::server {
namespace {

struct Fixture {
  CoreOptions options;
  Turn turn;
  Answers answers{options, turn};
  Catalog catalog{turn, answers};

  Fixture() {
    turn.Start({1'000'000, 1'000'000}, 2);
    turn.End();
  }

  template <class Content>
  std::vector<Effect> Ask(uint64_t request, const Content& content) {
    catalog.On(request, content);
    return turn.End();
  }

  std::vector<Effect> Moved(uint64_t number, absl::Status status) {
    catalog.OnMoved({number, std::move(status)});
    return turn.End();
  }
};

CreateDataset DatasetOf(const std::string& name, const std::string& request_id = "") {
  CreateDataset content;
  content.dataset.set_name(name);
  content.dataset.set_sha256("sha-of-" + name);
  content.upload = "uploads/" + name;
  content.request_id = {request_id, name};
  return content;
}

absl::Status StatusOf(const Effect& effect) { return std::get<Reply>(effect).status; }

TEST_CASE("a dataset is there once its upload is moved, and its name is taken from the start") {
  Fixture house;
  const auto asked = house.Ask(1, DatasetOf("d"));
  REQUIRE(asked.size() == 1);
  CHECK(std::get<MoveUpload>(asked[0]).path == "datasets/d-3-1.jsonl");
  CHECK_FALSE(house.catalog.HasDataset("d"));
  CHECK(house.catalog.CheckInvariants().ok());

  const auto again = house.Ask(2, DatasetOf("d"));
  REQUIRE(again.size() == 2);
  CHECK(std::get<RemovePath>(again[0]).path == "uploads/d");
  CHECK(absl::IsAlreadyExists(StatusOf(again[1])));

  const auto moved = house.Moved(1, absl::OkStatus());
  REQUIRE(moved.size() == 2);
  CHECK(std::get<Persist>(moved[0]).mutations.size() == 1);
  CHECK(StatusOf(moved[1]).ok());
  CHECK(house.catalog.Dataset("d").path() == "datasets/d-3-1.jsonl");
  CHECK(house.catalog.Paths() == std::vector<std::string>{"datasets/d-3-1.jsonl"});
  CHECK(house.catalog.CheckInvariants().ok());
}

TEST_CASE("a name is free again when its upload could not be moved") {
  Fixture house;
  house.Ask(1, DatasetOf("d"));
  const auto failed = house.Moved(1, absl::NotFoundError("no folder"));
  REQUIRE(failed.size() == 1);
  CHECK(absl::IsUnavailable(StatusOf(failed[0])));
  const auto second = house.Ask(2, DatasetOf("d"));
  REQUIRE(second.size() == 1);
  CHECK(std::get<MoveUpload>(second[0]).path == "datasets/d-3-2.jsonl");
  CHECK(house.catalog.CheckInvariants().ok());
}

TEST_CASE("two uploads under one request id are one") {
  Fixture house;
  house.Ask(1, DatasetOf("d", "id"));
  const auto second = house.Ask(2, DatasetOf("d", "id"));
  REQUIRE(second.size() == 1);
  CHECK(std::holds_alternative<RemovePath>(second[0]));
  CHECK(house.catalog.CheckInvariants().ok());
  CHECK(house.Moved(1, absl::OkStatus()).size() == 3);  // a Persist, and an answer to each
  const auto third = house.Ask(3, DatasetOf("d", "id"));
  REQUIRE(third.size() == 2);
  CHECK(std::get<v1::Dataset>(std::get<Reply>(third[0]).value).name() == "d");
}

TEST_CASE("what is used is not deleted; what is not there cannot be") {
  Fixture house;
  house.Ask(1, DatasetOf("d"));
  CHECK(absl::IsNotFound(house.catalog.CheckDelete(kDatasetKind, "d", "")));
  house.Moved(1, absl::OkStatus());
  CHECK(absl::IsFailedPrecondition(house.catalog.CheckDelete(kDatasetKind, "d", "job-a")));
  CHECK(house.catalog.CheckDelete(kDatasetKind, "d", "").ok());
  house.catalog.Delete(kDatasetKind, "d");
  CHECK_FALSE(house.catalog.HasDataset("d"));
  const auto effects = house.turn.End();
  REQUIRE(effects.size() == 3);
  CHECK(std::get<RemovePath>(effects[1]).path == "datasets/d-3-1.jsonl");
  CHECK(std::get<CloseRows>(effects[2]).dataset_path == "datasets/d-3-1.jsonl");
}

TEST_CASE("a record under another's name is noticed") {
  Fixture house;
  v1::Dataset dataset;
  dataset.set_name("other");
  records::DatasetRecord record;
  *record.mutable_dataset() = dataset;
  StoredState stored;
  stored.datasets = {{"d", record.SerializeAsString()}};
  REQUIRE(house.catalog.Load(stored).ok());
  CHECK_FALSE(house.catalog.CheckInvariants().ok());
}

}  // namespace
}  // namespace lorad::server
