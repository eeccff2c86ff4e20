#pragma once

// The values of a template: Python's values as Jinja shows them, without anything mutable but
// namespaces.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lorad::storage::jinja {

class Value;

// A name or an attribute that is not there; `what` says so in an error.
struct Undefined {
  std::shared_ptr<const std::string> what;
};

struct None {};

// How large a value would be if it were written out. Parts may be shared, so that a small value can
// stand for an endless text: the evaluator bounds both before it keeps a value.
struct Extent {
  int depth = 0;        // of lists and dicts in each other
  uint64_t weight = 0;  // about its bytes
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  Extent extent;
};

struct Dict {
  std::vector<std::pair<std::string, Value>> items;  // in order of insertion; keys are strings
  Extent extent;

  const Value* Find(std::string_view key) const;
  void Set(std::string_view key, Value value);
  // REQUIRES: it has no such key.
  void Append(std::string key, Value value);
};

// Compared by identity. Lives as long as the rendering, in an arena: a namespace may hold itself.
struct Namespace {
  Dict attributes;
};

// A value; copies share strings, lists and dicts, which never change once they are made (the reason
// for the shared pointers: templates pass the same text through many hands).
class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;

  Value() = default;  // undefined
  static Value MakeUndefined(std::string what);
  static Value MakeNone() { return Value(Data(None())); }
  static Value MakeBool(bool value) { return Value(Data(value)); }
  static Value MakeInt(int64_t value) { return Value(Data(value)); }
  static Value MakeFloat(double value) { return Value(Data(value)); }
  static Value MakeText(std::string text) {
    return Value(Data(std::make_shared<const std::string>(std::move(text))));
  }
  static Value MakeList(std::vector<Value> items, bool tuple = false);
  static Value MakeDict(Dict dict);
  static Value MakeNamespace(Namespace* space) { return Value(Data(space)); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_text() const { return std::holds_alternative<Text>(data_); }
  bool is_list() const { return std::holds_alternative<ListPtr>(data_); }
  bool is_dict() const { return std::holds_alternative<DictPtr>(data_); }
  bool is_namespace() const { return std::holds_alternative<Namespace*>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }

  const Undefined& undefined() const { return std::get<Undefined>(data_); }
  bool boolean() const { return std::get<bool>(data_); }
  double floating() const { return std::get<double>(data_); }
  const std::string& text() const { return *std::get<Text>(data_); }
  const List& list() const { return *std::get<ListPtr>(data_); }
  const Dict& dict() const { return *std::get<DictPtr>(data_); }
  Namespace* space() const { return std::get<Namespace*>(data_); }

  // A bool or an int as an integer (True is 1).
  std::optional<int64_t> Integer() const;
  // REQUIRES: is_number().
  double Number() const;

  bool Truth() const;
  // Python's name of the type, for errors.
  std::string_view TypeName() const;
  Extent extent() const;

 private:
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, Text, ListPtr, DictPtr, Namespace*>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

// Python's ==.
bool Equal(const Value& a, const Value& b);

// Python's <, where the two can be ordered.
std::optional<bool> Less(const Value& a, const Value& b);

// Python's str(); undefined is "".
std::string ToText(const Value& value);

// json.dumps(ensure_ascii=False); indent < 0: on one line. Nothing if some part is not JSON.
std::optional<std::string> ToJson(const Value& value, int indent);

}  // namespace lorad::storage::jinja
