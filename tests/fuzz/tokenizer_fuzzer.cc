// Any bytes as a tokenizer.json: the text before the first zero byte; the rest is tokenized with
// it. Refused, or every id is in the vocabulary and every span in the text.

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "storage/datasets/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lorad::storage;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view json = bytes.substr(0, bytes.find('\0'));
  const auto tokenizer = Tokenizer::FromJson(json);
  if (!tokenizer.ok() || json.size() == bytes.size()) return 0;
  const std::string_view text = bytes.substr(json.size() + 1);
  for (const bool add_special_tokens : {false, true}) {
    const auto encoding = (*tokenizer)->Encode(text, add_special_tokens);
    if (!encoding.ok()) return 0;
    assert(encoding->spans.size() == encoding->ids.size());
    assert(encoding->inserted_front + encoding->inserted_back <= encoding->ids.size());
    for (size_t i = 0; i < encoding->ids.size(); ++i) {
      assert(encoding->ids[i] >= 0 && encoding->ids[i] < (*tokenizer)->vocabulary_size());
      assert(encoding->spans[i].begin <= encoding->spans[i].end);
      assert(encoding->spans[i].end <= text.size());
    }
    (void)(*tokenizer)->Decode(encoding->ids, add_special_tokens);
  }
  return 0;
}
