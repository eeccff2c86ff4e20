#include "storage/tokenization/bpe.h"

#include <iostream>
#include <map>
#include <random>
#include <set>

#include "catch2/catch.hpp"

namespace lorad::storage::tokenization {
namespace {

using Tokens = std::vector<WordToken>;

// Merges joined one at a time: the lowest rank, then the leftmost.
Tokens Plain(const BpeOptions& options, const std::string& word) {
  std::map<std::string, int32_t> ids(options.vocabulary.begin(), options.vocabulary.end());
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t i = 0; i < options.merges.size(); ++i) ranks[options.merges[i]] = i;
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    size_t best = parts.size();
    size_t best_rank = options.merges.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found == ranks.end() || found->second >= best_rank) continue;
      best = i;
      best_rank = found->second;
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  Tokens out;
  for (const std::string& part : parts) {
    out.push_back({ids.at(part), static_cast<uint32_t>(part.size())});
  }
  return out;
}

// Letters a to d and random merges of what is there already.
BpeOptions RandomModel(std::mt19937* random) {
  BpeOptions out;
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  std::set<std::string> known(tokens.begin(), tokens.end());
  std::set<std::pair<std::string, std::string>> merged;
  for (int i = 0; i < 40; ++i) {
    const std::string left = tokens[(*random)() % tokens.size()];
    const std::string right = tokens[(*random)() % tokens.size()];
    if (left.size() + right.size() > 12 || !merged.insert({left, right}).second) continue;
    out.merges.emplace_back(left, right);
    if (known.insert(left + right).second) tokens.push_back(left + right);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    out.vocabulary.emplace_back(tokens[i], static_cast<int32_t>(i));
  }
  return out;
}

void CheckRandomModels(uint32_t seed) {
  std::cout << "seed " << seed << "\n";
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 20; ++i) {
    const BpeOptions options = RandomModel(&random);
    const auto bpe = Bpe::Create(options);
    REQUIRE(bpe.ok());
    for (const size_t length : {1, 2, 7, 40, 64, 65, 66, 200, 400}) {
      std::string word;
      const uint32_t letters = 1 + random() % 4;
      for (size_t j = 0; j < length; ++j) word += static_cast<char>('a' + random() % letters);
      Tokens tokens;
      (*bpe)->Tokenize(word, &tokens);
      REQUIRE(tokens == Plain(options, word));
      Tokens again;  // this time from the cache
      (*bpe)->Tokenize(word, &again);
      REQUIRE(again == tokens);
    }
  }
}

TEST_CASE("any word becomes what the merges make of it one by one") { CheckRandomModels(1); }

TEST_CASE("any word becomes what the merges make of it one by one, random seed") {
  CheckRandomModels(std::random_device()());
}

BpeOptions Unknown(bool fuse, bool fallback) {
  BpeOptions out;
  out.vocabulary = {{"<unk>", 0}, {"a", 1}, {"b", 2}, {"ab", 3}};
  out.merges = {{"a", "b"}};
  out.unk_token = "<unk>";
  out.fuse_unk = fuse;
  out.byte_fallback = fallback;
  for (int byte = 0; fallback && byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    out.vocabulary.emplace_back(name, 100 + byte);
  }
  return out;
}

TEST_CASE("characters that the vocabulary lacks") {
  struct Case {
    bool fuse;
    bool fallback;
    std::string word;
    Tokens expected;
  };
  const std::vector<Case> table = {
      {false, false, "abxyab", {{3, 2}, {0, 1}, {0, 1}, {3, 2}}},
      {true, false, "abxyab", {{3, 2}, {0, 2}, {3, 2}}},
      {true, false, "xé", {{0, 3}}},
      {true, true, "aéb", {{1, 1}, {100 + 0xC3, 1}, {100 + 0xA9, 1}, {2, 1}}},
  };
  for (const Case& one : table) {
    const auto bpe = Bpe::Create(Unknown(one.fuse, one.fallback));
    REQUIRE(bpe.ok());
    for (const int repeats : {1, 40}) {  // the second goes the way of long words
      std::string word;
      Tokens expected;
      for (int i = 0; i < repeats; ++i) {
        word += one.word + (repeats > 1 ? "a" : "");
        expected.insert(expected.end(), one.expected.begin(), one.expected.end());
        if (repeats > 1) expected.push_back({1, 1});
      }
      Tokens tokens;
      (*bpe)->Tokenize(word, &tokens);
      CHECK(tokens == expected);
    }
  }
}

TEST_CASE("with ignore_merges a whole word is looked up first") {
  BpeOptions options;
  options.vocabulary = {{"a", 0}, {"b", 1}, {"aba", 2}};
  options.ignore_merges = true;
  const auto bpe = Bpe::Create(options);
  Tokens tokens;
  (*bpe)->Tokenize("aba", &tokens);
  (*bpe)->Tokenize("abab", &tokens);
  CHECK(tokens == Tokens{{2, 3}, {0, 1}, {1, 1}, {0, 1}, {1, 1}});
}

TEST_CASE("byte_fallback wants a token for every byte") {
  BpeOptions options = Unknown(true, true);
  options.vocabulary.pop_back();
  CHECK_THAT(std::string(Bpe::Create(options).status().message()), Catch::Contains("<0xFF>"));
}

}  // namespace
}  // namespace lorad::storage::tokenization
