#pragma once

// Tokens that are found in the text as they are written, before the model sees it: <s>, <|im_end|>.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "storage/tokenization/fields.h"
#include "storage/tokenization/normalizer.h"

namespace lorad::storage::tokenization {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  // The text that is searched for: the content, through the normalizer if `normalized`.
  std::string pattern;
  bool single_word = false;  // only where no letter, digit or mark touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it
  bool normalized = false;   // searched for in the normalized text
  bool special = false;
};

// Reads the list of a tokenizer.json.
absl::Status ReadAddedTokens(const Json& json, const Normalizers& normalizers,
                             std::vector<AddedToken>* out);

// Searches text for several tokens at once: at the leftmost place, the longest.
class AddedTokenFinder {
 public:
  // `tokens` must outlive this object.
  explicit AddedTokenFinder(std::vector<const AddedToken*> tokens);

  struct Part {
    size_t begin;
    size_t end;
    const AddedToken* token;  // null: text between tokens
  };
  // The parts of `text` in order. Two tokens' parts may overlap in white space that both strip.
  std::vector<Part> Find(std::string_view text) const;

 private:
  const AddedToken* LongestAt(std::string_view text, size_t at) const;

  std::array<bool, 256> first_bytes_{};
  absl::flat_hash_map<absl::string_view, const AddedToken*> by_pattern_;
  std::vector<size_t> lengths_;  // of the patterns, longest first
};

}  // namespace lorad::storage::tokenization
