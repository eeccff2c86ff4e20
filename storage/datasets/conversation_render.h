// Conversations to texts by a chat template, and what of a text is trained on.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/datasets/chat_template.h"
#include "storage/datasets/row_render.h"
#include "storage/datasets/text_model.h"

namespace lorad::storage {

struct Conversation {
  const std::vector<ChatMessage>& messages;
  const ChatInputs& inputs;
  size_t first_trained = 0;    // the turns before it are a prompt
  bool is_completion = false;  // of a prompt: what stands between generation marks is not asked for
};

// As RenderRow says (row_render.h).
absl::StatusOr<std::vector<RenderedRow>> RenderConversation(const TextModel& model,
                                                            const Conversation& conversation,
                                                            TrainOn train_on);

}  // namespace lorad::storage
