#include "client/parquet/json_form.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/type.h>
#include <arrow/util/checked_cast.h>
#include <arrow/util/float16.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/inputs/quoted.h"

namespace lorad::client {

using arrow::Type;
using arrow::internal::checked_cast;

namespace {

constexpr std::size_t kRowBytesMax = 16 << 20;

absl::Status TooLong() { return absl::InvalidArgumentError("makes the row longer than 16 MiB"); }

}  // namespace

// One for each kind of type.
struct Writers {
  static absl::Status Nothing(const JsonForm&, const arrow::Array&, std::int64_t, std::string&) {
    return absl::OkStatus();
  }

  static absl::Status Bool(const JsonForm&, const arrow::Array& array, std::int64_t i,
                           std::string& out) {
    out += checked_cast<const arrow::BooleanArray&>(array).Value(i) ? "true" : "false";
    return absl::OkStatus();
  }

  template <typename ArrayType>
  static absl::Status Integer(const JsonForm&, const arrow::Array& array, std::int64_t i,
                              std::string& out) {
    absl::StrAppend(&out, int{0} + checked_cast<const ArrayType&>(array).Value(i));
    return absl::OkStatus();
  }

  static absl::Status Finite(double value, std::string& out) {
    if (std::isnan(value))
      return absl::InvalidArgumentError("is NaN, which JSON has not; make null of it");
    if (std::isinf(value))
      return absl::InvalidArgumentError("is infinite, which JSON has not; make null of it");
    AppendFloat(value, out);
    return absl::OkStatus();
  }

  template <typename ArrayType>
  static absl::Status Float(const JsonForm&, const arrow::Array& array, std::int64_t i,
                            std::string& out) {
    return Finite(checked_cast<const ArrayType&>(array).Value(i), out);
  }

  static absl::Status Half(const JsonForm&, const arrow::Array& array, std::int64_t i,
                           std::string& out) {
    const auto bits = checked_cast<const arrow::HalfFloatArray&>(array).Value(i);
    return Finite(arrow::util::Float16::FromBits(bits).ToDouble(), out);
  }

  template <typename ArrayType>
  static absl::Status Text(const JsonForm&, const arrow::Array& array, std::int64_t i,
                           std::string& out) {
    const std::string_view text = checked_cast<const ArrayType&>(array).GetView(i);
    if (out.size() + text.size() > kRowBytesMax) return TooLong();  // quoting can make six of one
    const std::string quoted = Quoted(std::string(text));
    if (quoted.empty()) return absl::InvalidArgumentError("is not UTF-8");
    out += quoted;
    return absl::OkStatus();
  }

  template <typename ArrayType>
  static absl::Status List(const JsonForm& form, const arrow::Array& array, std::int64_t i,
                           std::string& out) {
    const auto& list = checked_cast<const ArrayType&>(array);
    const std::int64_t begin = list.value_offset(i);
    const std::int64_t end = begin + list.value_length(i);
    out += '[';
    for (std::int64_t at = begin; at < end; ++at) {
      if (at > begin) out += ", ";
      auto status = form.children_[0].Append(*list.values(), at, out);
      if (!status.ok()) return status;
    }
    out += ']';
    return absl::OkStatus();
  }

  static absl::Status Struct(const JsonForm& form, const arrow::Array& array, std::int64_t i,
                             std::string& out) {
    const auto& fields = checked_cast<const arrow::StructArray&>(array);
    const char* before = "";
    out += '{';
    for (std::size_t k = 0; k < form.children_.size(); ++k) {
      const arrow::Array& field = *fields.field(static_cast<int>(k));
      if (field.IsNull(i)) continue;
      absl::StrAppend(&out, before, form.keys_[k]);
      before = ", ";
      auto status = form.children_[k].Append(field, i, out);
      if (!status.ok()) return status;
    }
    out += '}';
    return absl::OkStatus();
  }

  static absl::Status Dictionary(const JsonForm& form, const arrow::Array& array, std::int64_t i,
                                 std::string& out) {
    const auto& coded = checked_cast<const arrow::DictionaryArray&>(array);
    const std::int64_t code = coded.GetValueIndex(i);
    if (code < 0 || code >= coded.dictionary()->length()) {  // which Arrow reads unseen
      return absl::InvalidArgumentError("has a code that its dictionary lacks; is the file whole?");
    }
    return form.children_[0].Append(*coded.dictionary(), code, out);
  }

  static absl::Status Extension(const JsonForm& form, const arrow::Array& array, std::int64_t i,
                                std::string& out) {
    const auto& extension = checked_cast<const arrow::ExtensionArray&>(array);
    return form.children_[0].Append(*extension.storage(), i, out);
  }

  // Null where JSON has no such values.
  static JsonForm::Write Of(Type::type type);
};

JsonForm::Write Writers::Of(Type::type type) {
  switch (type) {
    case Type::NA:
      return Nothing;
    case Type::BOOL:
      return Bool;
    case Type::UINT8:
      return Integer<arrow::UInt8Array>;
    case Type::INT8:
      return Integer<arrow::Int8Array>;
    case Type::UINT16:
      return Integer<arrow::UInt16Array>;
    case Type::INT16:
      return Integer<arrow::Int16Array>;
    case Type::UINT32:
      return Integer<arrow::UInt32Array>;
    case Type::INT32:
      return Integer<arrow::Int32Array>;
    case Type::UINT64:
      return Integer<arrow::UInt64Array>;
    case Type::INT64:
      return Integer<arrow::Int64Array>;
    case Type::HALF_FLOAT:
      return Half;
    case Type::FLOAT:
      return Float<arrow::FloatArray>;
    case Type::DOUBLE:
      return Float<arrow::DoubleArray>;
    case Type::STRING:
      return Text<arrow::StringArray>;
    case Type::LARGE_STRING:
      return Text<arrow::LargeStringArray>;
    case Type::STRING_VIEW:
      return Text<arrow::StringViewArray>;
    case Type::LIST:
      return List<arrow::ListArray>;
    case Type::LARGE_LIST:
      return List<arrow::LargeListArray>;
    case Type::FIXED_SIZE_LIST:
      return List<arrow::FixedSizeListArray>;
    case Type::LIST_VIEW:
      return List<arrow::ListViewArray>;
    case Type::LARGE_LIST_VIEW:
      return List<arrow::LargeListViewArray>;
    case Type::STRUCT:
      return Struct;
    case Type::DICTIONARY:
      return Dictionary;
    case Type::EXTENSION:
      return Extension;
    default:
      return nullptr;
  }
}

namespace {

// What pandas makes JSON's values of them by; "" where nothing short does.
absl::string_view Mend(Type::type type) {
  if (arrow::is_temporal(type) || type == Type::DURATION) return ".astype(str)";
  if (arrow::is_decimal(type)) return ".astype(float)";
  if (arrow::is_binary_or_binary_view(type)) return ".str.decode(\"utf-8\")";
  if (type == Type::MAP) return ".map(dict)";
  return "";
}

absl::Status NoJson(const std::string& column, const std::string& path,
                    const arrow::DataType& type) {
  std::string mend;
  if (const absl::string_view by = path == column ? Mend(type.id()) : ""; !by.empty()) {
    mend =
        absl::StrCat("frame[\"", column, "\"] = frame[\"", column, "\"]", by, " converts it, and ");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("column ", path, " is ", type.ToString(), ", which JSON has not; with pandas, ",
                   mend, "frame.drop(columns=\"", column, "\") leaves it out"));
}

}  // namespace

absl::StatusOr<JsonForm> JsonForm::Of(const std::string& column, const arrow::DataType& type) {
  JsonForm form;
  if (auto status = form.Take(column, column, type); !status.ok()) return status;
  return form;
}

absl::Status JsonForm::AddChild(const std::string& column, const std::string& path,
                                const arrow::DataType& type) {
  return children_.emplace_back().Take(column, path, type);
}

// `path` leads to the type, from the column on.
absl::Status JsonForm::Take(const std::string& column, const std::string& path,
                            const arrow::DataType& type) {
  write_ = Writers::Of(type.id());
  if (write_ == nullptr) return NoJson(column, path, type);
  if (type.id() == Type::DICTIONARY) {
    const auto& coded = checked_cast<const arrow::DictionaryType&>(type);
    return AddChild(column, path, *coded.value_type());
  }
  if (type.id() == Type::EXTENSION) {
    const auto& extension = checked_cast<const arrow::ExtensionType&>(type);
    if (extension.extension_name() != "arrow.json") return NoJson(column, path, type);
    return AddChild(column, path, *extension.storage_type());
  }
  if (type.id() != Type::STRUCT) {
    return type.num_fields() == 0 ? absl::OkStatus()
                                  : AddChild(column, path + "[]", *type.field(0)->type());
  }
  for (const std::shared_ptr<arrow::Field>& field : type.fields()) {
    const std::string quoted = Quoted(field->name());
    if (quoted.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the name of a field in column ", column, " is not UTF-8; rename it"));
    }
    const std::string inner = absl::StrCat(path, ".", field->name());
    const std::string key = absl::StrCat(quoted, ": ");
    if (std::ranges::find(keys_, key) != keys_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("two fields are ", inner, "; rename one"));
    }
    keys_.push_back(key);
    if (auto status = AddChild(column, inner, *field->type()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status JsonForm::Append(const arrow::Array& array, std::int64_t i, std::string& out) const {
  if (array.IsNull(i)) {
    out += "null";
  } else if (auto status = write_(*this, array, i, out); !status.ok()) {
    return status;
  }
  return out.size() > kRowBytesMax ? TooLong() : absl::OkStatus();
}

void AppendFloat(double value, std::string& out) {
  // "-d.ddde-XX", of the fewest digits that mean it.
  std::array<char, 32> text = {};
  std::to_chars(text.begin(), text.end() - 1, std::abs(value), std::chars_format::scientific);
  const absl::string_view all(text.data());
  const std::size_t mark = all.find('e');
  const int exponent = std::atoi(text.data() + mark + 1);
  const absl::string_view first = all.substr(0, 1);
  const absl::string_view rest = mark > 1 ? all.substr(2, mark - 2) : "";
  const absl::string_view zeros = "0000000000000000";

  if (std::signbit(value)) out += '-';
  if (exponent < -4 || exponent >= 16) {
    absl::StrAppend(&out, first, rest.empty() ? "" : ".", rest, exponent < 0 ? "e-" : "e+",
                    std::abs(exponent) < 10 ? "0" : "", std::abs(exponent));
  } else if (exponent < 0) {
    absl::StrAppend(&out, "0.", zeros.substr(0, static_cast<std::size_t>(-1 - exponent)), first,
                    rest);
  } else if (const auto whole = static_cast<std::size_t>(exponent); rest.size() > whole) {
    absl::StrAppend(&out, first, rest.substr(0, whole), ".", rest.substr(whole));
  } else {
    absl::StrAppend(&out, first, rest, zeros.substr(0, whole - rest.size()), ".0");
  }
}

}  // namespace lorad::client
