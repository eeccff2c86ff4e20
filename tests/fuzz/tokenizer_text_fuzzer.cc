// Any text through tokenizers of three families that can spell every byte: nothing is lost.

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "storage/datasets/tokenizer.h"

namespace {

using lorad::storage::Encoding;
using lorad::storage::Tokenizer;

// GPT-2's alphabet as members of a JSON object: "!":0, .. in the order of its characters.
std::string ByteVocabulary() {
  std::string out;
  int id = 0;
  const auto add = [&](int character) {
    char member[32];
    std::snprintf(member, sizeof member, "\"\\u%04x\":%d,", character, id++);
    out += member;
  };
  for (int c = 0x21; c <= 0x7E; ++c) add(c);
  for (int c = 0xA1; c <= 0xFF; ++c) {
    if (c != 0xAD) add(c);
  }
  for (int c = 0x100; c < 0x144; ++c) add(c);
  return out;
}

std::string ByteLevelJson(const std::string& pattern, const std::string& normalizer) {
  return R"({"added_tokens": [{"id": 300, "content": "<s>", "single_word": false, "lstrip": false,
      "rstrip": false, "normalized": false, "special": true}], "normalizer": )" +
         normalizer + R"(, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": ")" +
         pattern + R"("}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
      "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {)" +
         ByteVocabulary() + R"("th": 256, "the": 257, "aa": 258, "aaaa": 259, "\u0120the": 260},
      "merges": ["a a", "aa aa", "t h", "th e", "\u0120 the"]}})";
}

std::string FallbackJson() {
  std::string vocabulary = R"("<unk>": 0)";
  for (int byte = 0; byte < 256; ++byte) {
    char member[32];
    std::snprintf(member, sizeof member, ",\"<0x%02X>\":%d", byte, byte + 1);
    vocabulary += member;
  }
  return R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
      "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
      "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
      "vocab": {)" +
         vocabulary + R"(, "▁": 257, "a": 258, "é": 259, "aa": 260, "▁a": 261},
      "merges": ["a a", "▁ a"]}})";
}

std::unique_ptr<Tokenizer> Make(const std::string& json) {
  auto tokenizer = Tokenizer::FromJson(json);
  assert(tokenizer.ok());
  return *std::move(tokenizer);
}

// Spans in order, without gaps, from the text's beginning to its end.
void CheckCovers(const Encoding& encoding, std::string_view text) {
  uint32_t end = 0;
  for (const auto& span : encoding.spans) {
    assert(span.begin <= end && span.end >= end && span.end <= text.size());
    end = span.end;
  }
  assert(end == text.size());
}

constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const llama3 = Make(ByteLevelJson(kLlama3, "null")).release();
  static const auto* const qwen2 = Make(ByteLevelJson(kLlama3, R"({"type": "NFC"})")).release();
  static const auto* const llama2 = Make(FallbackJson()).release();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto encoding = llama3->Encode(text, false);
  if (!encoding.ok()) return 0;  // not UTF-8
  CheckCovers(*encoding, text);
  assert(*llama3->Decode(encoding->ids, false) == text);

  const auto normal = qwen2->Encode(text, false);
  assert(normal.ok());
  // A mark that was joined to its letter is in no span.
  for (const auto& span : normal->spans) assert(span.begin < span.end && span.end <= text.size());

  const auto fallback = llama2->Encode(text, false);
  assert(fallback.ok());
  CheckCovers(*fallback, text);
  // Its alphabet cannot tell a space from the mark that stands for one.
  if (text.find("▁") == std::string_view::npos && text.find("<0x") == std::string_view::npos) {
    assert(*llama2->Decode(fallback->ids, false) == text);
  }
  return 0;
}
