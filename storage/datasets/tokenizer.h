#pragma once

// Text to token ids and back, as a Hugging Face tokenizer.json (docs/formats/tokenizer.md) says.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/tokenization/encoding.h"

namespace lorad::storage {

// Byte-pair encoding with the components that Llama 2, Llama 3, Qwen2, Mistral and SmolLM2 use.
// Immutable: every const member may be called from any number of threads at once.
class Tokenizer {
 public:
  // Parses the text of a tokenizer.json. `special_tokens` are found whole in a text as added tokens
  // are, where the vocabulary has them (TokenizerConfig::special_tokens). InvalidArgument (reason
  // TOKENIZER_INVALID or TOKENIZER_UNSUPPORTED) names the component, the option or the token at
  // fault.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(
      std::string_view tokenizer_json, const std::vector<std::string>& special_tokens = {});

  virtual ~Tokenizer() = default;

  // Tokenizes `text`, special tokens written in it included. With `add_special_tokens` the
  // post-processor's template (BOS, EOS) is applied. Time grows as n log n at worst, memory as n.
  // InvalidArgument (reason TEXT_INVALID) if `text` is not UTF-8 or longer than 1 GiB.
  virtual absl::StatusOr<Encoding> Encode(std::string_view text, bool add_special_tokens) const = 0;

  // The text of `ids`; bytes that form no character become U+FFFD. InvalidArgument if an id is not
  // in the vocabulary.
  virtual absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                             bool skip_special_tokens) const = 0;

  // The id of a token by its exact text (added tokens included), if there is one.
  virtual std::optional<int32_t> TokenToId(std::string_view token) const = 0;

  // One more than the largest id: a model's embedding needs at least this many rows.
  virtual int32_t vocabulary_size() const = 0;

 protected:
  Tokenizer() = default;
};

}  // namespace lorad::storage
