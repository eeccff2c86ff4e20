#include <algorithm>
#include <cmath>

#include "storage/jinja/builtins.h"
#include "storage/jinja/operators.h"
#include "storage/jinja/python_text.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::jinja {
namespace {

bool Has(const Arguments& arguments, size_t at) {
  return at < arguments.size() && arguments[at].has_value();
}

// An argument that must be text; `standard` if it is not given.
std::optional<std::string> TextArgument(Context* context, const Arguments& arguments, size_t at,
                                        const std::string& standard) {
  if (!Has(arguments, at)) return standard;
  if (arguments[at]->is_text()) return arguments[at]->text();
  context->Fail("a filter's argument must be a string, not " +
                std::string(arguments[at]->TypeName()));
  return std::nullopt;
}

Value Abs(Context* context, const Value& value, const Arguments&) {
  if (value.is_float()) return Value::MakeFloat(std::fabs(value.floating()));
  const std::optional<int64_t> integer = value.Integer();
  if (!integer.has_value() || *integer == INT64_MIN) {
    return context->Fail("abs of " + std::string(value.TypeName()));
  }
  return Value::MakeInt(std::abs(*integer));
}

Value CapitalizeFilter(Context* context, const Value& value, const Arguments&) {
  return context->KeepText(Capitalize(context->Text(value)));
}

Value Default(Context*, const Value& value, const Arguments& arguments) {
  const bool falsy = Has(arguments, 1) && arguments[1]->Truth();
  if (!value.is_undefined() && !(falsy && !value.Truth())) return value;
  return Has(arguments, 0) ? *arguments[0] : Value::MakeText("");
}

Value First(Context* context, const Value& value, const Arguments&) {
  const std::vector<Value> items = Items(context, value);
  return items.empty() ? Value::MakeUndefined("the first item of nothing") : items.front();
}

Value Last(Context* context, const Value& value, const Arguments&) {
  const std::vector<Value> items = Items(context, value);
  return items.empty() ? Value::MakeUndefined("the last item of nothing") : items.back();
}

Value Float(Context* context, const Value& value, const Arguments&) {
  if (value.is_undefined()) return FailUndefined(context, value);
  if (value.is_number()) return Value::MakeFloat(value.Number());
  if (value.is_text()) {
    try {
      size_t used = 0;
      const std::string text(Strip(value.text(), Side::kBoth));
      const double number = std::stod(text, &used);
      if (used == text.size()) return Value::MakeFloat(number);
    } catch (const std::exception&) {
      // not a number: the default, as in Jinja
    }
  }
  return Value::MakeFloat(0);
}

Value Int(Context* context, const Value& value, const Arguments& arguments) {
  if (value.is_undefined()) return FailUndefined(context, value);
  if (const std::optional<int64_t> integer = value.Integer()) return Value::MakeInt(*integer);
  const double number = Float(context, value, {}).floating();
  const bool fits = std::fabs(number) < 9.2e18;
  if (value.is_float() && fits) return Value::MakeInt(static_cast<int64_t>(number));
  if (value.is_text()) {
    try {
      size_t used = 0;
      const std::string text(Strip(value.text(), Side::kBoth));
      const int64_t integer = std::stoll(text, &used, 10);
      if (used == text.size()) return Value::MakeInt(integer);
    } catch (const std::exception&) {
      // perhaps a float
    }
    if (number != 0 && fits) return Value::MakeInt(static_cast<int64_t>(number));
  }
  return Has(arguments, 0) ? *arguments[0] : Value::MakeInt(0);
}

Value Indent(Context* context, const Value& value, const Arguments& arguments) {
  if (!value.is_text()) return context->Fail("indent of " + std::string(value.TypeName()));
  std::string margin(4, ' ');
  if (Has(arguments, 0) && arguments[0]->is_text()) {
    margin = arguments[0]->text();
  } else if (Has(arguments, 0)) {
    const std::optional<int64_t> width = arguments[0]->Integer();
    if (!width.has_value() || *width < 0 || *width > 1000) return context->Fail("indent's width");
    margin.assign(static_cast<size_t>(*width), ' ');
  }
  const bool first = Has(arguments, 1) && arguments[1]->Truth();
  const bool blank = Has(arguments, 2) && arguments[2]->Truth();
  const std::vector<std::string> lines = SplitLines(context->Text(value) + "\n");
  if (!context->Charge(lines.size() * margin.size())) return Value();
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i == 0 ? first : blank || !lines[i].empty()) out += margin;
    out += lines[i];
  }
  return context->KeepText(std::move(out));
}

Value ItemsFilter(Context* context, const Value& value, const Arguments&) {
  if (value.is_undefined()) return Value::MakeList({});
  if (!value.is_dict()) {
    return context->Fail("items of " + std::string(value.TypeName()) + ", not of a dict");
  }
  return FindMethod("items")->call(context, value, {});
}

Value Join(Context* context, const Value& value, const Arguments& arguments) {
  const auto separator = TextArgument(context, arguments, 0, "");
  std::string out;
  bool first = true;
  for (Value item : Items(context, value)) {
    if (Has(arguments, 1)) item = GetItem(context, item, *arguments[1]);
    if (context->failed()) return Value();
    if (!first) out += *separator;
    first = false;
    out += context->Text(item);
    if (out.size() > context->max_text_bytes()) break;  // refused below
  }
  return context->KeepText(std::move(out));
}

Value Length(Context* context, const Value& value, const Arguments&) {
  if (value.is_text()) {
    return Value::MakeInt(static_cast<int64_t>(tokenization::CountCharacters(value.text())));
  }
  if (value.is_list()) return Value::MakeInt(static_cast<int64_t>(value.list().items.size()));
  if (value.is_dict()) return Value::MakeInt(static_cast<int64_t>(value.dict().items.size()));
  if (value.is_undefined()) return Value::MakeInt(0);
  return context->Fail("length of " + std::string(value.TypeName()));
}

Value ListFilter(Context* context, const Value& value, const Arguments&) {
  return context->Keep(Value::MakeList(Items(context, value)));
}

Value LowerFilter(Context* context, const Value& value, const Arguments&) {
  return context->KeepText(Lower(context->Text(value)));
}

Value Replace(Context* context, const Value& value, const Arguments& arguments) {
  const auto from = TextArgument(context, arguments, 0, "");
  const auto to = TextArgument(context, arguments, 1, "");
  if (context->failed()) return Value();
  const int64_t count = Has(arguments, 2) ? arguments[2]->Integer().value_or(-1) : -1;
  auto out = ReplaceText(context->Text(value), *from, *to, count, context->max_text_bytes());
  if (!out.has_value()) context->Charge(UINT64_MAX);
  return context->KeepText(std::move(out).value_or(""));
}

Value Reverse(Context* context, const Value& value, const Arguments&) {
  std::vector<Value> items = Items(context, value);
  std::reverse(items.begin(), items.end());
  if (!value.is_text()) return context->Keep(Value::MakeList(std::move(items)));
  std::string out;
  for (const Value& item : items) out += item.text();
  return context->KeepText(std::move(out));
}

// Items that a test accepts (or, `negated`, refuses), by themselves or by an attribute of theirs.
Value SelectItems(Context* context, const Value& value, const Arguments& arguments,
                  bool by_attribute, bool negated) {
  const size_t test_at = by_attribute ? 1 : 0;
  // The parser has seen to the test's name and the number of its arguments.
  const Test* test = Has(arguments, test_at) ? FindTest(arguments[test_at]->text()) : nullptr;
  const Arguments rest(
      arguments.begin() + static_cast<ptrdiff_t>(std::min(test_at + 1, arguments.size())),
      arguments.end());
  std::vector<Value> out;
  if (!value.Truth()) return Value::MakeList({});  // none too
  for (const Value& item : Items(context, value)) {
    const Value tested = by_attribute ? GetItem(context, item, *arguments[0]) : item;
    const bool accepted = test != nullptr ? test->call(context, tested, rest) : tested.Truth();
    if (context->failed()) return Value();
    if (accepted != negated) out.push_back(item);
  }
  return context->Keep(Value::MakeList(std::move(out)));
}

Value Select(Context* context, const Value& value, const Arguments& arguments) {
  return SelectItems(context, value, arguments, false, false);
}
Value Reject(Context* context, const Value& value, const Arguments& arguments) {
  return SelectItems(context, value, arguments, false, true);
}
Value SelectAttr(Context* context, const Value& value, const Arguments& arguments) {
  return SelectItems(context, value, arguments, true, false);
}
Value RejectAttr(Context* context, const Value& value, const Arguments& arguments) {
  return SelectItems(context, value, arguments, true, true);
}

Value String(Context* context, const Value& value, const Arguments&) {
  return context->KeepText(context->Text(value));
}

Value TitleFilter(Context* context, const Value& value, const Arguments&) {
  return context->KeepText(JinjaTitle(context->Text(value)));
}

Value ToJsonFilter(Context* context, const Value& value, const Arguments& arguments) {
  if (Has(arguments, 0) && arguments[0]->Truth()) {
    return context->Fail("tojson with ensure_ascii is not implemented");
  }
  int64_t indent = -1;
  if (Has(arguments, 1) && !arguments[1]->is_none()) {
    indent = arguments[1]->Integer().value_or(-1);
    if (indent < 0 || indent > 16) return context->Fail("tojson's indent must be 0 to 16");
  }
  const Extent extent = value.extent();
  if (!context->Charge(extent.weight * static_cast<uint64_t>(2 + std::max<int64_t>(indent, 0)))) {
    return Value();
  }
  auto out = ToJson(value, static_cast<int>(indent));
  if (!out.has_value()) return context->Fail("tojson of a value that JSON does not have");
  return context->KeepText(*std::move(out));
}

Value Trim(Context* context, const Value& value, const Arguments& arguments) {
  const std::string text = context->Text(value);
  std::optional<std::string> characters;
  if (Has(arguments, 0) && !arguments[0]->is_none()) {
    characters = TextArgument(context, arguments, 0, "");
    if (context->failed()) return Value();
  }
  return context->KeepText(std::string(Strip(text, Side::kBoth, characters)));
}

Value UpperFilter(Context* context, const Value& value, const Arguments&) {
  return context->KeepText(Upper(context->Text(value)));
}

// map(attribute="name", default=..) or map("filter").
Value Map(Context* context, const Value& value, const Arguments& arguments) {
  std::vector<Value> out;
  if (!value.Truth()) return Value::MakeList({});  // none too
  for (const Value& item : Items(context, value)) {
    Value mapped;
    if (Has(arguments, 0)) {
      mapped = FindFilter(arguments[0]->text())->call(context, item, {});
    } else if (Has(arguments, 1)) {
      mapped = GetItem(context, item, *arguments[1]);
      if (mapped.is_undefined() && Has(arguments, 2)) mapped = *arguments[2];
    } else {
      return context->Fail("map wants a filter's name or attribute=");
    }
    if (context->failed()) return Value();
    out.push_back(std::move(mapped));
  }
  return context->Keep(Value::MakeList(std::move(out)));
}

// What is paid for each byte that is sorted: comparisons look at it so often.
constexpr uint64_t kSortBytes = 20;

// Sorts by what `key_of` gives; text as lower case where `folds`.
template <typename KeyOf>
Value Sorted(Context* context, std::vector<Value> items, bool folds, bool reverse, KeyOf key_of) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    Value key = key_of(item);
    if (folds && key.is_text()) key = Value::MakeText(Lower(key.text()));
    keyed.emplace_back(std::move(key), std::move(item));
  }
  bool ordered = true;
  const auto less = [&](const auto& a, const auto& b) {
    const std::optional<bool> known = reverse ? Less(b.first, a.first) : Less(a.first, b.first);
    ordered = ordered && known.has_value();
    return known.value_or(false);
  };
  // Merges, so that no order, however inconsistent, leads out of the list.
  std::stable_sort(keyed.begin(), keyed.end(), less);
  if (!ordered) return context->Fail("a sort of values that have no order");
  for (size_t i = 0; i < items.size(); ++i) items[i] = std::move(keyed[i].second);
  return context->Keep(Value::MakeList(std::move(items)));
}

Value Sort(Context* context, const Value& value, const Arguments& arguments) {
  if (!context->Charge(value.extent().weight * kSortBytes)) return Value();
  const bool reverse = Has(arguments, 0) && arguments[0]->Truth();
  const bool folds = !(Has(arguments, 1) && arguments[1]->Truth());
  return Sorted(context, Items(context, value), folds, reverse, [&](const Value& item) {
    return Has(arguments, 2) ? GetItem(context, item, *arguments[2]) : item;
  });
}

// The items of a dict by their keys, or by their values.
Value DictSort(Context* context, const Value& value, const Arguments& arguments) {
  if (!value.is_dict()) return context->Fail("dictsort of " + std::string(value.TypeName()));
  if (!context->Charge(value.extent().weight * kSortBytes)) return Value();
  const bool folds = !(Has(arguments, 0) && arguments[0]->Truth());
  const bool by_value = Has(arguments, 1) && ToText(*arguments[1]) == "value";
  const bool reverse = Has(arguments, 2) && arguments[2]->Truth();
  const Value items = FindMethod("items")->call(context, value, {});
  if (context->failed()) return Value();
  return Sorted(context, items.list().items, folds, reverse,
                [&](const Value& item) { return item.list().items[by_value ? 1 : 0]; });
}

constexpr std::array<std::string_view, 3> kNone = {};

constexpr Filter kFilters[] = {
    {"abs", 0, kNone, Abs},
    {"capitalize", 0, kNone, CapitalizeFilter},
    {"count", 0, kNone, Length},
    {"d", 0, {"default_value", "boolean"}, Default},
    {"default", 0, {"default_value", "boolean"}, Default},
    {"dictsort", 0, {"case_sensitive", "by", "reverse"}, DictSort},
    {"first", 0, kNone, First},
    {"float", 0, kNone, Float},
    {"indent", 0, {"width", "first", "blank"}, Indent},
    {"int", 0, {"default"}, Int},
    {"items", 0, kNone, ItemsFilter},
    {"join", 0, {"d", "attribute"}, Join},
    {"last", 0, kNone, Last},
    {"length", 0, kNone, Length},
    {"list", 0, kNone, ListFilter},
    {"lower", 0, kNone, LowerFilter},
    {"map", 0, {"", "attribute", "default"}, Map, true},
    {"reject", 0, kNone, Reject, true},
    {"rejectattr", 1, kNone, RejectAttr, true},
    {"replace", 2, {"old", "new", "count"}, Replace},
    {"reverse", 0, kNone, Reverse},
    {"safe", 0, kNone, String},
    {"select", 0, kNone, Select, true},
    {"selectattr", 1, kNone, SelectAttr, true},
    {"sort", 0, {"reverse", "case_sensitive", "attribute"}, Sort},
    {"string", 0, kNone, String},
    {"title", 0, kNone, TitleFilter},
    {"tojson", 0, {"ensure_ascii", "indent"}, ToJsonFilter},
    {"trim", 0, {"chars"}, Trim},
    {"upper", 0, kNone, UpperFilter},
};

}  // namespace

const Filter* FindFilter(std::string_view name) {
  for (const Filter& filter : kFilters) {
    if (filter.name == name) return &filter;
  }
  return nullptr;
}

}  // namespace lorad::storage::jinja
