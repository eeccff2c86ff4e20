#pragma once

// The tokens of a text, and the place in it that each came from (storage/datasets/tokenizer.h makes
// it).

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lorad::storage {

// Bytes [begin, end) of the text given to Encode.
struct TextSpan {
  uint32_t begin = 0;
  uint32_t end = 0;

  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

struct Encoding {
  std::vector<int32_t> ids;
  // One per id: where in the text it came from, as the `tokenizers` library says (counted in bytes
  // where its Python interface counts characters). A token that holds some bytes of one character
  // has that character's whole span.
  std::vector<TextSpan> spans;
  // How many ids at the front and at the back the post-processor put there; their spans are {0, 0}.
  size_t inserted_front = 0;
  size_t inserted_back = 0;
};

}  // namespace lorad::storage
