#include "planner/window/turns.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace lorad::planner {
namespace {

// In the order of their turns.
std::vector<size_t> Ordered(const std::vector<TurnJob>& jobs, const PlacesInFlight& before) {
  std::map<std::string, int> ends;  // the later, the larger; 0: none is in flight
  for (const Place& place : before) {
    for (const BatchEnd& end : place.ends) ends[end.job] = static_cast<int>(ends.size()) + 1;
  }
  const auto rank = [&](size_t job) {
    const auto end = ends.find(jobs[job].job);
    return std::tuple(end == ends.end() ? 0 : end->second, jobs[job].job);
  };
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return rank(a) < rank(b); });
  return order;
}

// Neighbours in the order together, as many in one group as in another but for one.
std::vector<std::vector<size_t>> Split(const std::vector<size_t>& order, size_t count) {
  std::vector<std::vector<size_t>> groups(count);
  for (size_t i = 0; i < order.size(); ++i) groups[i * count / order.size()].push_back(order[i]);
  return groups;
}

// The fewest microbatches of other groups that lie between two of one group's batches.
int64_t Between(const std::vector<TurnJob>& jobs, const std::vector<std::vector<size_t>>& groups,
                int64_t capacity_tokens) {
  std::vector<int64_t> microbatches;
  for (const std::vector<size_t>& group : groups) {
    int64_t tokens = 0;
    for (const size_t job : group) tokens += jobs[job].tokens;
    microbatches.push_back((tokens + capacity_tokens - 1) / capacity_tokens);
  }
  return std::accumulate(microbatches.begin(), microbatches.end(), int64_t{0}) -
         *std::ranges::max_element(microbatches);
}

}  // namespace

std::vector<std::vector<size_t>> TakeTurns(const std::vector<TurnJob>& jobs,
                                           int64_t capacity_tokens, int64_t places_between,
                                           const PlacesInFlight& before) {
  if (jobs.empty()) return {};
  const std::vector<size_t> order = Ordered(jobs, before);
  std::vector<std::vector<size_t>> groups;
  for (size_t count = 1; count <= jobs.size(); ++count) {
    groups = Split(order, count);
    if (Between(jobs, groups, capacity_tokens) >= places_between) break;
  }
  return groups;
}

}  // namespace lorad::planner
