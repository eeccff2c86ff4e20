#include "storage/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage::jinja {
namespace {

Value Repeat(Context* context, const std::string& text, int64_t count) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) {
    if (!context->Charge(text.size())) return Value();
    out += text;
    if (out.size() > context->max_text_bytes()) break;  // refused below
  }
  return context->KeepText(std::move(out));
}

Value RepeatList(Context* context, const Value& list, int64_t count) {
  std::vector<Value> out;
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<Value> items = Items(context, list);
    if (context->failed()) return Value();
    out.insert(out.end(), items.begin(), items.end());
  }
  return context->Keep(Value::MakeList(std::move(out), list.list().tuple));
}

Value FloatArithmetic(Context* context, Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::MakeFloat(a + b);
    case Operator::kSubtract:
      return Value::MakeFloat(a - b);
    case Operator::kMultiply:
      return Value::MakeFloat(a * b);
    default:
      break;
  }
  if (b == 0) return context->Fail("division by zero");
  if (op == Operator::kDivide) return Value::MakeFloat(a / b);
  if (op == Operator::kFloorDivide) return Value::MakeFloat(std::floor(a / b));
  const double remainder = std::fmod(a, b);
  return Value::MakeFloat(remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder);
}

Value Arithmetic(Context* context, Operator op, const Value& left, const Value& right) {
  const std::optional<int64_t> a = left.Integer();
  const std::optional<int64_t> b = right.Integer();
  if (op == Operator::kDivide || !a.has_value() || !b.has_value()) {
    return FloatArithmetic(context, op, left.Number(), right.Number());
  }
  int64_t out = 0;
  bool overflow = false;
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(*a, *b, &out);
      break;
    case Operator::kSubtract:
      overflow = __builtin_sub_overflow(*a, *b, &out);
      break;
    case Operator::kMultiply:
      overflow = __builtin_mul_overflow(*a, *b, &out);
      break;
    default: {
      if (*b == 0) return context->Fail("division by zero");
      if (*b == -1) {
        overflow = op == Operator::kFloorDivide && __builtin_sub_overflow(0, *a, &out);
        break;
      }
      // Python rounds down; the remainder has the divisor's sign.
      const int64_t remainder = *a % *b;
      const bool adjust = remainder != 0 && (remainder < 0) != (*b < 0);
      out =
          op == Operator::kFloorDivide ? *a / *b - (adjust ? 1 : 0) : remainder + (adjust ? *b : 0);
    }
  }
  return overflow ? context->Fail("a number that does not fit in 64 bits") : Value::MakeInt(out);
}

}  // namespace

Value FailUndefined(Context* context, const Value& value) {
  const auto& what = value.undefined().what;
  return context->Fail(what == nullptr ? "a value is undefined" : *what);
}

Value ApplyUnary(Context* context, Operator op, const Value& value) {
  if (context->failed()) return Value();
  if (value.is_float()) {
    return Value::MakeFloat(op == Operator::kMinus ? -value.floating() : value.floating());
  }
  const std::optional<int64_t> integer = value.Integer();
  if (!integer.has_value() || *integer == INT64_MIN) {
    return value.is_undefined()
               ? FailUndefined(context, value)
               : context->Fail(absl::StrCat("a sign before ", Absl(value.TypeName())));
  }
  return Value::MakeInt(op == Operator::kMinus ? -*integer : *integer);
}

Value ApplyBinary(Context* context, Operator op, const Value& left, const Value& right) {
  if (op == Operator::kConcatenate)
    return context->KeepText(context->Text(left) + context->Text(right));
  if (left.is_undefined()) return FailUndefined(context, left);
  if (right.is_undefined()) return FailUndefined(context, right);
  if (left.is_number() && right.is_number()) return Arithmetic(context, op, left, right);
  if (op == Operator::kAdd && left.is_text() && right.is_text()) {
    if (!context->Charge(left.text().size() + right.text().size())) return Value();
    return context->KeepText(left.text() + right.text());
  }
  if (op == Operator::kAdd && left.is_list() && right.is_list() &&
      left.list().tuple == right.list().tuple) {
    std::vector<Value> items = Items(context, left);
    const std::vector<Value> more = Items(context, right);
    items.insert(items.end(), more.begin(), more.end());
    return context->Keep(Value::MakeList(std::move(items), left.list().tuple));
  }
  if (op == Operator::kMultiply && left.is_text() && right.Integer().has_value()) {
    return Repeat(context, left.text(), *right.Integer());
  }
  if (op == Operator::kMultiply && right.is_text() && left.Integer().has_value()) {
    return Repeat(context, right.text(), *left.Integer());
  }
  if (op == Operator::kMultiply && left.is_list() && right.Integer().has_value()) {
    return RepeatList(context, left, *right.Integer());
  }
  if (op == Operator::kMultiply && right.is_list() && left.Integer().has_value()) {
    return RepeatList(context, right, *left.Integer());
  }
  return context->Fail(absl::StrCat("an arithmetic operator between ", Absl(left.TypeName()),
                                    " and ", Absl(right.TypeName())));
}

bool ApplyComparison(Context* context, Operator op, const Value& left, const Value& right) {
  if (!context->Charge(std::min(left.extent().weight, right.extent().weight))) return false;
  switch (op) {
    case Operator::kEqual:
      return Equal(left, right);
    case Operator::kNotEqual:
      return !Equal(left, right);
    case Operator::kIn:
      return Contains(context, right, left);
    case Operator::kNotIn:
      return !Contains(context, right, left);
    default:
      break;
  }
  if (left.is_undefined() || right.is_undefined()) {
    FailUndefined(context, left.is_undefined() ? left : right);
    return false;
  }
  const bool swapped = op == Operator::kGreater || op == Operator::kLessEqual;
  const std::optional<bool> less = swapped ? Less(right, left) : Less(left, right);
  if (!less.has_value()) {
    context->Fail(
        absl::StrCat("cannot order ", Absl(left.TypeName()), " and ", Absl(right.TypeName())));
    return false;
  }
  // a <= b is not (b < a); nan aside, which no template meets.
  return op == Operator::kLess || op == Operator::kGreater ? *less : !*less;
}

Value SliceOf(Context* context, const Value& object, const SliceBounds& bounds) {
  if (object.is_undefined()) return FailUndefined(context, object);
  if (!object.is_text() && !object.is_list()) {
    return context->Fail(absl::StrCat(Absl(object.TypeName()), " cannot be sliced"));
  }
  const int64_t step = bounds[2].value_or(1);
  if (step == 0 || step == INT64_MIN) return context->Fail("a slice's step is 0");
  const std::vector<Value> items = Items(context, object);
  const auto length = static_cast<int64_t>(items.size());
  const auto place = [&](std::optional<int64_t> bound, int64_t standard) {
    if (!bound.has_value()) return standard;
    const int64_t from_front = *bound < 0 ? *bound + length : *bound;
    return std::clamp<int64_t>(from_front, step > 0 ? 0 : -1, step > 0 ? length : length - 1);
  };
  const int64_t end = place(bounds[1], step > 0 ? length : -1);
  std::vector<Value> kept;
  for (int64_t at = place(bounds[0], step > 0 ? 0 : length - 1); step > 0 ? at < end : at > end;) {
    kept.push_back(items[static_cast<size_t>(at)]);
    if (step > 0 ? at >= end - step : at <= end - step) break;  // no overflow
    at += step;
  }
  if (!object.is_text())
    return context->Keep(Value::MakeList(std::move(kept), object.list().tuple));
  std::string text;
  for (const Value& item : kept) text += item.text();
  return context->KeepText(std::move(text));
}

Value MakeRange(Context* context, const std::vector<Value>& arguments) {
  std::vector<int64_t> numbers;
  for (const Value& argument : arguments) {
    const std::optional<int64_t> number = argument.Integer();
    if (!number.has_value() || std::abs(*number) > (int64_t{1} << 40)) {
      return context->Fail("range wants whole numbers");
    }
    numbers.push_back(*number);
  }
  if (numbers.empty() || numbers.size() > 3) return context->Fail("range wants 1 to 3 numbers");
  const int64_t begin = numbers.size() > 1 ? numbers[0] : 0;
  const int64_t end = numbers.size() > 1 ? numbers[1] : numbers[0];
  const int64_t step = numbers.size() > 2 ? numbers[2] : 1;
  if (step == 0) return context->Fail("range's step is 0");
  std::vector<Value> items;
  for (int64_t at = begin; step > 0 ? at < end : at > end; at += step) {
    if (!context->Charge(kBytesPerStep)) return Value();
    items.push_back(Value::MakeInt(at));
  }
  return context->Keep(Value::MakeList(std::move(items)));
}

}  // namespace lorad::storage::jinja
