// The part of ExpressionParser that binds closest: literals, names, calls, what stands behind them.

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/jinja/expression_parser.h"

namespace lorad::storage::jinja {
ExpressionPtr ExpressionParser::Primary() {
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

ExpressionPtr ExpressionParser::NameOrConstant(const Token& token) {
  const std::string& name = token.text;
  if (name == "true" || name == "True") return Constant(Value::MakeBool(true));
  if (name == "false" || name == "False") return Constant(Value::MakeBool(false));
  if (name == "none" || name == "None") return Constant(Value::MakeNone());
  if (name == "loop") return Loop(token.line);
  for (const std::string_view keyword : {"and", "or", "not", "in", "is", "if", "else"}) {
    if (name == keyword) Invalid(absl::StrCat("expected an expression, found '", name, "'"));
  }
  if (IsOperator("(")) return Call(token);
  ExpressionPtr out = Make(ExpressionKind::kName, token.line);
  out->name = name;
  return out;
}

// `loop` is there through its attributes alone: the object itself would outlive its loop.
ExpressionPtr ExpressionParser::Loop(int begin) {
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

ExpressionPtr ExpressionParser::Call(const Token& token) {
  if (!IsFunction(token.text)) unknown_calls_.emplace_back(token.text, token.line);
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
void ExpressionParser::CallArguments(std::vector<ExpressionPtr>* parts,
                                     std::vector<std::string>* keywords) {
  while (ok() && !TakeOperator(")")) {
    if (!parts->empty()) {
      WantOperator(",");
      if (TakeOperator(")")) return;
    }
    if (IsOperator("*") || IsOperator("**")) Unsupported(line(), "'*' before an argument");
    if (Is(TokenKind::kName) && NextIs(TokenKind::kOperator, "=")) {
      keywords->push_back(Now().text);
      Advance();
      Advance();
    } else if (!keywords->empty()) {
      Invalid("an argument without a name behind one with a name");
    }
    parts->push_back(ParseExpression(true));
  }
}

ExpressionPtr ExpressionParser::ListLiteral(int begin) {
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

ExpressionPtr ExpressionParser::DictLiteral(int begin) {
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

ExpressionPtr ExpressionParser::Postfix(ExpressionPtr out) {
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

ExpressionPtr ExpressionParser::MethodCall(ExpressionPtr object, const std::string& name,
                                           int begin) {
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

ExpressionPtr ExpressionParser::Subscript(ExpressionPtr object, int begin) {
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

ExpressionPtr ExpressionParser::FiltersAndTests(ExpressionPtr out) {
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

ExpressionPtr ExpressionParser::ApplyFilter(ExpressionPtr object) {
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
void ExpressionParser::PlaceFilterArguments(const Filter& filter, int begin,
                                            std::vector<ExpressionPtr> arguments,
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
void ExpressionParser::CheckNamedCallee(const Filter& filter, int begin,
                                        const std::vector<ExpressionPtr>& parts) {
  if (!filter.any_arguments) return;
  const size_t place = filter.name.ends_with("attr") ? 2 : 1;
  if (place >= parts.size() || parts[place] == nullptr) return;
  if (parts[place]->kind != ExpressionKind::kConstant || !parts[place]->constant.is_text()) {
    return Unsupported(begin, absl::StrCat("filter '", Absl(filter.name), "' without a name"));
  }
  const std::string& callee = parts[place]->constant.text();
  if (filter.name == "map" && (FindFilter(callee) == nullptr || FindFilter(callee)->required > 0 ||
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

ExpressionPtr ExpressionParser::ApplyTest(ExpressionPtr object) {
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

}  // namespace lorad::storage::jinja
