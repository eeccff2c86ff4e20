#include "storage/tokenization/aligned_text.h"

#include "storage/tokenization/unicode.h"

namespace lorad::storage::tokenization {

uint32_t TextView::Begin(size_t at) const {
  if (spans != nullptr) return spans[at].begin;
  while (at > 0 && IsContinuation(text[at])) --at;
  return static_cast<uint32_t>(origin + at);
}

uint32_t TextView::End(size_t end) const {
  if (spans != nullptr) return spans[end - 1].end;
  while (end < text.size() && IsContinuation(text[end])) ++end;
  return static_cast<uint32_t>(origin + end);
}

void AlignedText::Append(const TextView& part) {
  text += part.text;
  if (part.spans != nullptr) {
    spans.insert(spans.end(), part.spans, part.spans + part.text.size());
    return;
  }
  spans.reserve(spans.size() + part.text.size());
  for (size_t at = 0; at < part.text.size();) {
    const size_t bytes = CharacterBytes(part.text[at]);
    const auto begin = static_cast<uint32_t>(part.origin + at);
    spans.insert(spans.end(), bytes, {begin, static_cast<uint32_t>(begin + bytes)});
    at += bytes;
  }
}

AlignedText ApplyRewrites(const TextView& from, const std::vector<Rewrite>& rewrites) {
  AlignedText out;
  out.text.reserve(from.text.size());
  out.spans.reserve(from.text.size());
  size_t at = 0;  // what lies before it has been replaced or removed
  std::string bytes;
  for (const Rewrite& rewrite : rewrites) {
    TextSpan span;
    if (rewrite.change > 0) {
      if (at > 0) span = from.SpanOf(at - 1);
    } else {
      assert(at < from.text.size());
      span = from.SpanOf(at);
      for (int left = 1 - rewrite.change; left > 0 && at < from.text.size(); --left) {
        at += CharacterBytes(from.text[at]);
      }
    }
    bytes.clear();
    AppendCharacter(rewrite.character, &bytes);
    out.Append(bytes, span);
  }
  return out;
}

AlignedText Prepend(const TextView& from, std::string_view prefix) {
  assert(!from.text.empty());
  AlignedText out;
  out.text.reserve(from.text.size() + prefix.size());
  out.spans.reserve(from.text.size() + prefix.size());
  out.Append(prefix, from.SpanOf(0));
  out.Append(from);
  return out;
}

}  // namespace lorad::storage::tokenization
