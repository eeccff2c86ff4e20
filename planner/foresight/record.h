// When each job of a simulation starts and ends, by number: those of the view's queue as that has
// them, then those that train at first. Within this room only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "planner/foresight/foresee.h"

namespace lorad::planner {

class Record {
 public:
  explicit Record(size_t waiting)
      : waiting_(waiting), jobs_(waiting, {.start_s = kNever, .end_s = kNever}) {}

  // The number of one that trains at first.
  size_t AddRunning(std::string name) {
    running_.push_back(std::move(name));
    jobs_.push_back({.start_s = 0, .end_s = kNever});
    return jobs_.size() - 1;
  }
  void Start(size_t number, double now_s) {  // who began before goes on
    jobs_[number].start_s = std::min(jobs_[number].start_s, now_s);
  }
  void End(size_t number, double now_s) { jobs_[number].end_s = now_s; }

  // What is known at the end. Nothing is recorded after it.
  Foresight Take();

 private:
  size_t waiting_;  // so many did the view's queue have
  std::vector<Foreseen> jobs_;
  std::vector<std::string> running_;  // names
};

}  // namespace lorad::planner
