#pragma once

// The `post_processor` of a tokenizer.json: trims spans and puts BOS and EOS around the tokens.

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "storage/tokenization/encoding.h"
#include "storage/tokenization/fields.h"

namespace lorad::storage::tokenization {

// How many characters of white space (or U+0120, a space in GPT-2's alphabet) a token's text has
// at its front and at its back.
struct Margins {
  uint32_t leading = 0;
  uint32_t trailing = 0;
};
Margins MarginsOf(std::string_view token_text);

// Spans lose their tokens' margins.
struct TrimSpans {
  bool add_prefix_space = false;
};

// Ids in front of and behind the text's own.
struct AddSpecialTokens {
  std::vector<int32_t> front;
  std::vector<int32_t> back;
};

using PostProcessor = std::variant<TrimSpans, AddSpecialTokens>;

// Reads a post-processor (a Sequence gives several) and appends its steps.
absl::Status ReadPostProcessor(const Json& json, std::string_view where, int depth,
                               std::vector<PostProcessor>* out);

// Applies `trim` to an encoding of `text`; margins[i] belong to ids[i].
void Trim(const TrimSpans& trim, std::string_view text, const std::vector<Margins>& margins,
          Encoding* encoding);

}  // namespace lorad::storage::tokenization
