#include "storage/jinja/evaluator.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/jinja/builtins.h"
#include "storage/jinja/operators.h"
#include "storage/jinja/python_text.h"

namespace lorad::storage::jinja {
namespace {

constexpr int kMaxValueDepth = 50;

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
    if (object.is_undefined()) return FailUndefined(this, object);
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
      return e.keywords.empty() ? MakeRange(this, arguments) : Fail("range takes no names");
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

  Value Slice(const Expression& e) {
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

  Value Compare(const Expression& e) {
    Value left = Evaluate(*e.parts[0]);
    for (size_t i = 0; i < e.operators.size(); ++i) {
      Value right = Evaluate(*e.parts[i + 1]);
      if (failed()) return Value();
      if (!ApplyComparison(this, e.operators[i], left, right)) return Value::MakeBool(false);
      left = std::move(right);
    }
    return Value::MakeBool(!failed());
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
