#include "storage/jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage::jinja {
namespace {

constexpr int kMaxDepth = 250;  // of operators on operators

constexpr std::array<std::pair<std::string_view, Operator>, 6> kComparisons = {
    {{"==", Operator::kEqual},
     {"!=", Operator::kNotEqual},
     {"<", Operator::kLess},
     {"<=", Operator::kLessEqual},
     {">", Operator::kGreater},
     {">=", Operator::kGreaterEqual}}};

}  // namespace

ExpressionPtr ExpressionParser::Make(ExpressionKind kind, int line,
                                     std::vector<ExpressionPtr> parts) {
  auto out = std::make_unique<Expression>();
  out->kind = kind;
  out->line = line;
  out->parts = std::move(parts);
  for (const ExpressionPtr& part : out->parts) {
    if (part != nullptr) out->depth = std::max(out->depth, part->depth + 1);
  }
  if (out->depth > kMaxDepth) Invalid("an expression is nested too deep");
  return out;
}

ExpressionPtr ExpressionParser::Constant(Value value) {
  ExpressionPtr out = Make(ExpressionKind::kConstant, line());
  out->constant = std::move(value);
  return out;
}

// a, b, c is a tuple.
ExpressionPtr ExpressionParser::TupleOrExpression(bool conditional) {
  const int begin = line();
  ExpressionPtr first = ParseExpression(conditional);
  if (!IsOperator(",")) return first;
  std::vector<ExpressionPtr> parts = Gather(std::move(first));
  while (ok() && TakeOperator(",")) {
    if (Is(TokenKind::kBlockEnd) || Is(TokenKind::kVariableEnd) || IsOperator(")")) break;
    parts.push_back(ParseExpression(conditional));
  }
  return Make(ExpressionKind::kTuple, begin, std::move(parts));
}

// `depth_` counts the rule's own recursion, so that no template can exhaust the stack.
ExpressionPtr ExpressionParser::ParseExpression(bool conditional) {
  if (++depth_ > kMaxNesting) Invalid("brackets are nested too deep");
  ExpressionPtr out = ok() ? Or() : Constant(Value());
  while (conditional && ok() && IsName("if")) {
    const int begin = line();
    Advance();
    ExpressionPtr condition = Or();
    ExpressionPtr otherwise;
    if (TakeName("else")) otherwise = ParseExpression(true);
    out = Make(ExpressionKind::kConditional, begin,
               Gather(std::move(condition), std::move(out), std::move(otherwise)));
  }
  --depth_;
  return out;
}

ExpressionPtr ExpressionParser::Or() {
  ExpressionPtr out = And();
  while (ok() && IsName("or")) {
    const int begin = line();
    Advance();
    out = Make(ExpressionKind::kOr, begin, Gather(std::move(out), And()));
  }
  return out;
}

ExpressionPtr ExpressionParser::And() {
  ExpressionPtr out = Not();
  while (ok() && IsName("and")) {
    const int begin = line();
    Advance();
    out = Make(ExpressionKind::kAnd, begin, Gather(std::move(out), Not()));
  }
  return out;
}

ExpressionPtr ExpressionParser::Not() {
  int count = 0;
  const int begin = line();
  while (TakeName("not")) ++count;
  ExpressionPtr out = Compare();
  for (; count > 0 && ok(); --count)
    out = Make(ExpressionKind::kNot, begin, Gather(std::move(out)));
  return out;
}

bool ExpressionParser::TakeComparison(Operator* op) {
  for (const auto& [text, known] : kComparisons) {
    if (IsOperator(text)) {
      Advance();
      *op = known;
      return true;
    }
  }
  if (TakeName("in")) {
    *op = Operator::kIn;
    return true;
  }
  if (IsName("not") && NextIs(TokenKind::kName, "in")) {
    Advance();
    Advance();
    *op = Operator::kNotIn;
    return true;
  }
  return false;
}

ExpressionPtr ExpressionParser::Compare() {
  const int begin = line();
  ExpressionPtr first = Sum();
  std::vector<Operator> operators;
  std::vector<ExpressionPtr> parts = Gather(std::move(first));
  for (Operator op; ok() && TakeComparison(&op);) {
    operators.push_back(op);
    parts.push_back(Sum());
  }
  if (operators.empty()) return std::move(parts[0]);
  ExpressionPtr out = Make(ExpressionKind::kCompare, begin, std::move(parts));
  out->operators = std::move(operators);
  return out;
}

ExpressionPtr ExpressionParser::Sum() {
  return LeftToRight({{"+", Operator::kAdd}, {"-", Operator::kSubtract}},
                     &ExpressionParser::Joined);
}

ExpressionPtr ExpressionParser::Joined() {
  return LeftToRight({{"~", Operator::kConcatenate}}, &ExpressionParser::Product);
}

ExpressionPtr ExpressionParser::Product() {
  return LeftToRight({{"*", Operator::kMultiply},
                      {"//", Operator::kFloorDivide},
                      {"/", Operator::kDivide},
                      {"%", Operator::kModulo}},
                     &ExpressionParser::Factor);
}

ExpressionPtr ExpressionParser::Factor() {
  ExpressionPtr out = Unary(true);
  if (IsOperator("**")) Unsupported(line(), "operator '**'");
  return out;
}

ExpressionPtr ExpressionParser::Unary(bool with_filters) {
  const int begin = line();
  ExpressionPtr out;
  if (IsOperator("-") || IsOperator("+")) {
    const Operator op = IsOperator("-") ? Operator::kMinus : Operator::kPlus;
    Advance();
    if (++depth_ > kMaxNesting) Invalid("signs are nested too deep");
    out = Make(ExpressionKind::kUnary, begin, Gather(Unary(false)));
    --depth_;
    out->operators = {op};
  } else {
    out = Primary();
  }
  out = Postfix(std::move(out));
  return with_filters ? FiltersAndTests(std::move(out)) : std::move(out);
}

ExpressionPtr ExpressionParser::LeftToRight(const std::vector<NamedOperator>& operators,
                                            ExpressionPtr (ExpressionParser::*next)()) {
  ExpressionPtr out = (this->*next)();
  while (ok()) {
    const auto found = std::find_if(operators.begin(), operators.end(),
                                    [&](const auto& o) { return IsOperator(o.text); });
    if (found == operators.end()) break;
    const int begin = line();
    if (found->op == Operator::kModulo && out->constant.is_text()) {
      Unsupported(begin, "'%' behind a string");
    }
    Advance();
    out = Make(ExpressionKind::kBinary, begin, Gather(std::move(out), (this->*next)()));
    out->operators = {found->op};
  }
  return out;
}

}  // namespace lorad::storage::jinja
