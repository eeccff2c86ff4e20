#pragma once

// A parsed template: statements and expressions.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/jinja/value.h"

namespace lorad::storage::jinja {

struct Filter;
struct Method;
struct Test;

enum class ExpressionKind {
  kConstant,
  kName,
  kLoop,         // loop.NAME
  kAttribute,    // [0].NAME
  kItem,         // [0][[1]]
  kSlice,        // [0][[1]:[2]:[3]], absent parts null
  kCall,         // NAME([..]); names of keywords in `keywords`
  kMethod,       // [0].NAME([1..])
  kFilter,       // [0] | NAME([1..])
  kTest,         // [0] is NAME([1..])
  kUnary,        // OP [0]
  kBinary,       // [0] OP [1]
  kCompare,      // [0] OP [1] OP [2] ..
  kAnd,          // [0] and [1]
  kOr,           // [0] or [1]
  kNot,          // not [0]
  kConditional,  // [1] if [0] else [2] (absent: null)
  kList,
  kTuple,
  kDict,  // [0]: [1], [2]: [3], ..
};

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kConcatenate,
  kPlus,
  kMinus,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 1;
  int depth = 1;  // of expressions in expressions, this one included
  std::string name;
  Value constant;
  std::vector<std::unique_ptr<Expression>> parts;
  std::vector<Operator> operators;
  std::vector<std::string> keywords;  // of the last so many parts of a call
  // The meaning of `name`.
  const Filter* filter = nullptr;
  const Method* method = nullptr;
  const Test* test = nullptr;
};

using ExpressionPtr = std::unique_ptr<Expression>;

enum class StatementKind {
  kText,
  kOutput,      // {{ expression }}
  kIf,          // conditions[i] guards bodies[i]; one more body is the else
  kFor,         // targets in expression if conditions[0]: bodies[0], else bodies[1]
  kSet,         // targets = expression, or namespace targets[0].attribute = expression
  kSetBlock,    // targets[0] = what bodies[0] prints
  kGeneration,  // bodies[0] as it is, and marked ({% generation %})
  kMacro,  // targets[0](targets[1..]), whose defaults are `conditions` (absent: null): bodies[0]
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 1;
  std::string text;
  std::vector<std::string> targets;
  std::string attribute;
  ExpressionPtr expression;
  std::vector<ExpressionPtr> conditions;
  std::vector<std::vector<Statement>> bodies;
};

struct Program {
  std::vector<Statement> statements;
  bool marks_generation = false;  // a {% generation %} is in it
};

absl::StatusOr<Program> ParseProgram(std::string_view source);

}  // namespace lorad::storage::jinja
