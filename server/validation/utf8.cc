#include "server/validation/utf8.h"

#include <google/protobuf/descriptor.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

namespace pb = google::protobuf;

void Check(const pb::Message& message, const std::string& prefix,
           std::vector<FieldViolation>& violations) {
  const pb::Reflection& reflection = *message.GetReflection();
  std::vector<const pb::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const pb::FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const std::string path = absl::StrCat(prefix, field->name(),
                                            field->is_repeated() ? absl::StrCat("[", i, "]") : "");
      if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
        Check(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                   : reflection.GetMessage(message, field),
              path + ".", violations);
      } else if (field->type() == pb::FieldDescriptor::TYPE_STRING) {
        const std::string text = field->is_repeated()
                                     ? reflection.GetRepeatedString(message, field, i)
                                     : reflection.GetString(message, field);
        if (IsUtf8(text)) continue;
        violations.push_back(
            {path, absl::StrCat("must be valid UTF-8, got '", Quotable(text, 200), "'")});
      }
    }
  }
}

}  // namespace

absl::Status CheckUtf8(const std::string& what, const pb::Message& message) {
  std::vector<FieldViolation> violations;
  Check(message, "", violations);
  return violations.empty() ? absl::OkStatus() : InvalidFields(what, violations);
}

}  // namespace lorad::server
