// Parts of values: attributes, items, members.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/jinja/builtins.h"
#include "storage/jinja/operators.h"
#include "storage/jinja/python_text.h"

namespace lorad::storage::jinja {
namespace {

Value Missing(const Value& value, std::string_view name) {
  return Value::MakeUndefined(
      absl::StrCat("'", Absl(value.TypeName()), "' has no attribute '", Absl(name), "'"));
}

const Value* FindIn(const Value& value, std::string_view name) {
  if (value.is_dict()) return value.dict().Find(name);
  if (value.is_namespace()) return value.space()->attributes.Find(name);
  return nullptr;
}

}  // namespace

Value GetAttribute(Context* context, const Value& value, std::string_view name) {
  if (context->failed()) return Value();
  if (value.is_undefined()) return FailUndefined(context, value);
  // In Python these would be the method, not the item.
  const bool method = value.is_dict() && (name == "items" || name == "keys" || name == "values" ||
                                          name == "get" || name == "pop" || name == "copy");
  const Value* found = method ? nullptr : FindIn(value, name);
  return found != nullptr ? *found : Missing(value, name);
}

Value GetItem(Context* context, const Value& value, const Value& key) {
  if (context->failed()) return Value();
  if (value.is_undefined()) return FailUndefined(context, value);
  if (key.is_text()) {
    const Value* found = FindIn(value, key.text());
    return found != nullptr ? *found : Missing(value, key.text());
  }
  const std::optional<int64_t> integer = key.Integer();
  if (!integer.has_value() || !(value.is_list() || value.is_text())) {
    return Missing(value, ToText(key).substr(0, 100));
  }
  const std::vector<Value> items = value.is_text() ? Items(context, value) : std::vector<Value>();
  const std::vector<Value>& all = value.is_text() ? items : value.list().items;
  const auto length = static_cast<int64_t>(all.size());
  const int64_t at = *integer < 0 ? *integer + length : *integer;
  if (at < 0 || at >= length) return Missing(value, std::to_string(*integer));
  return all[static_cast<size_t>(at)];
}

std::vector<Value> Items(Context* context, const Value& value) {
  std::vector<Value> out;
  if (context->failed() || value.is_undefined()) return out;
  if (value.is_list()) {
    if (context->Charge(value.list().items.size() * 16)) out = value.list().items;
  } else if (value.is_dict()) {
    if (!context->Charge(value.dict().items.size() * 16)) return out;
    for (const auto& [key, item] : value.dict().items) out.push_back(Value::MakeText(key));
  } else if (value.is_text()) {
    if (!context->Charge(value.text().size() * 16)) return out;
    for (std::string& character : Characters(value.text())) {
      out.push_back(Value::MakeText(std::move(character)));
    }
  } else {
    context->Fail(absl::StrCat(Absl(value.TypeName()), " cannot be iterated over"));
  }
  return out;
}

bool Contains(Context* context, const Value& container, const Value& item) {
  if (context->failed() || container.is_undefined()) return false;
  if (container.is_text()) {
    if (item.is_text()) {
      return context->Charge(container.text().size() / 8) &&
             container.text().find(item.text()) != std::string::npos;
    }
    context->Fail(absl::StrCat("'in' a string wants a string, not ", Absl(item.TypeName())));
    return false;
  }
  if (container.is_dict()) {
    return item.is_text() && container.dict().Find(item.text()) != nullptr;
  }
  if (!container.is_list()) {
    context->Fail(absl::StrCat("'in' ", Absl(container.TypeName()), " is not possible"));
    return false;
  }
  const auto& items = container.list().items;
  if (!context->Charge(container.extent().weight)) return false;
  return std::any_of(items.begin(), items.end(), [&](const Value& v) { return Equal(v, item); });
}

}  // namespace lorad::storage::jinja
