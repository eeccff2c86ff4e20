#pragma once

// Expressions by recursive descent, a method for each level of precedence. After an error (see
// TokenCursor) what a rule returns is thrown away.

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/jinja/builtins.h"
#include "storage/jinja/program.h"
#include "storage/jinja/token_cursor.h"

namespace lorad::storage::jinja {

inline constexpr int kMaxNesting = 100;  // of brackets, signs and statements

class ExpressionParser : public TokenCursor {
 public:
  using TokenCursor::TokenCursor;

  // a, b, c is a tuple. Without `conditional`, an `if` behind it is not part of it.
  ExpressionPtr TupleOrExpression(bool conditional);
  ExpressionPtr ParseExpression(bool conditional);

  // Functions that are called and not known, with the line: macros, or an error.
  const std::vector<std::pair<std::string, int>>& unknown_calls() const { return unknown_calls_; }

 private:
  struct NamedOperator {
    std::string_view text;
    Operator op;
  };

  template <typename... Parts>
  static std::vector<ExpressionPtr> Gather(Parts... parts) {
    std::vector<ExpressionPtr> out;
    (out.push_back(std::move(parts)), ...);
    return out;
  }

  ExpressionPtr Make(ExpressionKind kind, int line, std::vector<ExpressionPtr> parts = {});
  ExpressionPtr Constant(Value value);
  ExpressionPtr Or();
  ExpressionPtr And();
  ExpressionPtr Not();
  bool TakeComparison(Operator* op);
  ExpressionPtr Compare();
  ExpressionPtr Sum();
  ExpressionPtr Joined();
  ExpressionPtr Product();
  ExpressionPtr Factor();
  ExpressionPtr Unary(bool with_filters);
  ExpressionPtr Primary();
  ExpressionPtr NameOrConstant(const Token& token);
  ExpressionPtr Loop(int begin);
  ExpressionPtr Call(const Token& token);
  void CallArguments(std::vector<ExpressionPtr>* parts, std::vector<std::string>* keywords);
  ExpressionPtr ListLiteral(int begin);
  ExpressionPtr DictLiteral(int begin);
  ExpressionPtr Postfix(ExpressionPtr out);
  ExpressionPtr MethodCall(ExpressionPtr object, const std::string& name, int begin);
  ExpressionPtr Subscript(ExpressionPtr object, int begin);
  ExpressionPtr FiltersAndTests(ExpressionPtr out);
  ExpressionPtr ApplyFilter(ExpressionPtr object);
  void PlaceFilterArguments(const Filter& filter, int begin, std::vector<ExpressionPtr> arguments,
                            const std::vector<std::string>& keywords,
                            std::vector<ExpressionPtr>* parts);
  void CheckNamedCallee(const Filter& filter, int begin, const std::vector<ExpressionPtr>& parts);
  ExpressionPtr ApplyTest(ExpressionPtr object);
  ExpressionPtr LeftToRight(const std::vector<NamedOperator>& operators,
                            ExpressionPtr (ExpressionParser::*next)());

  int depth_ = 0;  // of rules in themselves, so that no template can exhaust the stack
  std::vector<std::pair<std::string, int>> unknown_calls_;
};

}  // namespace lorad::storage::jinja
