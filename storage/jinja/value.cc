#include "storage/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "storage/jinja/python_text.h"

namespace lorad::storage::jinja {
namespace {

constexpr uint64_t kItemWeight = 16;

// `outer` gains an item.
void Include(const Extent& item, Extent* outer) {
  outer->depth = std::max(outer->depth, item.depth + 1);
  outer->weight += item.weight;  // both are bounded far below overflow
}

bool EqualDicts(const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = b.Find(item.first);
    return other != nullptr && Equal(item.second, *other);
  });
}

// Python's repr of a float: the shortest digits that read back the same.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double magnitude = std::fabs(value);
  const bool plain = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string out(buffer, end.ptr);
  if (plain && out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string Repr(const Value& value) {
  if (value.is_text()) return QuoteText(value.text());
  if (value.is_list()) {
    const List& list = value.list();
    std::string out = list.tuple ? "(" : "[";
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out += ", ";
      out += Repr(list.items[i]);
    }
    if (list.tuple && list.items.size() == 1) out += ",";
    return out + (list.tuple ? ")" : "]");
  }
  if (value.is_dict()) {
    std::string out = "{";
    for (const auto& [key, item] : value.dict().items) {
      if (out.size() > 1) out += ", ";
      out += QuoteText(key) + ": " + Repr(item);
    }
    return out + "}";
  }
  if (value.is_undefined()) return "Undefined";
  return ToText(value);
}

class JsonWriter {
 public:
  explicit JsonWriter(int indent) : indent_(indent) {}

  bool Write(const Value& value, int level) {
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.boolean() ? "true" : "false";
    } else if (value.is_float() && !std::isfinite(value.floating())) {
      const double number = value.floating();
      out_ += std::isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity";
    } else if (value.is_number()) {
      out_ += ToText(value);
    } else if (value.is_text()) {
      out_ += JsonText(value.text());
    } else if (value.is_list()) {
      return WriteItems('[', ']', value.list().items, level,
                        [&](const Value& item) { return Write(item, level + 1); });
    } else if (value.is_dict()) {
      return WriteItems('{', '}', value.dict().items, level, [&](const auto& item) {
        out_ += JsonText(item.first) + ": ";
        return Write(item.second, level + 1);
      });
    } else {
      return false;
    }
    return true;
  }

  std::string Take() { return std::move(out_); }

 private:
  template <typename Items, typename WriteItem>
  bool WriteItems(char open, char close, const Items& items, int level,
                  const WriteItem& write_item) {
    out_ += open;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += indent_ < 0 ? ", " : ",";
      NewLine(level + 1);
      if (!write_item(items[i])) return false;
    }
    if (!items.empty()) NewLine(level);
    out_ += close;
    return true;
  }

  void NewLine(int level) {
    if (indent_ >= 0) out_ += "\n" + std::string(static_cast<size_t>(indent_ * level), ' ');
  }

  int indent_;
  std::string out_;
};

}  // namespace

const Value* Dict::Find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Dict::Append(std::string key, Value value) {
  Include(value.extent(), &extent);
  extent.weight += key.size();
  items.emplace_back(std::move(key), std::move(value));
}

void Dict::Set(std::string_view key, Value value) {
  Include(value.extent(), &extent);
  extent.weight += key.size();
  for (auto& [name, old] : items) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  items.emplace_back(std::string(key), std::move(value));
}

Value Value::MakeUndefined(std::string what) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(what))}));
}

Value Value::MakeList(std::vector<Value> items, bool tuple) {
  Extent extent{1, kItemWeight};
  for (const Value& item : items) Include(item.extent(), &extent);
  return Value(Data(std::make_shared<const List>(List{std::move(items), tuple, extent})));
}

Value Value::MakeDict(Dict dict) {
  return Value(Data(std::make_shared<const Dict>(std::move(dict))));
}

std::optional<int64_t> Value::Integer() const {
  if (is_bool()) return boolean() ? 1 : 0;
  if (is_int()) return std::get<int64_t>(data_);
  return std::nullopt;
}

double Value::Number() const { return is_float() ? floating() : static_cast<double>(*Integer()); }

bool Value::Truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return Number() != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return !list().items.empty();
  if (is_dict()) return !dict().items.empty();
  return true;
}

std::string_view Value::TypeName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_text()) return "str";
  if (is_list()) return list().tuple ? "tuple" : "list";
  if (is_dict()) return "dict";
  return "namespace";
}

Extent Value::extent() const {
  if (is_list()) return list().extent;
  if (is_dict()) return {std::max(dict().extent.depth, 1), dict().extent.weight + kItemWeight};
  return {0, kItemWeight + (is_text() ? text().size() : 0)};
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const auto left = a.Integer();
    const auto right = b.Integer();
    return left && right ? *left == *right : a.Number() == b.Number();
  }
  if (a.is_text() && b.is_text()) return a.text() == b.text();
  if (a.is_list() && b.is_list()) {
    return a.list().tuple == b.list().tuple &&
           std::equal(a.list().items.begin(), a.list().items.end(), b.list().items.begin(),
                      b.list().items.end(), Equal);
  }
  if (a.is_dict() && b.is_dict()) return EqualDicts(a.dict(), b.dict());
  if (a.is_namespace() && b.is_namespace()) return a.space() == b.space();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

std::optional<bool> Less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const auto left = a.Integer();
    const auto right = b.Integer();
    return left && right ? *left < *right : a.Number() < b.Number();
  }
  // The order of UTF-8's bytes is that of its characters.
  if (a.is_text() && b.is_text()) return a.text() < b.text();
  if (!a.is_list() || !b.is_list() || a.list().tuple != b.list().tuple) return std::nullopt;
  const std::vector<Value>& left = a.list().items;
  const std::vector<Value>& right = b.list().items;
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    if (!Equal(left[i], right[i])) return Less(left[i], right[i]);
  }
  return left.size() < right.size();
}

std::string ToText(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.boolean() ? "True" : "False";
  if (value.is_int()) return std::to_string(*value.Integer());
  if (value.is_float()) return FloatText(value.floating());
  if (value.is_text()) return value.text();
  if (value.is_namespace()) return "<Namespace>";
  return Repr(value);
}

std::optional<std::string> ToJson(const Value& value, int indent) {
  JsonWriter writer(indent);
  if (!writer.Write(value, 0)) return std::nullopt;
  return writer.Take();
}

}  // namespace lorad::storage::jinja
