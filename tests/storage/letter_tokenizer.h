// A tokenizer that a test can follow by eye: a token a character (byte), "<e>" one of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/datasets/tokenizer.h"

namespace lorad::storage {

// Ids: the byte; 256 is "<e>", 257 the BOS that the post-processor puts in front.
class LetterTokenizer : public Tokenizer {
 public:
  absl::StatusOr<Encoding> Encode(std::string_view text, bool add_special_tokens) const override {
    Encoding encoding;
    if (add_special_tokens) {
      encoding.ids.push_back(257);
      encoding.spans.push_back({0, 0});
      encoding.inserted_front = 1;
    }
    for (uint32_t at = 0; at < text.size();) {
      const bool end = text.substr(at, 3) == "<e>";
      encoding.ids.push_back(end ? 256 : static_cast<unsigned char>(text[at]));
      encoding.spans.push_back({at, at + (end ? 3u : 1u)});
      at += end ? 3 : 1;
    }
    return encoding;
  }
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids, bool) const override {
    std::string text;
    for (int32_t id : ids) text += id < 256 ? std::string(1, static_cast<char>(id)) : "<e>";
    return text;
  }
  std::optional<int32_t> TokenToId(std::string_view) const override { return std::nullopt; }
  int32_t vocabulary_size() const override { return 258; }
};

}  // namespace lorad::storage
