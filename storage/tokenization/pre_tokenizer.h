#pragma once

// The `pre_tokenizer` of a tokenizer.json: cuts text into the words that the model sees.

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "storage/tokenization/aligned_text.h"
#include "storage/tokenization/fields.h"

namespace lorad::storage::tokenization {

// Receives a part of the text; the part lives until it returns.
using PartSink = std::function<absl::Status(const TextView& part)>;

// One step. Immutable.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  // Hands the parts of `text` to `sink`, in order, until it returns an error. REQUIRES: not empty.
  virtual absl::Status Split(const TextView& text, const PartSink& sink) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<const PreTokenizer>> steps;
  // The last step was ByteLevel: words go to the model as bytes.
  bool byte_level = false;
};

// Reads a pre-tokenizer (a Sequence gives several) and appends its steps.
absl::Status ReadPreTokenizer(const Json& json, std::string_view where, int depth,
                              PreTokenizers* out);

// Sends `text` through all steps.
absl::Status PreTokenize(const PreTokenizers& steps, const TextView& text, const PartSink& sink);

}  // namespace lorad::storage::tokenization
