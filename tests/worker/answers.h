// Answers that a harness's workers generate, token by token.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/worker/harness.h"

namespace lorad::worker {

// A prompt and what has followed it so far.
struct Answer {
  std::string job;  // empty: no adapter
  std::vector<int32_t> ids;
  v1::Sampling sampling;  // without number
  size_t prompt = 0;      // the first of ids
  std::vector<double> log_probability = {};

  std::vector<int32_t> tokens() const {
    return {ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()};
  }
  bool operator==(const Answer& other) const {
    return ids == other.ids && log_probability == other.log_probability;
  }
};

Answer Ask(const std::string& job, std::vector<int32_t> prompt, double temperature = 0,
           uint64_t seed = 0, double top_p = 1);

// What the answer's next token needs.
v1::Segment NextOf(const Answer& answer, const std::string& generation);

// One window: a token more for each of the answers, all packed together; with the next step of
// every job between two halves of them, where there are jobs. Where a token does not come, or comes
// twice, it throws std::runtime_error; -1 is appended as any other.
void Continue(Harness* harness, const std::vector<Answer*>& answers,
              const std::vector<TestJob*>& jobs = {}, bool save = false,
              std::mt19937_64* random = nullptr);

}  // namespace lorad::worker
