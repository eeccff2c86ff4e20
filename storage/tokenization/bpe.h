#pragma once

// Byte-pair encoding of one word: symbols, and the merges that join them.
// Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", section 3.2;
// ties as the `tokenizers` library breaks them (lowest rank first, then leftmost).

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"

namespace lorad::storage::tokenization {

class WordCache;

struct WordToken {
  int32_t id = 0;
  uint32_t bytes = 0;  // of the word that it stands for

  friend bool operator==(const WordToken&, const WordToken&) = default;
};

struct BpeOptions {
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  // lowest rank first
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  // Words are bytes, and the vocabulary spells them in GPT-2's alphabet.
  bool byte_level = false;
};

// Immutable but for a cache with locks of its own: any number of threads may call Tokenize at once.
class Bpe {
 public:
  static absl::StatusOr<std::unique_ptr<const Bpe>> Create(BpeOptions options);
  ~Bpe();

  // Appends the tokens of `word`, in order. O(n log n) in its length.
  void Tokenize(std::string_view word, std::vector<WordToken>* out) const;

  std::optional<int32_t> TokenToId(std::string_view token) const;
  const std::vector<std::pair<std::string, int32_t>>& vocabulary() const {
    return options_.vocabulary;
  }

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };

  explicit Bpe(BpeOptions options);
  absl::Status Build();
  absl::Status AddMerges();
  absl::Status FindUnitIds();
  std::optional<int32_t> LastUnit(std::string_view token) const;
  std::optional<int32_t> FirstUnit(std::string_view token) const;

  const Merge* FindMerge(int32_t left, int32_t right) const;
  void AppendUnits(std::string_view word, std::vector<WordToken>* units) const;
  void AppendUnknown(uint32_t bytes, bool* after_unknown, std::vector<WordToken>* units) const;
  // Joins what the merges join and appends what is left.
  void MergeUnits(const WordToken* units, size_t count, std::vector<WordToken>* out) const;
  void MergeFew(const WordToken* units, size_t count, std::vector<WordToken>* out) const;
  void MergeMany(const WordToken* units, size_t count, std::vector<WordToken>* out) const;

  BpeOptions options_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  // Neighbouring units (by id) that some merge can join across; all others are seams, and a word
  // falls into independent parts there.
  absl::flat_hash_set<uint64_t> joinable_;
  bool seams_ = true;
  std::array<int32_t, 256> byte_ids_;      // of a byte (byte-level) or of an ASCII character; or -1
  std::array<int32_t, 256> fallback_ids_;  // of the tokens <0x00> to <0xFF>
  std::optional<int32_t> unk_id_;
  absl::flat_hash_map<std::string, int32_t> whole_words_;  // with ignore_merges, by raw bytes
  std::unique_ptr<WordCache> cache_;
};

}  // namespace lorad::storage::tokenization
