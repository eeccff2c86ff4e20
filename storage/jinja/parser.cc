// Statements: ParseProgram.

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/jinja/expression_parser.h"
#include "storage/jinja/program.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::jinja {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  absl::StatusOr<Program> Run() {
    Program program;
    program.statements = Statements({}, 0);
    program.marks_generation = marks_generation_;
    // A macro may be called before the place where it is defined.
    for (const auto& [name, line] : unknown_calls()) {
      if (!macros_.contains(name)) Unsupported(line, absl::StrCat("function '", name, "'"));
    }
    if (!ok()) return status();
    return program;
  }

 private:
  // Statements up to a tag that begins with one of `ends` (its name is not taken), or to the end.
  std::vector<Statement> Statements(const std::vector<std::string_view>& ends, int depth) {
    std::vector<Statement> out;
    if (depth > kMaxNesting) Invalid("statements are nested too deep");
    while (ok()) {
      if (Is(TokenKind::kEnd)) {
        if (!ends.empty()) Invalid(absl::StrCat("a missing ", Absl(ends.back())));
        return out;
      }
      Statement statement;
      statement.line = line();
      if (Is(TokenKind::kText)) {
        statement.text = Now().text;
        Advance();
      } else if (Take(TokenKind::kVariableBegin)) {
        statement.kind = StatementKind::kOutput;
        statement.expression = TupleOrExpression(true);
        Want(TokenKind::kVariableEnd, "", "'}}'");
      } else {
        Want(TokenKind::kBlockBegin, "", "a tag");
        if (!ok()) return out;
        if (Is(TokenKind::kName) && std::find(ends.begin(), ends.end(), Now().text) != ends.end()) {
          return out;
        }
        statement = Block(depth);
      }
      out.push_back(std::move(statement));
    }
    return out;
  }

  Statement Block(int depth) {
    Statement out;
    out.line = line();
    const std::string name = WantName("a statement");
    if (name == "if") {
      If(&out, depth);
    } else if (name == "for") {
      For(&out, depth);
    } else if (name == "set") {
      Set(&out, depth);
    } else if (name == "generation") {
      out.kind = StatementKind::kGeneration;
      marks_generation_ = true;
      // No loop goes through it: what it prints is a call's in jinja2.
      const int loops = std::exchange(loops_, 0);
      Body(&out, {"endgeneration"}, depth);
      loops_ = loops;
      Advance();
      EndBlock();
    } else if (name == "macro") {
      Macro(&out, depth);
    } else if ((name == "break" || name == "continue") && loops_ > 0) {
      out.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      EndBlock();
    } else if (name == "break" || name == "continue" || name == "elif" || name == "else" ||
               name.starts_with("end")) {
      Invalid(absl::StrCat("'", name, "' outside of its statement"));
    } else if (ok()) {
      Unsupported(out.line, absl::StrCat("statement '", name, "'"));
    }
    return out;
  }

  void Body(Statement* out, const std::vector<std::string_view>& ends, int depth) {
    EndBlock();
    out->bodies.push_back(Statements(ends, depth + 1));
  }

  void If(Statement* out, int depth) {
    out->kind = StatementKind::kIf;
    do {
      out->conditions.push_back(TupleOrExpression(false));
      Body(out, {"elif", "else", "endif"}, depth);
    } while (TakeName("elif"));
    if (TakeName("else")) Body(out, {"endif"}, depth);
    Want(TokenKind::kName, "endif", "endif");
    EndBlock();
  }

  void For(Statement* out, int depth) {
    out->kind = StatementKind::kFor;
    out->targets = Targets();
    Want(TokenKind::kName, "in", "'in'");
    out->expression = TupleOrExpression(false);
    if (TakeName("if")) out->conditions.push_back(ParseExpression(true));
    if (IsName("recursive")) Unsupported(line(), "'recursive'");
    ++loops_;
    Body(out, {"else", "endfor"}, depth);
    --loops_;
    if (TakeName("else")) Body(out, {"endfor"}, depth);
    Want(TokenKind::kName, "endfor", "endfor");
    EndBlock();
  }

  void Set(Statement* out, int depth) {
    out->kind = StatementKind::kSet;
    out->targets = Targets();
    if (out->targets.size() == 1 && TakeOperator(".")) out->attribute = WantName("an attribute");
    if (TakeOperator("=")) {
      out->expression = TupleOrExpression(true);
      EndBlock();
      return;
    }
    if (IsOperator("|")) Unsupported(line(), "a filter on a set block");
    if (out->targets.size() != 1 || !out->attribute.empty()) return Invalid("expected '='");
    out->kind = StatementKind::kSetBlock;
    Body(out, {"endset"}, depth);
    Advance();
    EndBlock();
  }

  void Macro(Statement* out, int depth) {
    out->kind = StatementKind::kMacro;
    out->targets.push_back(Target());
    macros_.insert(out->targets[0]);
    WantOperator("(");
    while (ok() && !TakeOperator(")")) {
      if (out->targets.size() > 1) WantOperator(",");
      out->targets.push_back(Target());
      out->conditions.push_back(TakeOperator("=") ? ParseExpression(true) : nullptr);
    }
    const int loops = std::exchange(loops_, 0);
    Body(out, {"endmacro"}, depth);
    loops_ = loops;
    Advance();
    EndBlock();
  }

  // A name that may be assigned to.
  std::string Target() {
    std::string name = WantName("a name");
    for (const std::string_view taken : {"loop", "true", "false", "none", "True", "False", "None",
                                         "and", "or", "not", "in", "is", "if", "else"}) {
      if (name == taken) Invalid(absl::StrCat("'", name, "' cannot be assigned to"));
    }
    return name;
  }

  std::vector<std::string> Targets() {
    std::vector<std::string> out;
    const bool bracket = TakeOperator("(");
    do {
      if (!out.empty() && !Is(TokenKind::kName)) break;  // a trailing comma
      out.push_back(Target());
    } while (ok() && TakeOperator(","));
    if (bracket) WantOperator(")");
    return out;
  }

  int loops_ = 0;  // around, up to the next macro
  bool marks_generation_ = false;
  std::set<std::string> macros_;
};

}  // namespace

absl::StatusOr<Program> ParseProgram(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) return InvalidTemplate(1, "longer than 1 MiB");
  if (!tokenization::IsUtf8(source)) return InvalidTemplate(1, "not UTF-8");
  absl::StatusOr<std::vector<Token>> tokens = Lex(source);
  if (!tokens.ok()) return tokens.status();
  return Parser(*std::move(tokens)).Run();
}

}  // namespace lorad::storage::jinja
