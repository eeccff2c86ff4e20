#include "server/feed/token_cache.h"

#include <catch2/catch.hpp>

#include "storage/files/sha256.h"
#include "storage/models/model_directory.h"
#include "tests/server/feed/house.h"

namespace lorad::server::feed {
namespace {

struct Cached : House {
  TokenCacheKey key{"dataset", "model", {.max_length = 6}};
  std::string path = directory / "cache.tokens";

  absl::StatusOr<storage::DatasetReport> Write(const std::string& dataset) {
    auto opened = storage::ModelDirectory::Open(model());
    REQUIRE(opened.status().message() == "");
    auto text_model = storage::LoadTextModel(*opened);
    REQUIRE(text_model.ok());
    const auto bytes = storage::RealFiles().ReadAll(directory / dataset, 1 << 20);
    key.dataset_sha256 = storage::Sha256::Of(bytes.value_or(""));
    return WriteTokenCache(storage::RealFiles(), directory / dataset, *text_model, key, path);
  }
};

TEST_CASE("What is written is read") {
  Cached cached;
  const auto written = cached.Write(cached.AddTokens("a.jsonl", {3, 9, 2}));
  REQUIRE(written.ok());
  CHECK(written->truncated_rows == 1);
  const auto cache = TokenCache::Open(cached.path, cached.key);
  REQUIRE(cache.status().message() == "");
  CHECK((*cache)->rows() == 3);
  const auto row = (*cache)->Read(1);
  REQUIRE(row.status().message() == "");
  CHECK(std::vector<int32_t>(row->ids().begin(), row->ids().end()) ==
        std::vector<int32_t>{1, 1, 1, 1, 1, 1});
  CHECK(std::vector<int32_t>(row->labels().begin(), row->labels().end()) ==
        std::vector<int32_t>{-100, 1, 1, 1, 1, 1});
  CHECK(row->trained_tokens == 5);
  CHECK(row->line == 2);
  CHECK((*cache)->tokens(1) == 6);
  CHECK((*cache)->Read(2)->ids()[1] == 2);
  CHECK((*cache)->report().tokens == 11);
  CHECK((*cache)->report().trained_tokens == 8);
  CHECK((*cache)->report().truncated_rows == 1);
  CHECK((*cache)->report().longest_tokens == 6);
  CHECK((*cache)->report().format == storage::DatasetFormat::kTokens);
}

TEST_CASE("Bad rows leave no cache") {
  Cached cached;
  cached.directory.Write("a.jsonl", "{\"input_ids\":[1,99],\"labels\":[1,2]}\n");
  const auto report = cached.Write("a.jsonl");
  REQUIRE(report.ok());
  CHECK(report->error_count == 1);
  CHECK(absl::IsNotFound(TokenCache::Open(cached.path, cached.key).status()));
  CHECK(storage::RealFiles().List(cached.directory.path())->size() == 2);  // dataset and model
  CHECK(absl::IsNotFound(cached.Write("none.jsonl").status()));
}

TEST_CASE("Rows that are left out are counted, and not in the cache") {
  Cached cached;
  cached.key.options.overflow = storage::Overflow::kSkip;
  cached.directory.Write("a.jsonl",
                         "{\"input_ids\":[1,2],\"labels\":[1,2]}\n"
                         "{\"input_ids\":[1,2],\"labels\":[1,-100]}\n"
                         "{\"input_ids\":[1,3],\"labels\":[1,3]}\n");
  const auto report = cached.Write("a.jsonl");
  REQUIRE(report.ok());
  CHECK(report->error_count == 0);
  const auto cache = TokenCache::Open(cached.path, cached.key);
  REQUIRE(cache.status().message() == "");
  CHECK((*cache)->rows() == 2);
  CHECK((*cache)->Read(1)->ids()[1] == 3);
  CHECK((*cache)->report().rows == 3);
  CHECK((*cache)->report().sequences == 2);
  CHECK((*cache)->report().skipped_rows == 1);
}

TEST_CASE("Another key is not this one's cache") {
  Cached cached;
  REQUIRE(cached.Write(cached.AddTokens("a.jsonl", {3})).ok());
  for (const TokenCacheKey& other :
       {TokenCacheKey{"other", "model", {.max_length = 6}},
        TokenCacheKey{"dataset", "other", {.max_length = 6}},
        TokenCacheKey{"dataset", "model", {.max_length = 7}},
        TokenCacheKey{"dataset", "model", {.max_length = 6, .overflow = storage::Overflow::kSkip}},
        TokenCacheKey{"dataset", "model", {.max_length = 6, .train_on = storage::TrainOn::kAll}}}) {
    CHECK(absl::IsDataLoss(TokenCache::Open(cached.path, other).status()));
    CHECK(other.FileName() != cached.key.FileName());
  }
}

TEST_CASE("Damage anywhere is found") {
  Cached cached;
  REQUIRE(cached.Write(cached.AddTokens("a.jsonl", {3, 5, 2})).ok());
  const std::string good = cached.directory.Read("cache.tokens");
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    cached.directory.Write("cache.tokens", bad);
    INFO("byte " << at);
    REQUIRE(absl::IsDataLoss(TokenCache::Open(cached.path, cached.key).status()));
  }
  for (size_t length = 0; length < good.size(); ++length) {
    cached.directory.Write("cache.tokens", good.substr(0, length));
    INFO("length " << length);
    REQUIRE(absl::IsDataLoss(TokenCache::Open(cached.path, cached.key).status()));
  }
  cached.directory.Write("cache.tokens", good + good);
  CHECK(absl::IsDataLoss(TokenCache::Open(cached.path, cached.key).status()));
  cached.directory.Write("cache.tokens", good);
  CHECK(TokenCache::Open(cached.path, cached.key).ok());
}

TEST_CASE("Of an open cache a row is what was written, or an error") {
  Cached cached;
  REQUIRE(cached.Write(cached.AddTokens("a.jsonl", {3, 5, 2})).ok());
  const std::string good = cached.directory.Read("cache.tokens");
  const auto cache = TokenCache::Open(cached.path, cached.key);
  REQUIRE(cache.ok());
  std::vector<std::vector<int32_t>> words;
  for (int64_t row = 0; row < 3; ++row) words.push_back((*cache)->Read(row)->words);
  size_t errors = 0;
  const auto check = [&](absl::StatusCode code) {
    for (int64_t row = 0; row < 3; ++row) {
      const auto read = (*cache)->Read(row);
      if (!read.ok()) {
        ++errors;
        REQUIRE(read.status().code() == code);
        continue;
      }
      REQUIRE(read->words == words[static_cast<size_t>(row)]);
      REQUIRE(read->line == row + 1);
      REQUIRE(read->trained_tokens == std::ssize(read->ids()) - 1);
    }
  };
  const size_t rows_end = 8 + 3 * 16 + 8 * (3 + 5 + 2);
  SECTION("overwritten in place") {
    for (size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      cached.directory.Write("cache.tokens", bad);
      INFO("byte " << at);
      check(absl::StatusCode::kDataLoss);
    }
    CHECK(errors == rows_end - 8);  // each byte of a row is that row's alone
  }
  SECTION("zeros, as after a crash of the machine") {
    cached.directory.Write("cache.tokens", std::string(good.size(), '\0'));
    check(absl::StatusCode::kDataLoss);
    CHECK(errors == 3);
  }
  SECTION("cut short") {
    for (size_t length = 0; length <= rows_end; ++length) {
      cached.directory.Write("cache.tokens", good.substr(0, length));
      INFO("length " << length);
      check(absl::StatusCode::kOutOfRange);
    }
    CHECK(errors == 48 + 104 + 136);  // a row is there once all of it is
  }
  SECTION("a whole cache of another key") {
    Cached other;
    other.key.model_fingerprint = "other";
    REQUIRE(other.Write(other.AddTokens("a.jsonl", {3, 5, 2})).ok());
    const std::string whole = other.directory.Read("cache.tokens");
    REQUIRE(whole.size() == good.size());
    cached.directory.Write("cache.tokens", whole);
    check(absl::StatusCode::kDataLoss);
    CHECK(errors == 3);
  }
  SECTION("removed, or another one in its place: an open file stays") {
    REQUIRE(storage::RealFiles().Remove(cached.path).ok());
    check(absl::StatusCode::kOk);
    cached.directory.Write("cache.tokens", "another");
    check(absl::StatusCode::kOk);
  }
}

TEST_CASE("A row that lies where another one was is none") {
  Cached cached;
  REQUIRE(cached.Write(cached.AddTokens("a.jsonl", {4, 4})).ok());
  const auto cache = TokenCache::Open(cached.path, cached.key);
  REQUIRE(cache.ok());
  std::string bytes = cached.directory.Read("cache.tokens");
  bytes.replace(8, 48, bytes.substr(8 + 48, 48));
  cached.directory.Write("cache.tokens", bytes);
  CHECK(absl::IsDataLoss((*cache)->Read(0).status()));
  CHECK((*cache)->Read(1)->ids()[0] == 1);
}

}  // namespace
}  // namespace lorad::server::feed
