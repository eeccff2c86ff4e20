// How fast tokens were trained lately: the ends of microbatches, with the tokens of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace lorad::server {

// With fewer ends a rate is a guess.
constexpr size_t kPaceKnown = 8;

using Pace = std::deque<std::pair<int64_t, int64_t>>;  // (time in us, tokens), oldest first

// Keeps the newest `max`.
inline void Keep(Pace& pace, int64_t time_us, int64_t tokens, size_t max) {
  pace.emplace_back(time_us, tokens);
  if (pace.size() > max) pace.pop_front();
}

// Tokens a second from the first end to the last; 0 before there are two.
inline double Rate(const Pace& pace) {
  if (pace.size() < 2) return 0;
  int64_t tokens = 0;
  for (size_t i = 1; i < pace.size(); ++i) tokens += pace[i].second;
  const int64_t us = pace.back().first - pace.front().first;
  return us > 0 ? static_cast<double>(tokens) * 1e6 / static_cast<double>(us) : 0;
}

}  // namespace lorad::server
