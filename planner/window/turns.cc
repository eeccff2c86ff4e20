#include "planner/window/turns.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

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

// How many microbatches a group has, and how long each is.
struct Dealt {
  int64_t microbatches = 0;
  double tokens = 0;
};

// In tokens, as turns.h has it.
double CostOf(const std::vector<TurnJob>& jobs, const std::vector<std::vector<size_t>>& groups,
              int64_t capacity_tokens, const TurnOptions& options, const PlacesInFlight& before) {
  std::vector<Dealt> dealt;
  int64_t all = 0, most = 0, tokens = 0;
  for (const std::vector<size_t>& group : groups) {
    int64_t of_group = 0;
    for (const size_t job : group) of_group += jobs[job].tokens;
    const int64_t count = std::max<int64_t>(1, (of_group + capacity_tokens - 1) / capacity_tokens);
    dealt.push_back({count, static_cast<double>(of_group) / static_cast<double>(count)});
    all += count;
    most = std::max(most, count);
    tokens += of_group;
  }
  const auto places = static_cast<double>(all);
  double cost = places * static_cast<double>(
                             std::min(options.microbatch_cost_tokens, options.capacity_tokens / 8));
  const auto wanted = static_cast<double>(options.places_between);
  const auto between = static_cast<double>(all - most);
  const double waits = std::max(0.0, wanted - between);
  const double risks = std::max(0.0, 2 * wanted - std::max(wanted, between));
  cost += (waits + risks / 10) * static_cast<double>(tokens) / places;
  for (size_t g = 0; g < dealt.size(); ++g) {
    cost += std::abs(dealt[g].tokens - dealt[(g + 1) % dealt.size()].tokens) / 2;
  }
  if (!before.empty() && before.back().tokens > 0) {
    cost += std::abs(dealt[0].tokens - static_cast<double>(before.back().tokens)) / 4;
  }
  return cost;
}

}  // namespace

int64_t MicrobatchCostTokens(int64_t hidden) { return (int64_t{1} << 20) / hidden; }

Turns TakeTurns(const std::vector<TurnJob>& jobs, const TurnOptions& options,
                const PlacesInFlight& before) {
  Turns best{.capacity_tokens = options.capacity_tokens, .groups = {}};
  if (jobs.empty()) return best;
  const std::vector<size_t> order = Ordered(jobs, before);
  int64_t shortest = kShortestMicrobatch;
  for (const TurnJob& job : jobs) shortest = std::max(shortest, job.longest);
  double least = std::numeric_limits<double>::infinity();
  int64_t capacity = options.capacity_tokens;
  do {
    for (size_t count = 1; count <= jobs.size(); ++count) {
      std::vector<std::vector<size_t>> groups = Split(order, count);
      const double cost = CostOf(jobs, groups, capacity, options, before);
      if (cost >= least) continue;
      least = cost;
      best = {capacity, std::move(groups)};
    }
    capacity /= 2;
  } while (capacity >= shortest);
  return best;
}

}  // namespace lorad::planner
