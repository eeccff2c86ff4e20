// Collects what is wrong with the fields of a request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/errors/errors.h"

namespace lorad::server {

// Each call adds at most one violation. Numbers that are not finite are out of every range.
class Checker {
 public:
  // "" = nothing is wrong.
  void Add(const std::string& field, const std::string& description);
  void Between(const std::string& field, int64_t value, int64_t low, int64_t high);
  // low < value <= high, or low <= value < high, or both ends in, as `open` says: 'l', 'h' or ' '.
  void Real(const std::string& field, double value, double low, double high, char open);

  bool empty() const { return violations_.empty(); }
  std::vector<FieldViolation> Take() { return std::move(violations_); }

 private:
  std::vector<FieldViolation> violations_;
};

}  // namespace lorad::server
