#pragma once

// Words that were tokenized before. Text repeats its words: on English prose nine in ten are here.

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "storage/tokenization/bpe.h"

namespace lorad::storage::tokenization {

// Bounded: at most about 16 MiB. A full shard is emptied, which costs less than knowing its oldest.
// Any number of threads at once.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 48;

  // Appends the tokens of `word` if they are known. REQUIRES: at most kMaxWordBytes.
  bool Find(std::string_view word, std::vector<WordToken>* out) {
    Shard& shard = ShardOf(word);
    const std::lock_guard lock(shard.mutex);
    const auto found = shard.words.find(absl::string_view(word.data(), word.size()));
    if (found == shard.words.end()) return false;
    const auto [begin, count] = found->second;
    out->insert(out->end(), shard.tokens.begin() + begin, shard.tokens.begin() + begin + count);
    return true;
  }

  void Insert(std::string_view word, const WordToken* tokens, size_t count) {
    Shard& shard = ShardOf(word);
    const std::lock_guard lock(shard.mutex);
    if (shard.words.size() >= kMaxWords || shard.tokens.size() >= kMaxTokens) {
      shard.words.clear();
      shard.tokens.clear();
    }
    const std::pair<uint32_t, uint32_t> place(shard.tokens.size(), count);
    if (shard.words.emplace(std::string(word), place).second) {
      shard.tokens.insert(shard.tokens.end(), tokens, tokens + count);
    }
  }

 private:
  static constexpr size_t kShards = 32;
  static constexpr size_t kMaxWords = 4096;
  static constexpr size_t kMaxTokens = 16384;

  struct alignas(64) Shard {
    std::mutex mutex;
    absl::flat_hash_map<std::string, std::pair<uint32_t, uint32_t>> words ABSL_GUARDED_BY(mutex);
    std::vector<WordToken> tokens ABSL_GUARDED_BY(mutex);
  };

  Shard& ShardOf(std::string_view word) {
    const auto byte = [&word](size_t at) { return static_cast<uint8_t>(word[at]); };
    return shards_[(word.size() * 7 + byte(0) * 5 + byte(word.size() / 2) * 3 +
                    byte(word.size() - 1)) %
                   kShards];
  }

  std::array<Shard, kShards> shards_;
};

}  // namespace lorad::storage::tokenization
