// A tokenizer that a test can follow by eye: a token a character (byte), "<e>" one of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/datasets/tokenizer.h"

namespace lorad::storage {

// Ids: the byte; 256 is "<e>", 257 the BOS that the post-processor puts in front. Pairs of letters
// that are to be one token are joined as BPE joins them: the first of `pairs` first, from the left.
class LetterTokenizer : public Tokenizer {
 public:
  explicit LetterTokenizer(std::vector<std::string> pairs = {}, bool ends_texts = false)
      : pairs_(std::move(pairs)), ends_texts_(ends_texts) {}

  // The letters of an id; a pair stands in brackets.
  static std::string Letters(int32_t id) {
    if (id == 256) return "<e>";
    if (id < kPairs) return std::string(1, static_cast<char>(id));
    const auto letters = static_cast<uint32_t>(id - kPairs);
    return {'[', static_cast<char>(letters / 256), static_cast<char>(letters % 256), ']'};
  }

  absl::StatusOr<Encoding> Encode(std::string_view text, bool add_special_tokens) const override {
    Encoding encoding;
    for (uint32_t at = 0; at < text.size();) {
      const bool end = text.substr(at, 3) == "<e>";
      encoding.ids.push_back(end ? 256 : static_cast<unsigned char>(text[at]));
      encoding.spans.push_back({at, at + (end ? 3u : 1u)});
      at += end ? 3 : 1;
    }
    for (const std::string& pair : pairs_) Join(pair, &encoding);
    if (!add_special_tokens) return encoding;
    encoding.ids.insert(encoding.ids.begin(), 257);
    encoding.spans.insert(encoding.spans.begin(), {0, 0});
    encoding.inserted_front = 1;
    if (!ends_texts_) return encoding;
    encoding.ids.push_back(256);
    encoding.spans.push_back({0, 0});
    encoding.inserted_back = 1;
    return encoding;
  }
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids, bool) const override {
    std::string text;
    for (int32_t id : ids) text += Letters(id);
    return text;
  }
  std::optional<int32_t> TokenToId(std::string_view) const override { return std::nullopt; }
  int32_t vocabulary_size() const override { return pairs_.empty() ? 258 : kPairs + 65536; }

 private:
  static constexpr int32_t kPairs = 1000;

  static void Join(const std::string& pair, Encoding* encoding) {
    const int first = static_cast<unsigned char>(pair[0]);
    const int second = static_cast<unsigned char>(pair[1]);
    for (size_t i = 0; i + 1 < encoding->ids.size(); ++i) {
      if (encoding->ids[i] != first || encoding->ids[i + 1] != second) continue;
      encoding->ids[i] = kPairs + first * 256 + second;
      encoding->spans[i].end = encoding->spans[i + 1].end;
      encoding->ids.erase(encoding->ids.begin() + static_cast<ptrdiff_t>(i) + 1);
      encoding->spans.erase(encoding->spans.begin() + static_cast<ptrdiff_t>(i) + 1);
    }
  }

  const std::vector<std::string> pairs_;
  const bool ends_texts_;
};

}  // namespace lorad::storage
