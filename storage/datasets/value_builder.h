// A value of a row, as a chat template is to see it, out of the events of a JSON parser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/jinja/value.h"

namespace lorad::storage {

struct ValueLimits {
  int64_t values = 1'000'000;  // of all that one builder makes: each takes 24 bytes and more
  int keys = 1000;             // of one object: a template looks through all of them
};

// One value after the other: Begin and End around lists and objects, Key before each value of an
// object. After the first error it takes no more.
class ValueBuilder {
 public:
  explicit ValueBuilder(const ValueLimits& limits) : limits_(limits) {}

  void Add(jinja::Value value);
  void Begin(bool object);
  void Key(const std::string& key);
  void End();

  // What is wrong, in the words of an error behind the value's name; empty: nothing.
  const std::string& error() const { return error_; }
  // The value, once all that was begun is ended.
  jinja::Value Take() { return std::exchange(done_, jinja::Value()); }

 private:
  struct Open {
    bool object = false;
    std::vector<jinja::Value> items;
    jinja::Dict dict;
    std::unordered_set<std::string> keys;
    std::string key;  // of the next value
  };

  void Fail(std::string what);

  const ValueLimits limits_;
  int64_t values_ = 0;
  std::vector<Open> open_;
  jinja::Value done_;
  std::string error_;
};

// A JSON text as a value. InvalidArgument: "not JSON", or what is wrong.
absl::StatusOr<jinja::Value> ParseValue(std::string_view text, const ValueLimits& limits = {});

}  // namespace lorad::storage
