// Messages, tools and their like: values of a row to what a template is given.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/datasets/chat_template.h"
#include "storage/jinja/value.h"

namespace lorad::storage {

// A list of messages that stands under the key `name`. All errors are InvalidArgument (reason
// DATASET_INVALID) and name the message and the key.
//
// A message is an object with a string `role`; its `content` is a string, null, or a list of parts
// {"type": "text", "text"} (it may be absent beside tool_calls). `tool_calls` hold arguments that
// are JSON. `weight` is 0 or 1. Other keys are the template's business, `reasoning_content` and
// `thinking` among them: none is given under another name.
absl::StatusOr<std::vector<ChatMessage>> MakeMessages(std::string_view name,
                                                      const jinja::Value& list,
                                                      int64_t messages_max);

// ShareGPT's {"from", "value"} as {"role", "content"}; messages that have a role stay as they are.
absl::StatusOr<jinja::Value> FromShareGpt(std::string_view name, const jinja::Value& list);

// The row's `tools`: a list of objects, or a string that holds one as JSON.
absl::StatusOr<jinja::Value> MakeTools(const jinja::Value& tools);

// The row's `chat_template_kwargs`: names that the template then knows.
absl::StatusOr<jinja::Variables> MakeVariables(const jinja::Value& kwargs);

}  // namespace lorad::storage
