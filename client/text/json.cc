#include "client/text/json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lorad::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void AppendMessage(const Message& message, std::string& out);

// The control characters beyond ASCII (U+0080 to U+009F) and the separators of lines and paragraphs
// (U+2028, U+2029), escaped, and how many bytes they took; 0 if none stands there. JSON does not
// ask for it, but Python's splitlines() takes some of them for the end of a line.
std::size_t AppendWideControl(std::string_view text, std::string& out) {
  const auto byte = [text](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  if (byte(0) == 0xc2 && byte(1) >= 0x80 && byte(1) < 0xa0) {
    absl::StrAppendFormat(&out, "\\u%04x", byte(1));
    return 2;
  }
  if (byte(0) == 0xe2 && byte(1) == 0x80 && (byte(2) == 0xa8 || byte(2) == 0xa9)) {
    out += byte(2) == 0xa8 ? "\\u2028" : "\\u2029";
    return 3;
  }
  return 0;
}

void AppendString(std::string_view text, std::string& out) {
  out += '"';
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (const std::size_t wide = AppendWideControl(text.substr(at), out); wide > 0) {
      at += wide - 1;
      continue;
    }
    const char c = text[at];
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void AppendDouble(double value, std::string& out) {
  if (std::isnan(value)) {
    out += "\"NaN\"";
  } else if (std::isinf(value)) {
    out += value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  } else {
    char digits[32];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
}

// One value of a field: element `index` of a repeated field, or the field itself where index is -1.
void AppendValue(const Message& message, const FieldDescriptor& field, int index,
                 std::string& out) {
  const Reflection& at = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      absl::StrAppend(
          &out, one ? at.GetInt32(message, &field) : at.GetRepeatedInt32(message, &field, index));
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      absl::StrAppend(
          &out, one ? at.GetInt64(message, &field) : at.GetRepeatedInt64(message, &field, index));
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      absl::StrAppend(
          &out, one ? at.GetUInt32(message, &field) : at.GetRepeatedUInt32(message, &field, index));
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      absl::StrAppend(
          &out, one ? at.GetUInt64(message, &field) : at.GetRepeatedUInt64(message, &field, index));
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      AppendDouble(
          one ? at.GetDouble(message, &field) : at.GetRepeatedDouble(message, &field, index), out);
      break;
    case FieldDescriptor::CPPTYPE_FLOAT:
      AppendDouble(one ? at.GetFloat(message, &field) : at.GetRepeatedFloat(message, &field, index),
                   out);
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      out += (one ? at.GetBool(message, &field) : at.GetRepeatedBool(message, &field, index))
                 ? "true"
                 : "false";
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      AppendString(
          (one ? at.GetEnum(message, &field) : at.GetRepeatedEnum(message, &field, index))->name(),
          out);
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      AppendString(
          one ? at.GetString(message, &field) : at.GetRepeatedString(message, &field, index), out);
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      AppendMessage(
          one ? at.GetMessage(message, &field) : at.GetRepeatedMessage(message, &field, index),
          out);
      break;
  }
}

// Entries sorted by key, so that equal messages give equal text. All maps of the API have string
// keys.
void AppendMap(const Message& message, const FieldDescriptor& field, std::string& out) {
  const Reflection& at = *message.GetReflection();
  std::vector<const Message*> entries;
  for (int i = 0; i < at.FieldSize(message, &field); ++i) {
    entries.push_back(&at.GetRepeatedMessage(message, &field, i));
  }
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  const auto key_of = [&key](const Message* entry) {
    return entry->GetReflection()->GetString(*entry, &key);
  };
  std::sort(entries.begin(), entries.end(),
            [&](const Message* a, const Message* b) { return key_of(a) < key_of(b); });
  out += '{';
  for (const Message* entry : entries) {
    if (entry != entries.front()) out += ", ";
    AppendValue(*entry, key, -1, out);
    out += ": ";
    AppendValue(*entry, value, -1, out);
  }
  out += '}';
}

void AppendField(const Message& message, const FieldDescriptor& field, std::string& out) {
  const Reflection& at = *message.GetReflection();
  if (field.is_map()) return AppendMap(message, field, out);
  if (!field.is_repeated()) {
    if (field.has_presence() && !at.HasField(message, &field)) {
      out += "null";
    } else {
      AppendValue(message, field, -1, out);
    }
    return;
  }
  out += '[';
  for (int i = 0; i < at.FieldSize(message, &field); ++i) {
    if (i > 0) out += ", ";
    AppendValue(message, field, i, out);
  }
  out += ']';
}

void AppendMessage(const Message& message, std::string& out) {
  if (message.GetDescriptor() == google::protobuf::Timestamp::descriptor()) {
    google::protobuf::Timestamp time;
    time.CopyFrom(message);
    return AppendString(google::protobuf::util::TimeUtil::ToString(time), out);
  }
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  out += '{';
  for (int i = 0; i < type.field_count(); ++i) {
    if (i > 0) out += ", ";
    AppendString(type.field(i)->name(), out);
    out += ": ";
    AppendField(message, *type.field(i), out);
  }
  out += '}';
}

}  // namespace

std::string ToJson(const google::protobuf::Message& message) {
  std::string out;
  AppendMessage(message, out);
  return out;
}

}  // namespace lorad::client
