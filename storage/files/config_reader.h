#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace lorad::storage {

// The mistakes in a user's file, collected: a user sees all of them at once.
class Problems {
 public:
  void Add(std::string_view message) { messages_.emplace_back(message); }
  void Add(const Problems& others);
  bool empty() const { return messages_.empty(); }
  // The first 20 in one INVALID_ARGUMENT with this reason, or OK.
  absl::Status Result(std::string_view reason) const;

 private:
  std::vector<std::string> messages_;
};

// Reads the fields of one JSON object and remembers which it was asked for, so that what nobody
// asked for can be refused by name. Problems are collected, not thrown: a user sees all of them at
// once. A field that is null counts as absent.
class ConfigReader {
 public:
  // `where` comes before a field's name in messages: "" or "rope_scaling.". REQUIRES: an object.
  ConfigReader(const nlohmann::json& object, std::string where);

  // Absent or wrong: a problem, and `fallback` (where one is given, absent is none).
  int64_t Integer(std::string_view key, int64_t least, int64_t most,
                  std::optional<int64_t> fallback = std::nullopt);
  double Number(std::string_view key, double least, double most,
                std::optional<double> fallback = std::nullopt);
  bool Boolean(std::string_view key, bool fallback);
  std::string String(std::string_view key, std::string_view fallback);
  // The value as it is, or nullptr. Counts as asked for.
  const nlohmann::json* Find(std::string_view key);
  bool Has(std::string_view key) const;

  // Fields that change nothing we compute, whatever they say.
  void Ignore(const std::vector<std::string_view>& keys);
  // Present and neither null nor `neutral`: a problem with the field's name and value.
  void OnlyNeutral(std::string_view key, const nlohmann::json& neutral);
  // Every field not asked for so far is a problem.
  void RefuseRest();

  // Present and not empty (null, {}, [], "", false): a problem with the field's name and value.
  void OnlyEmpty(std::string_view key);

  void Problem(std::string_view message) { problems_.Add(message); }
  void Append(const Problems& others) { problems_.Add(others); }
  const Problems& problems() const { return problems_; }
  absl::Status Result(std::string_view reason) const { return problems_.Result(reason); }

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string, std::less<>> seen_;
  Problems problems_;
};

}  // namespace lorad::storage
