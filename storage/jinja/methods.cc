// Methods of texts, dicts and lists.

#include <algorithm>

#include "storage/jinja/builtins.h"
#include "storage/jinja/python_text.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::jinja {
namespace {

using C = Context*;
using V = const Value&;
using A = const Arguments&;

// The object's text, or nothing and an error.
const std::string* TextOf(C context, V object, std::string_view method) {
  if (object.is_text()) return &object.text();
  context->Fail(std::string(object.TypeName()) + " has no method '" + std::string(method) + "'");
  return nullptr;
}

const std::string* TextArgument(C context, A arguments, size_t at) {
  if (arguments[at]->is_text()) return &arguments[at]->text();
  context->Fail("a method's argument must be a string, not " +
                std::string(arguments[at]->TypeName()));
  return nullptr;
}

Value StripText(C context, V object, A arguments, std::string_view method, Side side) {
  const std::string* text = TextOf(context, object, method);
  if (text == nullptr) return Value();
  std::optional<std::string_view> characters;
  if (!arguments.empty() && !arguments[0]->is_none()) {
    const std::string* given = TextArgument(context, arguments, 0);
    if (given == nullptr) return Value();
    characters = *given;
  }
  return context->KeepText(std::string(Strip(*text, side, characters)));
}

template <std::string (*Function)(std::string_view)>
Value Change(C context, V object, A) {
  const std::string* text = TextOf(context, object, "upper, lower, title or capitalize");
  return text == nullptr ? Value() : context->KeepText(Function(*text));
}

// startswith and endswith: with one text, or any of a tuple of them.
Value Affix(C context, V object, A arguments, bool at_front) {
  const std::string* text = TextOf(context, object, at_front ? "startswith" : "endswith");
  if (text == nullptr) return Value();
  std::vector<Value> affixes = {*arguments[0]};
  if (arguments[0]->is_list() && arguments[0]->list().tuple) affixes = arguments[0]->list().items;
  bool found = false;
  for (const Value& affix : affixes) {
    if (!affix.is_text()) {
      return context->Fail("startswith and endswith want a string or a tuple of strings");
    }
    found |= at_front ? text->starts_with(affix.text()) : text->ends_with(affix.text());
  }
  return Value::MakeBool(found);
}

Value SplitText(C context, V object, A arguments) {
  const std::string* text = TextOf(context, object, "split");
  if (text == nullptr) return Value();
  std::optional<std::string_view> separator;
  if (!arguments.empty() && !arguments[0]->is_none()) {
    const std::string* given = TextArgument(context, arguments, 0);
    if (given == nullptr) return Value();
    if (given->empty()) return context->Fail("split wants a separator that is not empty");
    separator = *given;
  }
  int64_t max = -1;
  if (arguments.size() > 1) {
    const std::optional<int64_t> given = arguments[1]->Integer();
    if (!given.has_value()) return context->Fail("split's limit must be a number");
    max = *given;
  }
  std::vector<Value> parts;
  if (!context->Charge(text->size() * 16)) return Value();
  for (std::string& part : Split(*text, separator, max)) {
    parts.push_back(Value::MakeText(std::move(part)));
  }
  return context->Keep(Value::MakeList(std::move(parts)));
}

Value SplitTextLines(C context, V object, A) {
  const std::string* text = TextOf(context, object, "splitlines");
  if (text == nullptr || !context->Charge(text->size() * 16)) return Value();
  std::vector<Value> parts;
  for (std::string& part : SplitLines(*text)) parts.push_back(Value::MakeText(std::move(part)));
  return context->Keep(Value::MakeList(std::move(parts)));
}

Value ReplaceInText(C context, V object, A arguments) {
  const std::string* text = TextOf(context, object, "replace");
  if (text == nullptr) return Value();
  return FindFilter("replace")->call(context, object, arguments);
}

// str.find and str.rfind count characters.
Value FindInText(C context, V object, A arguments, bool last) {
  const std::string* text = TextOf(context, object, last ? "rfind" : "find");
  const std::string* part = text == nullptr ? nullptr : TextArgument(context, arguments, 0);
  if (part == nullptr) return Value();
  const size_t at = last ? text->rfind(*part) : text->find(*part);
  if (at == std::string::npos) return Value::MakeInt(-1);
  return Value::MakeInt(
      static_cast<int64_t>(tokenization::CountCharacters(std::string_view(*text).substr(0, at))));
}

Value CountIn(C context, V object, A arguments) {
  if (object.is_list()) {
    const auto& items = object.list().items;
    return Value::MakeInt(std::count_if(items.begin(), items.end(),
                                        [&](V item) { return Equal(item, *arguments[0]); }));
  }
  const std::string* text = TextOf(context, object, "count");
  const std::string* part = text == nullptr ? nullptr : TextArgument(context, arguments, 0);
  if (part == nullptr) return Value();
  if (part->empty()) {
    return Value::MakeInt(static_cast<int64_t>(tokenization::CountCharacters(*text)) + 1);
  }
  int64_t count = 0;
  for (size_t at = 0; (at = text->find(*part, at)) != std::string::npos; at += part->size()) {
    ++count;
  }
  return Value::MakeInt(count);
}

Value JoinItems(C context, V object, A arguments) {
  const std::string* text = TextOf(context, object, "join");
  if (text == nullptr) return Value();
  for (V item : Items(context, *arguments[0])) {
    if (!item.is_text()) return context->Fail("str.join wants strings alone");
  }
  return FindFilter("join")->call(context, *arguments[0], {object});
}

Value RemoveAffix(C context, V object, A arguments, bool at_front) {
  const std::string* text = TextOf(context, object, at_front ? "removeprefix" : "removesuffix");
  const std::string* affix = text == nullptr ? nullptr : TextArgument(context, arguments, 0);
  if (affix == nullptr) return Value();
  std::string_view rest = *text;
  if (at_front && rest.starts_with(*affix)) rest.remove_prefix(affix->size());
  if (!at_front && rest.ends_with(*affix)) rest.remove_suffix(affix->size());
  return context->KeepText(std::string(rest));
}

const Dict* DictOf(C context, V object, std::string_view method) {
  if (object.is_dict()) return &object.dict();
  context->Fail(std::string(object.TypeName()) + " has no method '" + std::string(method) + "'");
  return nullptr;
}

Value DictItems(C context, V object, A) {
  const Dict* dict = DictOf(context, object, "items");
  if (dict == nullptr || !context->Charge(dict->items.size() * 64)) return Value();
  std::vector<Value> out;
  for (const auto& [key, value] : dict->items) {
    out.push_back(context->Keep(Value::MakeList({Value::MakeText(key), value}, true)));
  }
  return context->Keep(Value::MakeList(std::move(out)));
}

Value DictKeys(C context, V object, A) {
  const Dict* dict = DictOf(context, object, "keys");
  return dict == nullptr ? Value() : context->Keep(Value::MakeList(Items(context, object)));
}

Value DictValues(C context, V object, A) {
  const Dict* dict = DictOf(context, object, "values");
  if (dict == nullptr) return Value();
  std::vector<Value> out;
  for (const auto& [key, value] : dict->items) out.push_back(value);
  return context->Keep(Value::MakeList(std::move(out)));
}

Value DictGet(C context, V object, A arguments) {
  const Dict* dict = DictOf(context, object, "get");
  if (dict == nullptr) return Value();
  const Value* found = arguments[0]->is_text() ? dict->Find(arguments[0]->text()) : nullptr;
  if (found != nullptr) return *found;
  return arguments.size() > 1 ? *arguments[1] : Value::MakeNone();
}

constexpr Method kMethods[] = {
    {"capitalize", 0, 0, Change<Capitalize>},
    {"count", 1, 1, CountIn},
    {"endswith", 1, 1, [](C c, V v, A a) { return Affix(c, v, a, false); }},
    {"find", 1, 1, [](C c, V v, A a) { return FindInText(c, v, a, false); }},
    {"get", 1, 2, DictGet},
    {"items", 0, 0, DictItems},
    {"join", 1, 1, JoinItems},
    {"keys", 0, 0, DictKeys},
    {"lower", 0, 0, Change<Lower>},
    {"lstrip", 0, 1, [](C c, V v, A a) { return StripText(c, v, a, "lstrip", Side::kLeft); }},
    {"removeprefix", 1, 1, [](C c, V v, A a) { return RemoveAffix(c, v, a, true); }},
    {"removesuffix", 1, 1, [](C c, V v, A a) { return RemoveAffix(c, v, a, false); }},
    {"replace", 2, 3, ReplaceInText},
    {"rfind", 1, 1, [](C c, V v, A a) { return FindInText(c, v, a, true); }},
    {"rstrip", 0, 1, [](C c, V v, A a) { return StripText(c, v, a, "rstrip", Side::kRight); }},
    {"split", 0, 2, SplitText},
    {"splitlines", 0, 0, SplitTextLines},
    {"startswith", 1, 1, [](C c, V v, A a) { return Affix(c, v, a, true); }},
    {"strip", 0, 1, [](C c, V v, A a) { return StripText(c, v, a, "strip", Side::kBoth); }},
    {"title", 0, 0, Change<Title>},
    {"upper", 0, 0, Change<Upper>},
    {"values", 0, 0, DictValues},
};

}  // namespace

const Method* FindMethod(std::string_view name) {
  for (const Method& method : kMethods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace lorad::storage::jinja
