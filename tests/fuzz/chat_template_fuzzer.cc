// Any bytes as a chat template: the text before the first zero byte; the rest is roles and contents
// in turn, a byte 1 behind each. Refused, or rendered within its limits, or failing with a reason.

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/datasets/chat_template.h"
#include "storage/files/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lorad::storage;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view text = bytes.substr(0, bytes.find('\0'));
  const auto parsed = ChatTemplate::Parse(text);
  if (!parsed.ok()) {
    assert(parsed.status().GetPayload(Absl(kReasonPayload)).has_value());
    return 0;
  }
  std::vector<ChatMessage> messages;
  std::string_view rest = bytes.substr(std::min(text.size() + 1, bytes.size()));
  const auto next = [&rest] {
    const size_t end = std::min(rest.find('\1'), rest.size());
    const std::string part(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return part;
  };
  while (!rest.empty()) {
    std::string role = next();
    messages.push_back(MakeMessage(role, next()));
  }
  ChatTemplateLimits limits;
  limits.steps = 200'000;
  limits.output_bytes = 1 << 20;
  for (const bool prompt : {false, true}) {
    const auto printed =
        parsed->Render(messages, {}, prompt, {"<s>", "</s>", "<unk>", "<pad>"}, limits);
    if (printed.ok()) {
      assert(printed->text.size() <= static_cast<size_t>(limits.output_bytes));
    } else {
      assert(printed.status().GetPayload(Absl(kReasonPayload)).has_value());
    }
  }
  return 0;
}
