#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/errors.h"
#include "storage/jinja/builtins.h"
#include "storage/jinja/lexer.h"
#include "storage/jinja/program.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::jinja {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;
constexpr int kMaxDepth = 100;       // of brackets and statements
constexpr int kMaxExpression = 250;  // of operators on operators

constexpr std::array<std::string_view, 4> kFunctions = {"raise_exception", "range", "namespace",
                                                        "dict"};

struct NamedOperator {
  std::string_view text;
  Operator op;
};
constexpr std::array<NamedOperator, 2> kSums = {
    {{"+", Operator::kAdd}, {"-", Operator::kSubtract}}};
constexpr std::array<NamedOperator, 1> kJoins = {{{"~", Operator::kConcatenate}}};
constexpr std::array<NamedOperator, 4> kProducts = {{{"*", Operator::kMultiply},
                                                     {"//", Operator::kFloorDivide},
                                                     {"/", Operator::kDivide},
                                                     {"%", Operator::kModulo}}};
constexpr std::array<NamedOperator, 6> kComparisons = {{{"==", Operator::kEqual},
                                                        {"!=", Operator::kNotEqual},
                                                        {"<", Operator::kLess},
                                                        {"<=", Operator::kLessEqual},
                                                        {">", Operator::kGreater},
                                                        {">=", Operator::kGreaterEqual}}};

// Recursive descent over the tokens. The first error sticks; afterwards every rule returns at once
// (the current token is then kEnd), and what it returns is thrown away.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<Program> Run() {
    Program program;
    program.statements = Statements({}, 0);
    // The day would get into training data, so the function is not there; a template that asks
    // whether it is goes on without.
    if (ok() && today_line_ > 0 && !today_guarded_) {
      Unsupported(today_line_, "function 'strftime_now' (its result changes from day to day)");
    }
    if (!ok()) return status_;
    return program;
  }

 private:
  bool ok() const { return status_.ok(); }
  const Token& Now() const { return ok() ? tokens_[at_] : end_; }
  int line() const { return Now().line; }
  void Advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool Is(TokenKind kind, std::string_view text = "") const {
    return Now().kind == kind && (text.empty() || Now().text == text);
  }
  bool IsOperator(std::string_view text) const { return Is(TokenKind::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(TokenKind::kName, text); }
  bool Take(TokenKind kind, std::string_view text = "") {
    if (!Is(kind, text)) return false;
    Advance();
    return true;
  }
  bool TakeOperator(std::string_view text) { return Take(TokenKind::kOperator, text); }
  bool TakeName(std::string_view text) { return Take(TokenKind::kName, text); }

  void Invalid(std::string_view what) {
    if (ok()) status_ = InvalidTemplate(line(), what);
  }
  void Unsupported(int line, std::string_view what) {
    if (ok()) status_ = UnsupportedTemplate(line, what);
  }
  std::string Described() const {
    if (Is(TokenKind::kEnd)) return "the end of the template";
    if (Is(TokenKind::kBlockEnd)) return "'%}'";
    if (Is(TokenKind::kVariableEnd)) return "'}}'";
    return absl::StrCat("'", Now().text.substr(0, 40), "'");
  }
  void Want(TokenKind kind, std::string_view text, std::string_view what) {
    if (!Take(kind, text)) Invalid(absl::StrCat("expected ", Absl(what), ", found ", Described()));
  }
  void WantOperator(std::string_view text) {
    Want(TokenKind::kOperator, text, absl::StrCat("'", Absl(text), "'"));
  }
  std::string WantName(std::string_view what) {
    std::string name = Now().text;
    Want(TokenKind::kName, "", what);
    return name;
  }
  void EndBlock() { Want(TokenKind::kBlockEnd, "", "'%}'"); }

  // ---- statements ----

  // Statements up to a tag that begins with one of `ends` (its name is not taken), or to the end.
  std::vector<Statement> Statements(const std::vector<std::string_view>& ends, int depth) {
    std::vector<Statement> out;
    if (depth > kMaxDepth) Invalid("statements are nested too deep");
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
      out.kind = StatementKind::kBlock;
      Body(&out, {"endgeneration"}, depth);
      Advance();
      EndBlock();
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

  std::vector<std::string> Targets() {
    std::vector<std::string> out;
    const bool bracket = TakeOperator("(");
    do {
      if (!out.empty() && !Is(TokenKind::kName)) break;  // a trailing comma
      out.push_back(WantName("a name"));
      const std::string& name = out.back();
      for (const std::string_view taken : {"loop", "true", "false", "none", "True", "False", "None",
                                           "and", "or", "not", "in", "is", "if", "else"}) {
        if (name == taken) Invalid(absl::StrCat("'", name, "' cannot be assigned to"));
      }
    } while (ok() && TakeOperator(","));
    if (bracket) WantOperator(")");
    return out;
  }

  // ---- expressions ----

  ExpressionPtr Make(ExpressionKind kind, int line, std::vector<ExpressionPtr> parts = {}) {
    auto out = std::make_unique<Expression>();
    out->kind = kind;
    out->line = line;
    out->parts = std::move(parts);
    for (const ExpressionPtr& part : out->parts) {
      if (part != nullptr) out->depth = std::max(out->depth, part->depth + 1);
    }
    if (out->depth > kMaxExpression) Invalid("an expression is nested too deep");
    return out;
  }

  template <typename... Parts>
  static std::vector<ExpressionPtr> Gather(Parts... parts) {
    std::vector<ExpressionPtr> out;
    (out.push_back(std::move(parts)), ...);
    return out;
  }

  ExpressionPtr Constant(Value value) {
    ExpressionPtr out = Make(ExpressionKind::kConstant, line());
    out->constant = std::move(value);
    return out;
  }

  // a, b, c is a tuple.
  ExpressionPtr TupleOrExpression(bool conditional) {
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
  ExpressionPtr ParseExpression(bool conditional) {
    if (++depth_ > kMaxDepth) Invalid("brackets are nested too deep");
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

  ExpressionPtr Or() {
    ExpressionPtr out = And();
    while (ok() && IsName("or")) {
      const int begin = line();
      Advance();
      out = Make(ExpressionKind::kOr, begin, Gather(std::move(out), And()));
    }
    return out;
  }

  ExpressionPtr And() {
    ExpressionPtr out = Not();
    while (ok() && IsName("and")) {
      const int begin = line();
      Advance();
      out = Make(ExpressionKind::kAnd, begin, Gather(std::move(out), Not()));
    }
    return out;
  }

  ExpressionPtr Not() {
    int count = 0;
    const int begin = line();
    while (TakeName("not")) ++count;
    ExpressionPtr out = Compare();
    for (; count > 0 && ok(); --count)
      out = Make(ExpressionKind::kNot, begin, Gather(std::move(out)));
    return out;
  }

  bool TakeComparison(Operator* op) {
    for (const NamedOperator& known : kComparisons) {
      if (IsOperator(known.text)) {
        Advance();
        *op = known.op;
        return true;
      }
    }
    if (TakeName("in")) {
      *op = Operator::kIn;
      return true;
    }
    if (IsName("not") && at_ + 1 < tokens_.size() && tokens_[at_ + 1].kind == TokenKind::kName &&
        tokens_[at_ + 1].text == "in") {
      Advance();
      Advance();
      *op = Operator::kNotIn;
      return true;
    }
    return false;
  }

  ExpressionPtr Compare() {
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

  template <typename Operators, typename Next>
  ExpressionPtr LeftToRight(const Operators& operators, const Next& next) {
    ExpressionPtr out = next();
    while (ok()) {
      const auto* const found = std::find_if(operators.begin(), operators.end(),
                                             [&](const auto& o) { return IsOperator(o.text); });
      if (found == operators.end()) break;
      const int begin = line();
      if (found->op == Operator::kModulo && out->constant.is_text()) {
        Unsupported(begin, "'%' behind a string");
      }
      Advance();
      out = Make(ExpressionKind::kBinary, begin, Gather(std::move(out), next()));
      out->operators = {found->op};
    }
    return out;
  }

  ExpressionPtr Sum() {
    return LeftToRight(kSums, [this] { return Joined(); });
  }
  ExpressionPtr Joined() {
    return LeftToRight(kJoins, [this] { return Product(); });
  }
  ExpressionPtr Product() {
    return LeftToRight(kProducts, [this] {
      ExpressionPtr out = Unary(true);
      if (IsOperator("**")) Unsupported(line(), "operator '**'");
      return out;
    });
  }

  ExpressionPtr Unary(bool with_filters) {
    const int begin = line();
    ExpressionPtr out;
    if (IsOperator("-") || IsOperator("+")) {
      const Operator op = IsOperator("-") ? Operator::kMinus : Operator::kPlus;
      Advance();
      if (++depth_ > kMaxDepth) Invalid("signs are nested too deep");
      out = Make(ExpressionKind::kUnary, begin, Gather(Unary(false)));
      --depth_;
      out->operators = {op};
    } else {
      out = Primary();
    }
    out = Postfix(std::move(out));
    return with_filters ? FiltersAndTests(std::move(out)) : std::move(out);
  }

  ExpressionPtr Primary() {
    const Token token = Now();
    switch (token.kind) {
      case TokenKind::kName:
        Advance();
        return NameOrConstant(token);
      case TokenKind::kString: {
        std::string text;
        while (Is(TokenKind::kString)) {
          text += Now().text;
          Advance();
        }
        return Constant(Value::MakeText(std::move(text)));
      }
      case TokenKind::kInteger:
        Advance();
        return Constant(Value::MakeInt(token.integer));
      case TokenKind::kFloat:
        Advance();
        return Constant(Value::MakeFloat(token.floating));
      default:
        break;
    }
    if (TakeOperator("(")) {
      if (TakeOperator(")")) return Make(ExpressionKind::kTuple, token.line);
      ExpressionPtr out = TupleOrExpression(true);
      WantOperator(")");
      return out;
    }
    if (TakeOperator("[")) return ListLiteral(token.line);
    if (TakeOperator("{")) return DictLiteral(token.line);
    Invalid(absl::StrCat("expected an expression, found ", Described()));
    return Constant(Value());
  }

  ExpressionPtr NameOrConstant(const Token& token) {
    const std::string& name = token.text;
    if (name == "true" || name == "True") return Constant(Value::MakeBool(true));
    if (name == "false" || name == "False") return Constant(Value::MakeBool(false));
    if (name == "none" || name == "None") return Constant(Value::MakeNone());
    if (name == "loop") return Loop(token.line);
    for (const std::string_view keyword : {"and", "or", "not", "in", "is", "if", "else"}) {
      if (name == keyword) Invalid(absl::StrCat("expected an expression, found '", name, "'"));
    }
    if (name == "strftime_now") {
      if (IsOperator("(") && today_line_ == 0) today_line_ = token.line;
      if (IsName("is")) today_guarded_ = true;
    }
    if (IsOperator("(")) return Call(token);
    ExpressionPtr out = Make(ExpressionKind::kName, token.line);
    out->name = name;
    return out;
  }

  // `loop` is there through its attributes alone: the object itself would outlive its loop.
  ExpressionPtr Loop(int begin) {
    if (!IsOperator(".")) Unsupported(begin, "'loop' by itself");
    Advance();
    ExpressionPtr out = Make(ExpressionKind::kLoop, begin);
    out->name = WantName("an attribute");
    constexpr std::array<std::string_view, 12> kKnown = {
        "index",  "index0",   "revindex", "revindex0", "first", "last",
        "length", "previtem", "nextitem", "cycle",     "depth", "depth0"};
    if (std::find(kKnown.begin(), kKnown.end(), out->name) == kKnown.end()) {
      Unsupported(begin, absl::StrCat("'loop.", out->name, "'"));
    }
    if (out->name == "cycle") {
      WantOperator("(");
      CallArguments(&out->parts, &out->keywords);
      if (out->parts.empty() || !out->keywords.empty()) Invalid("loop.cycle wants values");
    }
    return out;
  }

  ExpressionPtr Call(const Token& token) {
    const bool known =
        std::find(kFunctions.begin(), kFunctions.end(), token.text) != kFunctions.end();
    if (!known && token.text != "strftime_now") {
      Unsupported(token.line, absl::StrCat("function '", token.text, "'"));
    }
    TakeOperator("(");
    std::vector<ExpressionPtr> parts;
    std::vector<std::string> keywords;
    CallArguments(&parts, &keywords);
    ExpressionPtr out = Make(ExpressionKind::kCall, token.line, std::move(parts));
    out->name = token.text;
    out->keywords = std::move(keywords);
    return out;
  }

  // Arguments and the ')' behind them. Keyword arguments come last.
  void CallArguments(std::vector<ExpressionPtr>* parts, std::vector<std::string>* keywords) {
    while (ok() && !TakeOperator(")")) {
      if (!parts->empty()) {
        WantOperator(",");
        if (TakeOperator(")")) return;
      }
      if (IsOperator("*") || IsOperator("**")) Unsupported(line(), "'*' before an argument");
      if (Is(TokenKind::kName) && at_ + 1 < tokens_.size() &&
          tokens_[at_ + 1].kind == TokenKind::kOperator && tokens_[at_ + 1].text == "=") {
        keywords->push_back(Now().text);
        Advance();
        Advance();
      } else if (!keywords->empty()) {
        Invalid("an argument without a name behind one with a name");
      }
      parts->push_back(ParseExpression(true));
    }
  }

  ExpressionPtr ListLiteral(int begin) {
    std::vector<ExpressionPtr> parts;
    while (ok() && !TakeOperator("]")) {
      if (!parts.empty()) {
        WantOperator(",");
        if (TakeOperator("]")) break;
      }
      parts.push_back(ParseExpression(true));
    }
    return Make(ExpressionKind::kList, begin, std::move(parts));
  }

  ExpressionPtr DictLiteral(int begin) {
    std::vector<ExpressionPtr> parts;
    while (ok() && !TakeOperator("}")) {
      if (!parts.empty()) {
        WantOperator(",");
        if (TakeOperator("}")) break;
      }
      parts.push_back(ParseExpression(true));
      WantOperator(":");
      parts.push_back(ParseExpression(true));
    }
    return Make(ExpressionKind::kDict, begin, std::move(parts));
  }

  ExpressionPtr Postfix(ExpressionPtr out) {
    while (ok()) {
      const int begin = line();
      if (TakeOperator(".")) {
        if (Is(TokenKind::kInteger)) Unsupported(begin, "'.' before a number");
        const std::string name = WantName("an attribute");
        out = IsOperator("(") ? MethodCall(std::move(out), name, begin)
                              : Make(ExpressionKind::kAttribute, begin, Gather(std::move(out)));
        out->name = name;
      } else if (TakeOperator("[")) {
        out = Subscript(std::move(out), begin);
      } else if (IsOperator("(")) {
        Unsupported(begin, "a call of anything but a function or a method");
      } else {
        break;
      }
    }
    return out;
  }

  ExpressionPtr MethodCall(ExpressionPtr object, const std::string& name, int begin) {
    const Method* method = FindMethod(name);
    if (method == nullptr) Unsupported(begin, absl::StrCat("method '", name, "'"));
    TakeOperator("(");
    std::vector<ExpressionPtr> parts = Gather(std::move(object));
    std::vector<ExpressionPtr> arguments;
    std::vector<std::string> keywords;
    CallArguments(&arguments, &keywords);
    if (!keywords.empty()) Unsupported(begin, absl::StrCat("a named argument of '", name, "'"));
    const auto count = static_cast<int>(arguments.size());
    if (ok() && (count < method->required || count > method->most)) {
      Invalid(absl::StrCat("wrong number of arguments of '", name, "'"));
    }
    for (ExpressionPtr& argument : arguments) parts.push_back(std::move(argument));
    ExpressionPtr out = Make(ExpressionKind::kMethod, begin, std::move(parts));
    out->method = method;
    return out;
  }

  ExpressionPtr Subscript(ExpressionPtr object, int begin) {
    std::vector<ExpressionPtr> parts = Gather(std::move(object));
    bool slice = false;
    ExpressionPtr part;
    while (ok()) {
      if (TakeOperator(":")) {
        slice = true;
        parts.push_back(std::move(part));
        part = nullptr;
      } else if (TakeOperator("]")) {
        parts.push_back(std::move(part));
        break;
      } else if (part != nullptr) {
        Invalid(absl::StrCat("expected ']', found ", Described()));
      } else {
        part = ParseExpression(true);
      }
    }
    if (slice) {
      if (parts.size() > 4) Invalid("a slice of more than three parts");
      parts.resize(4);
      return Make(ExpressionKind::kSlice, begin, std::move(parts));
    }
    if (ok() && parts[1] == nullptr) Invalid("an empty subscript");
    return Make(ExpressionKind::kItem, begin, std::move(parts));
  }

  ExpressionPtr FiltersAndTests(ExpressionPtr out) {
    while (ok()) {
      if (TakeOperator("|")) {
        out = ApplyFilter(std::move(out));
      } else if (TakeName("is")) {
        out = ApplyTest(std::move(out));
      } else if (IsOperator("(")) {
        Unsupported(line(), "a call of anything but a function or a method");
      } else {
        break;
      }
    }
    return out;
  }

  ExpressionPtr ApplyFilter(ExpressionPtr object) {
    const int begin = line();
    const std::string name = WantName("a filter");
    const Filter* filter = ok() ? FindFilter(name) : nullptr;
    if (filter == nullptr) Unsupported(begin, absl::StrCat("filter '", name, "'"));
    std::vector<ExpressionPtr> arguments;
    std::vector<std::string> keywords;
    if (TakeOperator("(")) CallArguments(&arguments, &keywords);
    std::vector<ExpressionPtr> parts = Gather(std::move(object));
    if (ok()) PlaceFilterArguments(*filter, begin, std::move(arguments), keywords, &parts);
    ExpressionPtr out = Make(ExpressionKind::kFilter, begin, std::move(parts));
    out->name = name;
    out->filter = filter;
    return out;
  }

  // Arguments by position, named ones at their parameter's place.
  void PlaceFilterArguments(const Filter& filter, int begin, std::vector<ExpressionPtr> arguments,
                            const std::vector<std::string>& keywords,
                            std::vector<ExpressionPtr>* parts) {
    const size_t plain = arguments.size() - keywords.size();
    const auto& names = filter.keywords;
    for (size_t i = 0; i < arguments.size(); ++i) {
      size_t place = i;
      if (i >= plain) {
        const std::string& name = keywords[i - plain];
        place = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
        if (place == names.size()) {
          return Unsupported(
              begin, absl::StrCat("argument '", name, "' of filter '", Absl(filter.name), "'"));
        }
      } else if (!filter.any_arguments && (i >= names.size() || names[i].empty())) {
        return Invalid(absl::StrCat("too many arguments of '", Absl(filter.name), "'"));
      }
      if (parts->size() < place + 2) parts->resize(place + 2);
      if ((*parts)[place + 1] != nullptr) return Invalid("an argument is given twice");
      (*parts)[place + 1] = std::move(arguments[i]);
    }
    for (int i = 1; i <= filter.required; ++i) {
      const auto at = static_cast<size_t>(i);
      if (at >= parts->size() || (*parts)[at] == nullptr) {
        return Invalid(absl::StrCat("too few arguments of '", Absl(filter.name), "'"));
      }
    }
    CheckNamedCallee(filter, begin, *parts);
  }

  // selectattr("role", "equalto", ..): a test by its name; map("upper"): a filter.
  void CheckNamedCallee(const Filter& filter, int begin, const std::vector<ExpressionPtr>& parts) {
    if (!filter.any_arguments) return;
    const size_t place = filter.name.ends_with("attr") ? 2 : 1;
    if (place >= parts.size() || parts[place] == nullptr) return;
    if (parts[place]->kind != ExpressionKind::kConstant || !parts[place]->constant.is_text()) {
      return Unsupported(begin, absl::StrCat("filter '", Absl(filter.name), "' without a name"));
    }
    const std::string& callee = parts[place]->constant.text();
    if (filter.name == "map" &&
        (FindFilter(callee) == nullptr || FindFilter(callee)->required > 0 ||
         FindFilter(callee)->any_arguments)) {
      Unsupported(begin, absl::StrCat("map with filter '", callee, "'"));
    } else if (filter.name != "map") {
      const Test* test = FindTest(callee);
      if (test == nullptr) return Unsupported(begin, absl::StrCat("test '", callee, "'"));
      if (parts.size() - place - 1 != static_cast<size_t>(test->arguments)) {
        Invalid(absl::StrCat("wrong number of arguments of test '", callee, "'"));
      }
    }
  }

  ExpressionPtr ApplyTest(ExpressionPtr object) {
    const int begin = line();
    const bool negated = TakeName("not");
    const std::string name = WantName("a test");
    const Test* test = ok() ? FindTest(name) : nullptr;
    if (test == nullptr) Unsupported(begin, absl::StrCat("test '", name, "'"));
    std::vector<ExpressionPtr> parts = Gather(std::move(object));
    std::vector<ExpressionPtr> arguments;
    std::vector<std::string> keywords;
    if (TakeOperator("(")) {
      CallArguments(&arguments, &keywords);
    } else if (ok() && test->arguments == 1) {
      arguments.push_back(Postfix(Primary()));  // x is divisibleby 3
    }
    if (!keywords.empty()) Unsupported(begin, absl::StrCat("a named argument of '", name, "'"));
    if (ok() && arguments.size() != static_cast<size_t>(test->arguments)) {
      Invalid(absl::StrCat("wrong number of arguments of test '", name, "'"));
    }
    for (ExpressionPtr& argument : arguments) parts.push_back(std::move(argument));
    ExpressionPtr out = Make(ExpressionKind::kTest, begin, std::move(parts));
    out->name = name;
    out->test = test;
    return negated ? Make(ExpressionKind::kNot, begin, Gather(std::move(out))) : std::move(out);
  }

  std::vector<Token> tokens_;
  Token end_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  int today_line_ = 0;
  bool today_guarded_ = false;
  absl::Status status_;
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
