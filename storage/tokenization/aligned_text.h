#pragma once

// Text on its way through a tokenizer, every byte of it tied to the bytes of the input that it came
// from. The rules are those of the `tokenizers` library's NormalizedString, counted in bytes.

#include <cassert>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/tokenization/encoding.h"

namespace lorad::storage::tokenization {

// A part of the text in work. Owns nothing.
struct TextView {
  std::string_view text;
  // One span of the input a byte; null: the text is the input's own, beginning at `origin`.
  const TextSpan* spans = nullptr;
  uint32_t origin = 0;

  TextView Slice(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), spans == nullptr ? nullptr : spans + begin,
            static_cast<uint32_t>(origin + begin)};
  }

  // Where byte `at` came from: the whole of a character, for each of its bytes.
  TextSpan SpanOf(size_t at) const { return {Begin(at), End(at + 1)}; }

  // Where bytes [begin, end) came from. REQUIRES: begin < end.
  TextSpan SpanOf(size_t begin, size_t end) const { return {Begin(begin), End(end)}; }

 private:
  uint32_t Begin(size_t at) const;
  uint32_t End(size_t end) const;
};

// A text of our own that a normalizer writes, and the spans of its bytes.
struct AlignedText {
  std::string text;
  std::vector<TextSpan> spans;

  TextView view() const { return {text, spans.data(), 0}; }

  void Append(std::string_view bytes, TextSpan span) {
    text += bytes;
    spans.insert(spans.end(), bytes.size(), span);
  }
  // Appends `part` with the spans that it has.
  void Append(const TextView& part);
};

// One character of a rewritten text. `change` counts as in NormalizedString: 0 replaces the next
// character, 1 is new (and belongs to the character before it), -n replaces the next and removes
// the n after it.
struct Rewrite {
  char32_t character;
  int change;
};

// `from`, rewritten from its first to its last character.
AlignedText ApplyRewrites(const TextView& from, const std::vector<Rewrite>& rewrites);

// `from` with `prefix` before it, which belongs to its first character. REQUIRES: not empty.
AlignedText Prepend(const TextView& from, std::string_view prefix);

}  // namespace lorad::storage::tokenization
