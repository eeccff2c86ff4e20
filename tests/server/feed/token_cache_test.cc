#include "server/feed/token_cache.h"

#include <catch2/catch.hpp>

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
  const CachedRow row = (*cache)->row(1);
  CHECK(std::vector<int32_t>(row.ids.begin(), row.ids.end()) ==
        std::vector<int32_t>{1, 1, 1, 1, 1, 1});
  CHECK(std::vector<int32_t>(row.labels.begin(), row.labels.end()) ==
        std::vector<int32_t>{-100, 1, 1, 1, 1, 1});
  CHECK(row.trained_tokens == 5);
  CHECK((*cache)->row(2).ids[1] == 2);
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
  CHECK((*cache)->row(1).ids[1] == 3);
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

}  // namespace
}  // namespace lorad::server::feed
