// The statements of a template, executed.

#include "absl/strings/str_cat.h"
#include "storage/jinja/state.h"

namespace lorad::storage::jinja {

Evaluator::Flow Evaluator::Execute(const std::vector<Statement>& statements, std::string* out) {
  for (const Statement& statement : statements) {
    line_ = statement.line;
    if (!Charge(0)) return Flow::kOn;
    const Flow flow = Execute(statement, out);
    if (failed() || flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Evaluator::Flow Evaluator::Execute(const Statement& statement, std::string* out) {
  const Level level(this);
  if (failed()) return Flow::kOn;
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
    case StatementKind::kSetBlock:
      return ExecuteSetBlock(statement);
    case StatementKind::kGeneration:
      return ExecuteGeneration(statement, out);
    case StatementKind::kMacro:
      macros_[statement.targets[0]] = &statement;
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

void Evaluator::Print(std::string_view text, std::string* out) {
  if (!Charge(text.size())) return;
  if (out->size() + text.size() > max_text_bytes()) {
    return Stop("TEMPLATE_LIMIT",
                absl::StrCat("it prints more than ", limits_.output_bytes, " bytes"));
  }
  *out += text;
}

Evaluator::Flow Evaluator::ExecuteIf(const Statement& statement, std::string* out) {
  size_t branch = 0;
  while (branch < statement.conditions.size() && !Evaluate(*statement.conditions[branch]).Truth()) {
    ++branch;
  }
  if (failed() || branch == statement.bodies.size()) return Flow::kOn;
  return Execute(statement.bodies[branch], out);
}

void Evaluator::ExecuteFor(const Statement& statement, std::string* out) {
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
  loops_.push_back({&items, 0});
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

void Evaluator::ExecuteSet(const Statement& statement) {
  Value value = Evaluate(*statement.expression);
  if (failed()) return;
  if (statement.attribute.empty()) return AssignAll(statement.targets, value);
  const Value object = Lookup(statement.targets[0]);
  if (!object.is_namespace()) {
    Fail(
        absl::StrCat("an attribute can be set on a namespace only, not on ", statement.targets[0]));
    return;
  }
  object.space()->attributes.Set(statement.attribute, std::move(value));
}

// A block has a scope of its own.
Evaluator::Flow Evaluator::ExecuteSetBlock(const Statement& statement) {
  std::string text;
  scopes_.emplace_back();
  const Flow flow = Execute(statement.bodies[0], &text);
  scopes_.pop_back();
  if (flow == Flow::kOn) Assign(statement.targets[0], KeepText(std::move(text)));
  return flow;
}

Evaluator::Flow Evaluator::ExecuteGeneration(const Statement& statement, std::string* out) {
  std::string text;
  scopes_.emplace_back();
  const Flow flow = Execute(statement.bodies[0], &text);
  scopes_.pop_back();
  const size_t begin = printed_.text.size();
  printed_.generated.emplace_back(begin, begin + text.size());
  Print(text, out);
  return flow;
}

void Evaluator::Assign(const std::string& name, Value value) {
  for (auto& [known, old] : scopes_.back()) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  scopes_.back().emplace_back(name, std::move(value));
}

void Evaluator::AssignAll(const std::vector<std::string>& names, const Value& value) {
  if (names.size() == 1) return Assign(names[0], value);
  const std::vector<Value> items = Items(this, value);
  if (!failed() && items.size() != names.size()) {
    Fail(absl::StrCat("cannot unpack ", items.size(), " values to ", names.size(), " names"));
  }
  for (size_t i = 0; i < names.size() && !failed(); ++i) Assign(names[i], items[i]);
}

Value Evaluator::Lookup(const std::string& name) {
  for (size_t i = scopes_.size(); i-- > 0;) {
    for (const auto& [known, value] : scopes_[i]) {
      if (known == name) return value;
    }
  }
  // Known, so that a template may ask whether it is.
  if (IsFunction(name) || macros_.contains(name)) return Value::MakeText("<function " + name + ">");
  return Value::MakeUndefined(absl::StrCat("'", name, "' is undefined"));
}

}  // namespace lorad::storage::jinja
