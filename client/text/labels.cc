#include "client/text/labels.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace lorad::client {

std::pair<std::string, std::string> SplitLabel(const std::string& text) {
  const size_t equals = text.find('=');
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::string CheckLabel(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0) return "";
  return absl::StrCat("a label is KEY=VALUE, got '", text, "' (the job's id comes before labels)");
}

std::string LabelsText(const lorad::v1::Job& job) {
  std::string text;
  for (const auto& [key, value] :
       std::map<std::string, std::string>(job.labels().begin(), job.labels().end())) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", key, "=", value);
  }
  return text.empty() ? "-" : text;
}

}  // namespace lorad::client
