#pragma once

// Filters, tests and methods: tables of what templates may call.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "storage/jinja/value.h"

namespace lorad::storage::jinja {

// The part of the evaluator that a builtin needs: somewhere to complain, and a budget for what it
// makes.
class Context {
 public:
  virtual ~Context() = default;

  // Keeps the first error (reason TEMPLATE_FAILED) and gives undefined.
  virtual Value Fail(std::string_view what) = 0;
  // Pays for `bytes` made. False (and an error is kept) if the budget is spent.
  virtual bool Charge(uint64_t bytes) = 0;
  virtual bool failed() const = 0;
  // No text may be longer.
  virtual uint64_t max_text_bytes() const = 0;

  // `value`, if it is neither too deep nor too large.
  Value Keep(Value value);
  Value KeepText(std::string text);
  // str(value), paid for.
  std::string Text(const Value& value);
};

// Arguments by position; one that was not given is nothing.
using Arguments = std::vector<std::optional<Value>>;

struct Filter {
  std::string_view name;
  int required;                              // arguments
  std::array<std::string_view, 3> keywords;  // parameters by position
  Value (*call)(Context* context, const Value& value, const Arguments& arguments);
  // Takes the name of a test (select, reject) or of a filter (map) as an argument.
  bool any_arguments = false;
};

struct Test {
  std::string_view name;
  int arguments;
  bool (*call)(Context* context, const Value& value, const Arguments& arguments);
};

struct Method {
  std::string_view name;
  int required;
  int most;
  Value (*call)(Context* context, const Value& value, const Arguments& arguments);
};

// Whether a template may call it without having defined it.
bool IsFunction(std::string_view name);
// Null if there is none of that name.
const Filter* FindFilter(std::string_view name);
const Test* FindTest(std::string_view name);
const Method* FindMethod(std::string_view name);

// value.name and value[key], as Jinja resolves them; undefined if there is none.
Value GetAttribute(Context* context, const Value& value, std::string_view name);
Value GetItem(Context* context, const Value& value, const Value& key);

// The items of a list, the characters of a text, the keys of a dict.
std::vector<Value> Items(Context* context, const Value& value);

// Whether `item` is in `container`.
bool Contains(Context* context, const Value& container, const Value& item);

}  // namespace lorad::storage::jinja
