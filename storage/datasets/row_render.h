// Rows to texts, and what of a text is trained on (docs/formats/dataset.md, "What is trained on").
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/datasets/dataset.h"
#include "storage/datasets/text_model.h"
#include "storage/tokenization/encoding.h"

namespace lorad::storage {

enum class TrainOn {
  kAssistant,  // what the assistant says, completions, outputs
  kAll,        // all of a row
};

// A row's text before it is tokenized.
struct RenderedRow {
  std::string text;
  // What is trained on: ascending, apart. What stands before a span is the prompt that the model
  // would have had there.
  std::vector<TextSpan> trained;
  bool add_special_tokens = false;  // the post-processor adds its tokens
};

// REQUIRES: the row is none of tokens. InvalidArgument (reason DATASET_INVALID, or TEMPLATE_* from
// the template) says what is wrong with it: no template, the template rejects it or rewrites earlier
// turns, no end-of-text token.
absl::StatusOr<RenderedRow> RenderRow(const DatasetRow& row, const TextModel& model,
                                      TrainOn train_on);

}  // namespace lorad::storage
