// Calls of functions and of macros.

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/jinja/operators.h"
#include "storage/jinja/python_text.h"
#include "storage/jinja/state.h"

namespace lorad::storage::jinja {
namespace {

constexpr std::array<std::string_view, 5> kFunctions = {"dict", "namespace", "raise_exception",
                                                        "range", "strftime_now"};

// The day that every template is told: today's would get into training data, and rows would be
// others tomorrow. It is the one that Llama 3.2's template takes where there is none.
constexpr std::pair<char, std::string_view> kTheDay[] = {
    {'a', "Fri"}, {'A', "Friday"}, {'b', "Jul"}, {'B', "July"}, {'d', "26"},
    {'H', "00"},  {'j', "208"},    {'m', "07"},  {'M', "00"},   {'S', "00"},
    {'y', "24"},  {'Y', "2024"},   {'%', "%"}};

// strftime of it; nothing where the format has what is not above.
std::optional<std::string> FormatTheDay(std::string_view format) {
  std::string out;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    const char letter = ++at < format.size() ? format[at] : '\0';
    const auto* const known = std::find_if(std::begin(kTheDay), std::end(kTheDay),
                                           [&](const auto& part) { return part.first == letter; });
    if (known == std::end(kTheDay)) return std::nullopt;
    out += known->second;
  }
  return out;
}

}  // namespace

bool IsFunction(std::string_view name) {
  return std::find(kFunctions.begin(), kFunctions.end(), name) != kFunctions.end();
}

Value Evaluator::Call(const Expression& e) {
  std::vector<Value> arguments;
  for (const ExpressionPtr& part : e.parts) arguments.push_back(Evaluate(*part));
  if (failed()) return Value();
  // A macro may have a function's name.
  if (const auto macro = macros_.find(e.name); macro != macros_.end()) {
    return CallMacro(e, *macro->second, std::move(arguments));
  }
  if (e.name == "namespace" || e.name == "dict") return MakeNamespace(e, arguments);
  if (!e.keywords.empty()) return Fail(absl::StrCat(e.name, " takes no names"));
  if (e.name == "range") return MakeRange(this, arguments);
  if (e.name == "strftime_now") {
    if (arguments.size() != 1 || !arguments[0].is_text())
      return Fail("strftime_now wants a format");
    const std::optional<std::string> day = FormatTheDay(arguments[0].text());
    return day.has_value() ? KeepText(*day)
                           : Fail("strftime_now: a format that is not implemented");
  }
  if (e.name != "raise_exception") return Fail(absl::StrCat("'", e.name, "' is undefined"));
  if (arguments.size() != 1) return Fail("raise_exception wants one message");
  const std::string message = Text(arguments[0]);
  if (!failed()) {
    status_ = Refuse("TEMPLATE_REJECTED",
                     absl::StrCat("the chat template rejects the conversation: ", message));
  }
  return Value();
}

Value Evaluator::MakeNamespace(const Expression& e, const std::vector<Value>& arguments) {
  const size_t plain = arguments.size() - e.keywords.size();
  if (plain > 1 || (plain == 1 && !arguments[0].is_dict())) {
    return Fail(e.name + " wants at most one dict, then names");
  }
  Dict dict;
  if (plain == 1) dict = arguments[0].dict();
  for (size_t i = plain; i < arguments.size(); ++i) dict.Set(e.keywords[i - plain], arguments[i]);
  if (e.name == "dict") return Keep(Value::MakeDict(std::move(dict)));
  namespaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(dict)}));
  return Value::MakeNamespace(namespaces_.back().get());
}

// A macro sees its parameters and what the template itself has set, not what its caller has; it
// stands in no loop.
Value Evaluator::CallMacro(const Expression& e, const Statement& macro,
                           std::vector<Value> arguments) {
  Variables bound = BindArguments(e, macro, std::move(arguments));
  if (failed()) return Value();
  std::vector<Variables> scopes(1, std::move(scopes_[0]));
  scopes.push_back(std::move(bound));
  std::vector<LoopState> loops;
  scopes_.swap(scopes);
  loops_.swap(loops);
  // Defaults may refer to the parameters before them.
  for (size_t i = 0; i < macro.conditions.size(); ++i) {
    if (!scopes_[1][i].second.is_undefined() || macro.conditions[i] == nullptr) continue;
    Value value = Evaluate(*macro.conditions[i]);
    scopes_[1][i].second = std::move(value);
  }
  std::string text;
  Execute(macro.bodies[0], &text);
  scopes_.swap(scopes);
  loops_.swap(loops);
  scopes_[0] = std::move(scopes[0]);
  return KeepText(std::move(text));
}

Variables Evaluator::BindArguments(const Expression& e, const Statement& macro,
                                   std::vector<Value> arguments) {
  const std::vector<std::string> names(macro.targets.begin() + 1, macro.targets.end());
  Variables bound;
  for (const std::string& name : names) {
    bound.emplace_back(
        name, Value::MakeUndefined(absl::StrCat("parameter '", name, "' was not provided")));
  }
  const size_t plain = arguments.size() - e.keywords.size();
  std::vector<bool> given(names.size(), false);
  for (size_t i = 0; i < arguments.size(); ++i) {
    size_t place = i;
    if (i >= plain) {
      const std::string& name = e.keywords[i - plain];
      place = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    }
    if (place >= names.size() || given[place]) {
      Fail(absl::StrCat("macro '", e.name, "' does not take these arguments"));
      return bound;
    }
    given[place] = true;
    bound[place].second = std::move(arguments[i]);
  }
  return bound;
}

}  // namespace lorad::storage::jinja
