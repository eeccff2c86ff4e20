#pragma once

// A template while it runs: its parts are statements.cc, expressions.cc and calls.cc.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/jinja/builtins.h"
#include "storage/jinja/evaluator.h"
#include "storage/jinja/program.h"

namespace lorad::storage::jinja {

// Walks statements and expressions. The first error sticks; everything then returns at once.
class Evaluator : public Context {
 public:
  Evaluator(Variables variables, const Limits& limits);

  absl::StatusOr<Printed> Run(const Program& program);

  Value Fail(std::string_view what) override;
  bool Charge(uint64_t bytes) override;
  bool failed() const override { return !status_.ok(); }
  uint64_t max_text_bytes() const override { return static_cast<uint64_t>(limits_.output_bytes); }

 private:
  enum class Flow { kOn, kBreak, kContinue };
  struct LoopState {
    const std::vector<Value>* items;
    size_t at = 0;
  };
  // Counts how deep calls of this class stand in each other.
  class Level {
   public:
    explicit Level(Evaluator* evaluator);
    ~Level() { --evaluator_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Evaluator& evaluator_;
  };

  void Stop(std::string_view reason, std::string_view what);

  // ---- statements ----
  Flow Execute(const std::vector<Statement>& statements, std::string* out);
  Flow Execute(const Statement& statement, std::string* out);
  void Print(std::string_view text, std::string* out);
  Flow ExecuteIf(const Statement& statement, std::string* out);
  void ExecuteFor(const Statement& statement, std::string* out);
  void ExecuteSet(const Statement& statement);
  Flow ExecuteSetBlock(const Statement& statement);
  Flow ExecuteGeneration(const Statement& statement, std::string* out);
  void Assign(const std::string& name, Value value);
  void AssignAll(const std::vector<std::string>& names, const Value& value);
  Value Lookup(const std::string& name);

  // ---- expressions ----
  Value Evaluate(const Expression& e);
  Value CallBuiltin(const Expression& e);
  Value Literal(const Expression& e);
  Value LoopAttribute(const Expression& e);
  Value Slice(const Expression& e);
  Value Compare(const Expression& e);

  // ---- calls ----
  Value Call(const Expression& e);
  Value MakeNamespace(const Expression& e, const std::vector<Value>& arguments);
  Value CallMacro(const Expression& e, const Statement& macro, std::vector<Value> arguments);
  // The parameters of a macro with what a call gives them, in a scope of their own.
  Variables BindArguments(const Expression& e, const Statement& macro,
                          std::vector<Value> arguments);

  const Limits limits_;
  int64_t steps_ = 0;
  int level_ = 0;
  int line_ = 1;
  absl::Status status_;
  Printed printed_;
  std::vector<Variables> scopes_;  // [0]: the template's own
  std::vector<LoopState> loops_;
  std::map<std::string, const Statement*> macros_;  // those whose definition was reached
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

}  // namespace lorad::storage::jinja
