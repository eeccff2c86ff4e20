#include "storage/datasets/messages.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/datasets/value_builder.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

using jinja::Value;

constexpr std::string_view kReason = "DATASET_INVALID";

// Who speaks, in ShareGPT's words, and the role that it is.
constexpr std::pair<std::string_view, std::string_view> kShareGptRoles[] = {
    {"human", "user"},    {"user", "user"}, {"gpt", "assistant"},   {"assistant", "assistant"},
    {"system", "system"}, {"tool", "tool"}, {"observation", "tool"}};

absl::Status Wrong(std::string_view where, std::string_view what) {
  return Refuse(kReason, absl::StrCat(Absl(where), Absl(what)));
}

// A value in an error: a scalar itself, else its type.
std::string Shown(const Value& value) {
  if (value.is_text()) return Quoted(value.text().substr(0, 40));
  if (value.is_list()) return "a list";
  if (value.is_dict()) return "an object";
  if (value.is_none()) return "null";
  return jinja::ToJson(value, -1).value_or("");
}

std::string At(std::string_view name, size_t entry) {
  return absl::StrCat(Absl(name), "[", entry, "]");
}

absl::Status CheckPart(const std::string& where, const Value& part) {
  const Value* type = part.is_dict() ? part.dict().Find("type") : nullptr;
  if (type == nullptr || !type->is_text()) {
    return Wrong(where, " must be an object with a \"type\"");
  }
  if (type->text() != "text") {
    return Wrong(where, absl::StrCat(" is of type ", Shown(*type),
                                     "; parts of type \"text\" alone are implemented"));
  }
  const Value* text = part.dict().Find("text");
  if (text == nullptr || !text->is_text()) return Wrong(where, ".text must be a string");
  return absl::OkStatus();
}

absl::Status CheckContent(const std::string& where, const Value& message) {
  const Value* content = message.dict().Find("content");
  if (content == nullptr) {
    const Value* calls = message.dict().Find("tool_calls");
    return calls != nullptr && calls->Truth() ? absl::OkStatus() : Wrong(where, " has no content");
  }
  if (content->is_text() || content->is_none()) return absl::OkStatus();
  if (!content->is_list()) {
    return Wrong(where, absl::StrCat(".content must be a string, null or a list of parts, not ",
                                     Shown(*content)));
  }
  for (size_t i = 0; i < content->list().items.size(); ++i) {
    absl::Status status = CheckPart(At(where + ".content", i), content->list().items[i]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Arguments in a string are passed on as the string that they are: some templates print it, others
// write it as JSON once more. One that is no JSON is no tool's call in either.
absl::Status CheckCall(const std::string& where, const Value& call) {
  if (!call.is_dict()) return Wrong(where, " must be an object");
  const Value* function = call.dict().Find("function");
  const Value& holder = function != nullptr ? *function : call;
  if (!holder.is_dict()) return Wrong(where, ".function must be an object");
  const std::string path = where + (function != nullptr ? ".function" : "");
  const Value* name = holder.dict().Find("name");
  if (name == nullptr || !name->is_text()) return Wrong(path, ".name must be a string");
  const Value* arguments = holder.dict().Find("arguments");
  if (arguments == nullptr || !arguments->is_text()) return absl::OkStatus();
  if (nlohmann::json::accept(arguments->text())) return absl::OkStatus();
  return Wrong(path, absl::StrCat(".arguments is not JSON: ", Shown(*arguments)));
}

absl::Status CheckCalls(const std::string& where, const Value& message) {
  const Value* calls = message.dict().Find("tool_calls");
  if (calls == nullptr || calls->is_none()) return absl::OkStatus();
  if (!calls->is_list()) return Wrong(where, ".tool_calls must be a list");
  for (size_t i = 0; i < calls->list().items.size(); ++i) {
    absl::Status status = CheckCall(At(where + ".tool_calls", i), calls->list().items[i]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> IsTrained(const std::string& where, const Value& message) {
  const Value* weight = message.dict().Find("weight");
  if (weight == nullptr || weight->is_none()) return true;
  const bool number = weight->is_number() && !weight->is_bool();
  if (number && (weight->Number() == 0 || weight->Number() == 1)) return weight->Number() == 1;
  return Wrong(where, absl::StrCat(".weight must be 0 or 1, got ", Shown(*weight)));
}

absl::StatusOr<ChatMessage> MakeOne(const std::string& where, const Value& message) {
  if (message.is_list()) return Wrong(where, " must not be a list");
  if (!message.is_dict()) return Wrong(where, " must be a message object");
  const Value* role = message.dict().Find("role");
  if (role == nullptr) return Wrong(where, " has no role");
  if (!role->is_text()) {
    return Wrong(where, absl::StrCat(".role must be a string, not ", Shown(*role)));
  }
  if (absl::Status status = CheckContent(where, message); !status.ok()) return status;
  if (absl::Status status = CheckCalls(where, message); !status.ok()) return status;
  absl::StatusOr<bool> trained = IsTrained(where, message);
  if (!trained.ok()) return trained.status();
  return ChatMessage{role->text(), message, *trained};
}

}  // namespace

absl::StatusOr<std::vector<ChatMessage>> MakeMessages(std::string_view name, const Value& list,
                                                      int64_t messages_max) {
  const std::vector<Value>& items = list.list().items;
  if (static_cast<int64_t>(items.size()) > messages_max) {
    return Wrong(name, absl::StrCat(" has more than ", messages_max, " messages"));
  }
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < items.size(); ++i) {
    absl::StatusOr<ChatMessage> message = MakeOne(At(name, i), items[i]);
    if (!message.ok()) return message.status();
    messages.push_back(*std::move(message));
  }
  return messages;
}

absl::StatusOr<Value> FromShareGpt(std::string_view name, const Value& list) {
  std::vector<Value> messages;
  for (const Value& message : list.list().items) {
    const Value* from = message.is_dict() ? message.dict().Find("from") : nullptr;
    if (from == nullptr) {
      messages.push_back(message);
      continue;
    }
    const std::string where = At(name, messages.size());
    const auto* const known = std::find_if(
        std::begin(kShareGptRoles), std::end(kShareGptRoles),
        [&](const auto& role) { return from->is_text() && from->text() == role.first; });
    if (known == std::end(kShareGptRoles)) {
      return Wrong(where, absl::StrCat(".from must be human, user, gpt, assistant, system, tool or "
                                       "observation, got ",
                                       Shown(*from)));
    }
    jinja::Dict fields;
    fields.Set("role", Value::MakeText(std::string(known->second)));
    for (const auto& [key, value] : message.dict().items) {
      if (key != "from") fields.Set(key == "value" ? "content" : key, value);
    }
    messages.push_back(Value::MakeDict(std::move(fields)));
  }
  return Value::MakeList(std::move(messages));
}

absl::StatusOr<Value> MakeTools(const Value& tools) {
  Value list = tools;
  if (tools.is_text()) {
    absl::StatusOr<Value> parsed = ParseValue(tools.text());
    if (!parsed.ok()) return Wrong("tools", absl::StrCat(" is ", parsed.status().message()));
    list = *std::move(parsed);
  }
  const bool objects = list.is_list() && std::ranges::all_of(list.list().items, [](const Value& v) {
                         return v.is_dict();
                       });
  if (!objects && !list.is_none()) {
    return Wrong("tools", " must be a list of objects, or that as JSON in a string");
  }
  return list;
}

absl::StatusOr<jinja::Variables> MakeVariables(const Value& kwargs) {
  jinja::Variables variables;
  if (kwargs.is_none()) return variables;
  if (!kwargs.is_dict()) return Wrong("chat_template_kwargs", " must be an object");
  for (const auto& [key, value] : kwargs.dict().items) {
    for (const std::string_view own :
         {"messages", "tools", "documents", "add_generation_prompt", "chat_template"}) {
      if (key != own) continue;
      return Wrong("chat_template_kwargs", absl::StrCat(" must not have \"", key, "\""));
    }
    variables.emplace_back(key, value);
  }
  return variables;
}

}  // namespace lorad::storage
