#include "planner/pipeline/grouping.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <numeric>

namespace lorad::planner {

Groups GroupAdapters(const std::vector<double>& mean_lengths, int groups) {
  assert(groups >= 1 && static_cast<size_t>(groups) <= mean_lengths.size());
  std::vector<int> order(mean_lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return mean_lengths[static_cast<size_t>(a)] < mean_lengths[static_cast<size_t>(b)];
  });
  std::deque<int> left(order.begin(), order.end());
  Groups result(static_cast<size_t>(groups));
  for (size_t turn = 0; !left.empty(); ++turn) {
    std::vector<int>& group = result[turn % result.size()];
    if (turn / result.size() % 2 == 0) {
      group.push_back(left.back());
      left.pop_back();
    } else {
      group.push_back(left.front());
      left.pop_front();
    }
  }
  return result;
}

std::vector<Microbatch> Interleave(const std::vector<std::vector<std::vector<Microbatch>>>& batches,
                                   int64_t first) {
  size_t rounds = 0;
  for (const auto& group : batches) rounds = std::max(rounds, group.size());
  std::vector<Microbatch> order;
  for (size_t j = 0; j < rounds; ++j) {
    for (const auto& group : batches) {
      if (j >= group.size()) continue;
      for (const Microbatch& microbatch : group[j]) {
        order.push_back(microbatch);
        order.back().number = first++;
      }
    }
  }
  return order;
}

}  // namespace lorad::planner
