// Renders the cases of trl/chat_cases.py, a line of JSON each, and compares with what transformers
// printed. Prints a line for each template; exits with 1 where a case differs.
//   chat_cases_check < CASES

#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "storage/datasets/dataset.h"

namespace lorad::storage {
namespace {

using Json = nlohmann::ordered_json;

struct Count {
  int64_t equal = 0, refused = 0, different = 0;
};

// What ours prints, as the case says it: text and spans, or why not.
std::string Printed(const Json& given, const ChatTemplate& chat_template) {
  // A row needs an assistant's turn; it is left out again below.
  Json row = {{"messages", given["messages"]}, {"chat_template_kwargs", given["kwargs"]}};
  row["messages"].push_back({{"role", "assistant"}, {"content", ""}});
  if (!given["tools"].is_null()) row["tools"] = given["tools"];
  const auto parsed = ParseRow(row.dump());
  if (!parsed.ok()) return "refused: " + std::string(parsed.status().message());
  const auto& content = std::get<MessagesRow>(*parsed);
  const auto chat = chat_template.Render(
      std::span(content.messages).first(content.messages.size() - 1), content.inputs,
      given["add_generation_prompt"], {"<s>", "</s>", "<unk>", "<pad>"});
  if (!chat.ok()) return "refused: " + std::string(chat.status().message());
  Json generated = Json::array();
  for (const TextSpan& span : chat->generated) generated.push_back({span.begin, span.end});
  return chat->text + "\n" + generated.dump();
}

bool Check(const Json& given, Count* count) {
  const auto chat_template = ChatTemplate::Parse(given["template"].get<std::string>());
  const std::string printed = chat_template.ok()
                                  ? Printed(given, *chat_template)
                                  : "unread: " + std::string(chat_template.status().message());
  const bool fails = given.contains("fails");
  const std::string expected =
      fails ? "refused: " + given["fails"].get<std::string>()
            : given["text"].get<std::string>() + "\n" + given["generated"].dump();
  const bool equal = fails ? printed.starts_with("refused: ") : printed == expected;
  ++(!equal ? count->different : fails ? count->refused : count->equal);
  if (!equal && count->different <= 2) {
    std::cerr << given["name"] << " of " << given["messages"].dump() << "\nexpected\n"
              << expected << "\nprinted\n"
              << printed << "\n";
  }
  return equal;
}

int Run() {
  std::map<std::string, Count> counts;
  bool equal = true;
  for (std::string line; std::getline(std::cin, line);) {
    const Json given = Json::parse(line);
    equal = Check(given, &counts[given["name"]]) && equal;
  }
  for (const auto& [name, count] : counts) {
    std::printf("%s: %ld as transformers, %ld refused by both, %ld different\n", name.c_str(),
                count.equal, count.refused, count.different);
  }
  return equal && !counts.empty() ? 0 : 1;
}

}  // namespace
}  // namespace lorad::storage

int main() { return lorad::storage::Run(); }
