#pragma once

// The `decoder` of a tokenizer.json: token texts back to text.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/tokenization/fields.h"

namespace lorad::storage::tokenization {

using DecoderStep = std::function<absl::Status(std::vector<std::string>* tokens)>;

// Reads a decoder (a Sequence gives several) and appends its steps.
absl::Status ReadDecoder(const Json& json, std::string_view where, int depth,
                         std::vector<DecoderStep>* out);

}  // namespace lorad::storage::tokenization
