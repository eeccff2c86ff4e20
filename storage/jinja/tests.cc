// The tests that may stand behind `is`.

#include <cmath>

#include "storage/jinja/builtins.h"
#include "storage/jinja/python_text.h"

namespace lorad::storage::jinja {
namespace {

// value % divisor == remainder, which is 0 or 1; Python's remainder has the divisor's sign.
bool Divisible(Context* context, const Value& value, const Value& divisor, int64_t remainder) {
  if (!value.is_number() || !divisor.is_number() || divisor.Number() == 0) {
    context->Fail("a test of divisibility wants numbers");
    return false;
  }
  const std::optional<int64_t> a = value.Integer();
  const std::optional<int64_t> b = divisor.Integer();
  if (a.has_value() && b.has_value()) {
    return *b == -1 ? remainder == 0 : (*a % *b != 0) == (remainder != 0);
  }
  const double rest = std::fmod(value.Number(), divisor.Number());
  return (rest < 0 ? rest + divisor.Number() : rest) == static_cast<double>(remainder);
}

bool Ordered(Context* context, const Value& a, const Value& b, bool swap, bool negate) {
  const std::optional<bool> less = swap ? Less(b, a) : Less(a, b);
  if (!less.has_value()) {
    context->Fail("cannot order " + std::string(a.TypeName()) + " and " +
                  std::string(b.TypeName()));
    return false;
  }
  return *less != negate;
}

bool IsLowerText(Context* context, const Value& value, const Arguments&) {
  const std::string text = context->Text(value);
  return Lower(text) == text && Upper(text) != text;
}

bool IsUpperText(Context* context, const Value& value, const Arguments&) {
  const std::string text = context->Text(value);
  return Upper(text) == text && Lower(text) != text;
}

using C = Context*;
using V = const Value&;
using A = const Arguments&;

bool IsEqual(C, V value, A arguments) { return Equal(value, *arguments[0]); }
bool IsNotEqual(C, V value, A arguments) { return !Equal(value, *arguments[0]); }
bool IsLess(C c, V value, A a) { return Ordered(c, value, *a[0], false, false); }
bool IsAtMost(C c, V value, A a) { return Ordered(c, value, *a[0], true, true); }
bool IsGreater(C c, V value, A a) { return Ordered(c, value, *a[0], true, false); }
bool IsAtLeast(C c, V value, A a) { return Ordered(c, value, *a[0], false, true); }
bool IsSequence(C, V v, A) { return v.is_text() || v.is_list() || v.is_dict() || v.is_undefined(); }

constexpr Test kTests[] = {
    {"!=", 1, IsNotEqual},
    {"<", 1, IsLess},
    {"<=", 1, IsAtMost},
    {"==", 1, IsEqual},
    {">", 1, IsGreater},
    {">=", 1, IsAtLeast},
    {"boolean", 0, [](C, V v, A) { return v.is_bool(); }},
    {"defined", 0, [](C, V v, A) { return !v.is_undefined(); }},
    {"divisibleby", 1, [](C c, V v, A a) { return Divisible(c, v, *a[0], 0); }},
    {"eq", 1, IsEqual},
    {"equalto", 1, IsEqual},
    {"even", 0, [](C c, V v, A) { return Divisible(c, v, Value::MakeInt(2), 0); }},
    {"false", 0, [](C, V v, A) { return v.is_bool() && !v.boolean(); }},
    {"float", 0, [](C, V v, A) { return v.is_float(); }},
    {"ge", 1, IsAtLeast},
    {"greaterthan", 1, IsGreater},
    {"gt", 1, IsGreater},
    {"in", 1, [](C c, V v, A a) { return Contains(c, *a[0], v); }},
    {"integer", 0, [](C, V v, A) { return v.is_int(); }},
    {"iterable", 0, IsSequence},
    {"le", 1, IsAtMost},
    {"lessthan", 1, IsLess},
    {"lower", 0, IsLowerText},
    {"lt", 1, IsLess},
    {"mapping", 0, [](C, V v, A) { return v.is_dict(); }},
    {"ne", 1, IsNotEqual},
    {"none", 0, [](C, V v, A) { return v.is_none(); }},
    {"number", 0, [](C, V v, A) { return v.is_number(); }},
    {"odd", 0, [](C c, V v, A) { return Divisible(c, v, Value::MakeInt(2), 1); }},
    {"sequence", 0, IsSequence},
    {"string", 0, [](C, V v, A) { return v.is_text(); }},
    {"true", 0, [](C, V v, A) { return v.is_bool() && v.boolean(); }},
    {"undefined", 0, [](C, V v, A) { return v.is_undefined(); }},
    {"upper", 0, IsUpperText},
};

}  // namespace

const Test* FindTest(std::string_view name) {
  for (const Test& test : kTests) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

}  // namespace lorad::storage::jinja
