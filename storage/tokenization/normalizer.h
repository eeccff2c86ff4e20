#pragma once

// The `normalizer` of a tokenizer.json: rewrites text before it is split.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/tokenization/aligned_text.h"
#include "storage/tokenization/fields.h"
#include "storage/tokenization/regex.h"

namespace lorad::storage::tokenization {

// One step. Immutable.
class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // Writes the new text to *out and sets *changed, or leaves both alone if nothing changes.
  virtual absl::Status Apply(const TextView& text, AlignedText* out, bool* changed) const = 0;
};

using Normalizers = std::vector<std::unique_ptr<const Normalizer>>;

// Reads a normalizer (a Sequence gives several) and appends its steps.
absl::Status ReadNormalizer(const Json& json, std::string_view where, int depth, Normalizers* out);

// Applies all steps; *storage holds the text if it changed. The result points into `text` or
// *storage.
absl::StatusOr<TextView> Normalize(const Normalizers& normalizers, const TextView& text,
                                   AlignedText* storage);

}  // namespace lorad::storage::tokenization
