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

// A text before it is tokenized.
struct RenderedRow {
  std::string text;
  // What is trained on: ascending, apart.
  std::vector<TextSpan> trained;
  // The spans are a template's generation marks: tokens that overlap them are trained on. Else each
  // is an answer, and what stands before it the prompt that the model would have had there.
  bool marked = false;
  bool add_special_tokens = false;  // the post-processor adds its tokens
};

// The row's text; of a conversation that the template renders otherwise as it goes on, a text for
// each of the assistant's turns. REQUIRES: the row is none of tokens. InvalidArgument (reason
// DATASET_INVALID, or TEMPLATE_* from the template) says what is wrong with it: no template, the
// template rejects it or renders an answer otherwise than the prompt before it, marks that mark
// nothing, no end-of-text token.
absl::StatusOr<std::vector<RenderedRow>> RenderRow(const DatasetRow& row, const TextModel& model,
                                                   TrainOn train_on);

}  // namespace lorad::storage
