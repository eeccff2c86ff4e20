// The expressions of a template, evaluated.

#include <cassert>
#include <optional>

#include "absl/strings/str_cat.h"
#include "storage/jinja/operators.h"
#include "storage/jinja/state.h"

namespace lorad::storage::jinja {

Value Evaluator::Evaluate(const Expression& e) {
  const Level level(this);
  if (!Charge(0)) return Value();
  if (e.line > line_) line_ = e.line;
  switch (e.kind) {
    case ExpressionKind::kConstant:
      return e.constant;
    case ExpressionKind::kName:
      return Lookup(e.name);
    case ExpressionKind::kLoop:
      return LoopAttribute(e);
    case ExpressionKind::kAttribute:
      return GetAttribute(this, Evaluate(*e.parts[0]), e.name);
    case ExpressionKind::kItem: {
      const Value object = Evaluate(*e.parts[0]);
      return GetItem(this, object, Evaluate(*e.parts[1]));
    }
    case ExpressionKind::kSlice:
      return Slice(e);
    case ExpressionKind::kCall:
      return Call(e);
    case ExpressionKind::kUnary:
      return ApplyUnary(this, e.operators[0], Evaluate(*e.parts[0]));
    case ExpressionKind::kBinary: {
      const Value left = Evaluate(*e.parts[0]);
      const Value right = Evaluate(*e.parts[1]);
      return failed() ? Value() : ApplyBinary(this, e.operators[0], left, right);
    }
    case ExpressionKind::kCompare:
      return Compare(e);
    case ExpressionKind::kAnd: {
      Value left = Evaluate(*e.parts[0]);
      return left.Truth() ? Evaluate(*e.parts[1]) : left;
    }
    case ExpressionKind::kOr: {
      Value left = Evaluate(*e.parts[0]);
      return left.Truth() ? left : Evaluate(*e.parts[1]);
    }
    case ExpressionKind::kNot:
      return Value::MakeBool(!Evaluate(*e.parts[0]).Truth());
    case ExpressionKind::kConditional:
      if (Evaluate(*e.parts[0]).Truth()) return Evaluate(*e.parts[1]);
      if (e.parts[2] != nullptr) return Evaluate(*e.parts[2]);
      return Value::MakeUndefined("an inline if without else is undefined");
    case ExpressionKind::kMethod:
    case ExpressionKind::kFilter:
    case ExpressionKind::kTest:
      return CallBuiltin(e);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
    case ExpressionKind::kDict:
      return Literal(e);
  }
  return Value();
}

Value Evaluator::CallBuiltin(const Expression& e) {
  const Value object = Evaluate(*e.parts[0]);
  Arguments arguments;
  for (size_t i = 1; i < e.parts.size(); ++i) {
    arguments.push_back(e.parts[i] == nullptr ? std::nullopt
                                              : std::optional(Evaluate(*e.parts[i])));
  }
  if (failed()) return Value();
  if (e.kind == ExpressionKind::kFilter) return e.filter->call(this, object, arguments);
  if (e.kind == ExpressionKind::kTest) {
    return Value::MakeBool(e.test->call(this, object, arguments));
  }
  if (object.is_undefined()) return FailUndefined(this, object);
  return e.method->call(this, object, arguments);
}

Value Evaluator::Literal(const Expression& e) {
  if (e.kind != ExpressionKind::kDict) {
    std::vector<Value> items;
    for (const ExpressionPtr& part : e.parts) items.push_back(Evaluate(*part));
    return Keep(Value::MakeList(std::move(items), e.kind == ExpressionKind::kTuple));
  }
  Dict dict;
  for (size_t i = 0; i < e.parts.size() && !failed(); i += 2) {
    const Value key = Evaluate(*e.parts[i]);
    if (!key.is_text()) return Fail("a dict's key must be a string");
    dict.Set(key.text(), Evaluate(*e.parts[i + 1]));
  }
  return Keep(Value::MakeDict(std::move(dict)));
}

Value Evaluator::LoopAttribute(const Expression& e) {
  if (loops_.empty()) return Fail("'loop' is undefined");
  const LoopState& loop = loops_.back();
  const auto at = static_cast<int64_t>(loop.at);
  const auto length = static_cast<int64_t>(loop.items->size());
  const auto neighbour = [&](int64_t place, std::string_view what) {
    const bool there = place >= 0 && place < length;
    return there ? (*loop.items)[static_cast<size_t>(place)]
                 : Value::MakeUndefined("there is no " + std::string(what) + " item");
  };
  if (e.name == "index") return Value::MakeInt(at + 1);
  if (e.name == "index0") return Value::MakeInt(at);
  if (e.name == "revindex") return Value::MakeInt(length - at);
  if (e.name == "revindex0") return Value::MakeInt(length - at - 1);
  if (e.name == "first") return Value::MakeBool(at == 0);
  if (e.name == "last") return Value::MakeBool(at + 1 == length);
  if (e.name == "length") return Value::MakeInt(length);
  if (e.name == "previtem") return neighbour(at - 1, "previous");
  if (e.name == "nextitem") return neighbour(at + 1, "next");
  // Only `recursive` loops, which are not supported, go deeper.
  if (e.name == "depth") return Value::MakeInt(1);
  if (e.name == "depth0") return Value::MakeInt(0);
  assert(e.name == "cycle");
  return Evaluate(*e.parts[loop.at % e.parts.size()]);
}

Value Evaluator::Slice(const Expression& e) {
  const Value object = Evaluate(*e.parts[0]);
  SliceBounds bounds;
  for (size_t i = 0; i < 3; ++i) {
    if (e.parts[i + 1] == nullptr) continue;
    const Value bound = Evaluate(*e.parts[i + 1]);
    if (failed()) return Value();
    if (bound.is_none()) continue;
    bounds[i] = bound.Integer();
    if (!bounds[i].has_value()) return Fail("a slice wants whole numbers");
  }
  if (failed()) return Value();
  return SliceOf(this, object, bounds);
}

Value Evaluator::Compare(const Expression& e) {
  Value left = Evaluate(*e.parts[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = Evaluate(*e.parts[i + 1]);
    if (failed()) return Value();
    if (!ApplyComparison(this, e.operators[i], left, right)) return Value::MakeBool(false);
    left = std::move(right);
  }
  return Value::MakeBool(!failed());
}

}  // namespace lorad::storage::jinja
