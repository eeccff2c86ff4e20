// Bytes of a group, or of a slot in it, on each of its workers: one number where the model is whole
// on one, and one a stage where it is cut.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace lorad::planner {

class StageBytes {
 public:
  StageBytes() = default;  // nothing on any number of stages
  explicit StageBytes(int64_t bytes) : of_(1, bytes) {}

  void Append(int64_t bytes) { of_.push_back(bytes); }
  size_t size() const { return of_.size(); }
  int64_t operator[](size_t stage) const { return of_[stage]; }

  // REQUIRES: both are of as many stages, or one of them is nothing.
  StageBytes& operator+=(const StageBytes& other) {
    if (of_.size() < other.of_.size()) of_.resize(other.of_.size(), 0);
    for (size_t s = 0; s < other.of_.size(); ++s) of_[s] += other.of_[s];
    return *this;
  }
  StageBytes& operator-=(const StageBytes& other) {
    for (size_t s = 0; s < other.of_.size(); ++s) of_[s] -= other.of_[s];
    return *this;
  }
  friend StageBytes operator+(StageBytes a, const StageBytes& b) { return a += b; }
  friend StageBytes operator-(StageBytes a, const StageBytes& b) { return a -= b; }

 private:
  absl::InlinedVector<int64_t, 4> of_;
};

}  // namespace lorad::planner
