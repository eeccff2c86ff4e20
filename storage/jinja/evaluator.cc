#include "storage/jinja/evaluator.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "storage/errors.h"
#include "storage/jinja/builtins.h"
#include "storage/jinja/python_text.h"

namespace lorad::storage::jinja {
namespace {

constexpr int kMaxValueDepth = 50;
constexpr uint64_t kBytesPerStep = 16;

enum class Flow { kOn, kBreak, kContinue };

using Variables = std::vector<std::pair<std::string, Value>>;

struct LoopState {
  const std::vector<Value>* items;
  size_t at = 0;
  int depth = 1;
};

// Walks statements and expressions. The first error sticks; everything then returns at once.
class Evaluator : public Context {
 public:
  Evaluator(Variables variables, const Limits& limits) : limits_(limits) {
    scopes_.push_back(std::move(variables));
  }

  absl::StatusOr<std::string> Run(const Program& program) {
    std::string out;
    Execute(program.statements, &out);
    if (failed()) return status_;
    return out;
  }

  Value Fail(std::string_view what) override {
    Stop("TEMPLATE_FAILED", what);
    return Value();
  }

  bool Charge(uint64_t bytes) override {
    if (failed()) return false;
    steps_ += 1 + static_cast<int64_t>(std::min<uint64_t>(bytes / kBytesPerStep, INT64_MAX / 4));
    if (steps_ <= limits_.steps) return true;
    Stop("TEMPLATE_LIMIT", absl::StrCat("it takes more than ", limits_.steps, " steps"));
    return false;
  }

  bool failed() const override { return !status_.ok(); }
  uint64_t max_text_bytes() const override { return static_cast<uint64_t>(limits_.output_bytes); }

 private:
  void Stop(std::string_view reason, std::string_view what) {
    if (failed()) return;
    status_ = Refuse(reason, absl::StrCat("chat template, line ", line_, ": ", Absl(what)));
  }

  // ---- statements ----

  Flow Execute(const std::vector<Statement>& statements, std::string* out) {
    for (const Statement& statement : statements) {
      line_ = statement.line;
      if (!Charge(0)) return Flow::kOn;
      const Flow flow = Execute(statement, out);
      if (failed() || flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  Flow Execute(const Statement& statement, std::string* out) {
    switch (statement.kind) {
      case StatementKind::kText:
        Print(statement.text, out);
        break;
      case StatementKind::kOutput:
        Print(Text(Evaluate(*statement.expression)), out);
        break;
      case StatementKind::kIf:
        return ExecuteIf(statement, out);
      case StatementKind::kFor:
        ExecuteFor(statement, out);
        break;
      case StatementKind::kSet:
        ExecuteSet(statement);
        break;
      case StatementKind::kSetBlock: {
        // A block has a scope of its own.
        std::string text;
        scopes_.emplace_back();
        const Flow flow = Execute(statement.bodies[0], &text);
        scopes_.pop_back();
        if (flow != Flow::kOn) return flow;
        Assign(statement.targets[0], KeepText(std::move(text)));
        break;
      }
      case StatementKind::kBlock: {
        scopes_.emplace_back();
        const Flow flow = Execute(statement.bodies[0], out);
        scopes_.pop_back();
        return flow;
      }
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kOn;
  }

  void Print(std::string_view text, std::string* out) {
    if (!Charge(text.size())) return;
    if (out->size() + text.size() > max_text_bytes()) {
      return Stop("TEMPLATE_LIMIT",
                  absl::StrCat("it prints more than ", limits_.output_bytes, " bytes"));
    }
    *out += text;
  }

  Flow ExecuteIf(const Statement& statement, std::string* out) {
    size_t branch = 0;
    while (branch < statement.conditions.size() &&
           !Evaluate(*statement.conditions[branch]).Truth()) {
      ++branch;
    }
    if (failed() || branch == statement.bodies.size()) return Flow::kOn;
    return Execute(statement.bodies[branch], out);
  }

  void ExecuteFor(const Statement& statement, std::string* out) {
    std::vector<Value> items = Items(this, Evaluate(*statement.expression));
    if (!statement.conditions.empty()) {
      std::vector<Value> kept;
      for (Value& item : items) {
        scopes_.emplace_back();
        AssignAll(statement.targets, item);
        if (Evaluate(*statement.conditions[0]).Truth()) kept.push_back(std::move(item));
        scopes_.pop_back();
        if (failed()) return;
      }
      items = std::move(kept);
    }
    if (failed()) return;
    if (items.empty() && statement.bodies.size() > 1) {
      scopes_.emplace_back();
      Execute(statement.bodies[1], out);
      scopes_.pop_back();
      return;
    }
    loops_.push_back({&items, 0, static_cast<int>(loops_.size()) + 1});
    for (size_t i = 0; i < items.size() && !failed(); ++i) {
      loops_.back().at = i;
      scopes_.emplace_back();
      AssignAll(statement.targets, items[i]);
      const Flow flow = failed() ? Flow::kBreak : Execute(statement.bodies[0], out);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
    loops_.pop_back();
  }

  void ExecuteSet(const Statement& statement) {
    Value value = Evaluate(*statement.expression);
    if (failed()) return;
    if (statement.attribute.empty()) return AssignAll(statement.targets, value);
    const Value object = Lookup(statement.targets[0]);
    if (!object.is_namespace()) {
      Fail(absl::StrCat("an attribute can be set on a namespace only, not on ",
                        statement.targets[0]));
      return;
    }
    object.space()->attributes.Set(statement.attribute, std::move(value));
  }

  void Assign(const std::string& name, Value value) {
    for (auto& [known, old] : scopes_.back()) {
      if (known == name) {
        old = std::move(value);
        return;
      }
    }
    scopes_.back().emplace_back(name, std::move(value));
  }

  void AssignAll(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return Assign(names[0], value);
    const std::vector<Value> items = Items(this, value);
    if (!failed() && items.size() != names.size()) {
      Fail(absl::StrCat("cannot unpack ", items.size(), " values to ", names.size(), " names"));
    }
    for (size_t i = 0; i < names.size() && !failed(); ++i) Assign(names[i], items[i]);
  }

  Value Lookup(const std::string& name) {
    for (size_t i = scopes_.size(); i-- > 0;) {
      for (const auto& [known, value] : scopes_[i]) {
        if (known == name) return value;
      }
    }
    return Value::MakeUndefined(absl::StrCat("'", name, "' is undefined"));
  }

  // ---- expressions ----

  Value Evaluate(const Expression& e) {
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
        return Unary(e.operators[0], Evaluate(*e.parts[0]));
      case ExpressionKind::kBinary: {
        const Value left = Evaluate(*e.parts[0]);
        const Value right = Evaluate(*e.parts[1]);
        return failed() ? Value() : Binary(e.operators[0], left, right);
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

  Value CallBuiltin(const Expression& e) {
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
    if (object.is_undefined()) return FailUndefined(object);
    return e.method->call(this, object, arguments);
  }

  Value Literal(const Expression& e) {
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

  Value LoopAttribute(const Expression& e) {
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

  Value Call(const Expression& e) {
    std::vector<Value> arguments;
    for (const ExpressionPtr& part : e.parts) arguments.push_back(Evaluate(*part));
    if (failed()) return Value();
    const size_t plain = arguments.size() - e.keywords.size();
    if (e.name == "raise_exception") {
      if (arguments.size() != 1) return Fail("raise_exception wants one message");
      const std::string message = Text(arguments[0]);
      if (!failed()) {
        status_ = Refuse("TEMPLATE_REJECTED",
                         absl::StrCat("the chat template rejects the conversation: ", message));
      }
      return Value();
    }
    if (e.name == "range") {
      return e.keywords.empty() ? Range(arguments) : Fail("range takes no names");
    }
    if (e.name == "namespace" || e.name == "dict") {
      Dict dict;
      if (plain > 1 || (plain == 1 && !arguments[0].is_dict())) {
        return Fail(e.name + " wants at most one dict, then names");
      }
      if (plain == 1) dict = arguments[0].dict();
      for (size_t i = plain; i < arguments.size(); ++i) {
        dict.Set(e.keywords[i - plain], arguments[i]);
      }
      if (e.name == "dict") return Keep(Value::MakeDict(std::move(dict)));
      namespaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(dict)}));
      return Value::MakeNamespace(namespaces_.back().get());
    }
    return Fail(absl::StrCat("'", e.name, "' is undefined"));  // strftime_now
  }

  Value Range(const std::vector<Value>& arguments) {
    std::vector<int64_t> numbers;
    for (const Value& argument : arguments) {
      const std::optional<int64_t> number = argument.Integer();
      if (!number.has_value() || std::abs(*number) > (int64_t{1} << 40)) {
        return Fail("range wants whole numbers");
      }
      numbers.push_back(*number);
    }
    if (numbers.empty() || numbers.size() > 3) return Fail("range wants 1 to 3 numbers");
    const int64_t begin = numbers.size() > 1 ? numbers[0] : 0;
    const int64_t end = numbers.size() > 1 ? numbers[1] : numbers[0];
    const int64_t step = numbers.size() > 2 ? numbers[2] : 1;
    if (step == 0) return Fail("range's step is 0");
    std::vector<Value> items;
    for (int64_t at = begin; step > 0 ? at < end : at > end; at += step) {
      if (!Charge(kBytesPerStep)) return Value();
      items.push_back(Value::MakeInt(at));
    }
    return Keep(Value::MakeList(std::move(items)));
  }

  Value Slice(const Expression& e) {
    const Value object = Evaluate(*e.parts[0]);
    std::optional<int64_t> bounds[3];
    for (size_t i = 0; i < 3; ++i) {
      if (e.parts[i + 1] == nullptr) continue;
      const Value bound = Evaluate(*e.parts[i + 1]);
      if (failed()) return Value();
      if (bound.is_none()) continue;
      bounds[i] = bound.Integer();
      if (!bounds[i].has_value()) return Fail("a slice wants whole numbers");
    }
    if (failed()) return Value();
    if (object.is_undefined()) return FailUndefined(object);
    if (!object.is_text() && !object.is_list()) {
      return Fail(absl::StrCat(Absl(object.TypeName()), " cannot be sliced"));
    }
    const int64_t step = bounds[2].value_or(1);
    if (step == 0 || step == INT64_MIN) return Fail("a slice's step is 0");
    const std::vector<Value> items = Items(this, object);
    const auto length = static_cast<int64_t>(items.size());
    const auto place = [&](std::optional<int64_t> bound, int64_t standard) {
      if (!bound.has_value()) return standard;
      const int64_t from_front = *bound < 0 ? *bound + length : *bound;
      return std::clamp<int64_t>(from_front, step > 0 ? 0 : -1, step > 0 ? length : length - 1);
    };
    const int64_t end = place(bounds[1], step > 0 ? length : -1);
    std::vector<Value> kept;
    for (int64_t at = place(bounds[0], step > 0 ? 0 : length - 1);
         step > 0 ? at < end : at > end;) {
      kept.push_back(items[static_cast<size_t>(at)]);
      if (step > 0 ? at >= end - step : at <= end - step) break;  // no overflow
      at += step;
    }
    if (!object.is_text()) return Keep(Value::MakeList(std::move(kept), object.list().tuple));
    std::string text;
    for (const Value& item : kept) text += item.text();
    return KeepText(std::move(text));
  }

  Value Unary(Operator op, const Value& value) {
    if (failed()) return Value();
    if (value.is_float()) {
      return Value::MakeFloat(op == Operator::kMinus ? -value.floating() : value.floating());
    }
    const std::optional<int64_t> integer = value.Integer();
    if (!integer.has_value() || *integer == INT64_MIN) {
      return value.is_undefined() ? FailUndefined(value)
                                  : Fail(absl::StrCat("a sign before ", Absl(value.TypeName())));
    }
    return Value::MakeInt(op == Operator::kMinus ? -*integer : *integer);
  }

  Value Binary(Operator op, const Value& left, const Value& right) {
    if (op == Operator::kConcatenate) return KeepText(Text(left) + Text(right));
    if (left.is_undefined()) return FailUndefined(left);
    if (right.is_undefined()) return FailUndefined(right);
    if (left.is_number() && right.is_number()) return Arithmetic(op, left, right);
    if (op == Operator::kAdd && left.is_text() && right.is_text()) {
      if (!Charge(left.text().size() + right.text().size())) return Value();
      return KeepText(left.text() + right.text());
    }
    if (op == Operator::kAdd && left.is_list() && right.is_list() &&
        left.list().tuple == right.list().tuple) {
      std::vector<Value> items = Items(this, left);
      const std::vector<Value> more = Items(this, right);
      items.insert(items.end(), more.begin(), more.end());
      return Keep(Value::MakeList(std::move(items), left.list().tuple));
    }
    if (op == Operator::kMultiply && left.is_text() && right.Integer().has_value()) {
      return Repeat(left.text(), *right.Integer());
    }
    if (op == Operator::kMultiply && right.is_text() && left.Integer().has_value()) {
      return Repeat(right.text(), *left.Integer());
    }
    if (op == Operator::kMultiply && left.is_list() && right.Integer().has_value()) {
      return RepeatList(left, *right.Integer());
    }
    if (op == Operator::kMultiply && right.is_list() && left.Integer().has_value()) {
      return RepeatList(right, *left.Integer());
    }
    return Fail(absl::StrCat("an arithmetic operator between ", Absl(left.TypeName()), " and ",
                             Absl(right.TypeName())));
  }

  Value Repeat(const std::string& text, int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) {
      if (!Charge(text.size())) return Value();
      out += text;
      if (out.size() > max_text_bytes()) break;  // refused below
    }
    return KeepText(std::move(out));
  }

  Value RepeatList(const Value& list, int64_t count) {
    std::vector<Value> out;
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<Value> items = Items(this, list);
      if (failed()) return Value();
      out.insert(out.end(), items.begin(), items.end());
    }
    return Keep(Value::MakeList(std::move(out), list.list().tuple));
  }

  Value Arithmetic(Operator op, const Value& left, const Value& right) {
    const std::optional<int64_t> a = left.Integer();
    const std::optional<int64_t> b = right.Integer();
    if (op == Operator::kDivide || !a.has_value() || !b.has_value()) {
      return FloatArithmetic(op, left.Number(), right.Number());
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
        if (*b == 0) return Fail("division by zero");
        if (*b == -1) {
          overflow = op == Operator::kFloorDivide && __builtin_sub_overflow(0, *a, &out);
          break;
        }
        // Python rounds down; the remainder has the divisor's sign.
        const int64_t remainder = *a % *b;
        const bool adjust = remainder != 0 && (remainder < 0) != (*b < 0);
        out = op == Operator::kFloorDivide ? *a / *b - (adjust ? 1 : 0)
                                           : remainder + (adjust ? *b : 0);
      }
    }
    return overflow ? Fail("a number that does not fit in 64 bits") : Value::MakeInt(out);
  }

  Value FloatArithmetic(Operator op, double a, double b) {
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
    if (b == 0) return Fail("division by zero");
    if (op == Operator::kDivide) return Value::MakeFloat(a / b);
    if (op == Operator::kFloorDivide) return Value::MakeFloat(std::floor(a / b));
    const double remainder = std::fmod(a, b);
    return Value::MakeFloat(remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b
                                                                         : remainder);
  }

  Value Compare(const Expression& e) {
    Value left = Evaluate(*e.parts[0]);
    for (size_t i = 0; i < e.operators.size(); ++i) {
      Value right = Evaluate(*e.parts[i + 1]);
      if (failed()) return Value();
      if (!CompareTwo(e.operators[i], left, right)) return Value::MakeBool(false);
      left = std::move(right);
    }
    return Value::MakeBool(!failed());
  }

  bool CompareTwo(Operator op, const Value& left, const Value& right) {
    if (!Charge(std::min(left.extent().weight, right.extent().weight))) return false;
    switch (op) {
      case Operator::kEqual:
        return Equal(left, right);
      case Operator::kNotEqual:
        return !Equal(left, right);
      case Operator::kIn:
        return Contains(this, right, left);
      case Operator::kNotIn:
        return !Contains(this, right, left);
      default:
        break;
    }
    if (left.is_undefined() || right.is_undefined()) {
      FailUndefined(left.is_undefined() ? left : right);
      return false;
    }
    const bool swapped = op == Operator::kGreater || op == Operator::kLessEqual;
    const std::optional<bool> less = swapped ? Less(right, left) : Less(left, right);
    if (!less.has_value()) {
      Fail(absl::StrCat("cannot order ", Absl(left.TypeName()), " and ", Absl(right.TypeName())));
      return false;
    }
    // a <= b is not (b < a); nan aside, which no template meets.
    return op == Operator::kLess || op == Operator::kGreater ? *less : !*less;
  }

  Value FailUndefined(const Value& value) {
    const auto& what = value.undefined().what;
    return Fail(what == nullptr ? "a value is undefined" : *what);
  }

  const Limits limits_;
  int64_t steps_ = 0;
  int line_ = 1;
  absl::Status status_;
  std::vector<Variables> scopes_;
  std::vector<LoopState> loops_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

}  // namespace

Value Context::Keep(Value value) {
  const Extent extent = value.extent();
  if (extent.depth > kMaxValueDepth) return Fail("lists and dicts are nested too deep");
  if (extent.weight > max_text_bytes()) {
    Charge(UINT64_MAX);
    return Value();
  }
  const uint64_t items = value.is_list()   ? value.list().items.size()
                         : value.is_dict() ? value.dict().items.size()
                                           : 0;
  return Charge(items * kBytesPerStep) ? std::move(value) : Value();
}

Value Context::KeepText(std::string text) {
  if (text.size() > max_text_bytes()) Charge(UINT64_MAX);
  if (!Charge(text.size())) return Value();
  return Value::MakeText(std::move(text));
}

std::string Context::Text(const Value& value) {
  if (!Charge(value.extent().weight)) return "";
  return ToText(value);
}

absl::StatusOr<std::string> Run(const Program& program,
                                std::vector<std::pair<std::string, Value>> variables,
                                const Limits& limits) {
  return Evaluator(std::move(variables), limits).Run(program);
}

}  // namespace lorad::storage::jinja
