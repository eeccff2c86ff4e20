#include "planner/replicas/layout.h"

#include <algorithm>
#include <cassert>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lorad::planner {

double Layout::SequenceMs(int64_t length) const {
  const auto l = static_cast<double>(length);
  return stage_ms.token_ms * l + stage_ms.squared_ms * l * l;
}

std::string Layout::Name() const {
  return absl::StrCat("TP", tensor_parallel, " PP", pipeline_stages);
}

double ReplicaMs(const Layout& layout, const std::vector<int64_t>& lengths,
                 const std::vector<int64_t>& counts) {
  double sum = 0, longest = 0;
  for (size_t j = 0; j < counts.size(); ++j) {
    if (counts[j] == 0) continue;
    const int64_t fit = layout.Fit(lengths[j]);
    assert(fit > 0);
    const int64_t microbatches = (counts[j] + fit - 1) / fit;
    const double each = layout.SequenceMs(lengths[j]);
    sum += layout.stage_ms.constant_ms * static_cast<double>(microbatches) +
           each * static_cast<double>(counts[j]);
    longest = std::max(longest, layout.stage_ms.constant_ms +
                                    each * static_cast<double>(std::min(counts[j], fit)));
  }
  return sum + (layout.pipeline_stages - 1) * longest;
}

double TokensPerGpuSecond(const Layout& layout, int64_t length, int64_t microbatches) {
  const int64_t fit = layout.Fit(length);
  if (fit == 0) return 0;
  const double ms = ReplicaMs(layout, {length}, {fit * microbatches});
  return 1000 * static_cast<double>(fit * microbatches * length) / (ms * layout.gpus());
}

std::vector<int> ProposeLayouts(const std::vector<int>& gpus,
                                const std::vector<Throughput>& table) {
  std::set<int> chosen;
  std::set<std::pair<int, int64_t>> groups;
  for (const Throughput& cell : table) {
    for (int count : gpus) groups.insert({count, cell.length});
  }
  for (const auto& [count, length] : groups) {
    const Throughput* best = nullptr;
    for (const Throughput& cell : table) {
      if (cell.length != length || cell.tokens_per_gpu_second <= 0) continue;
      if (gpus[cell.layout] > count) continue;
      const bool better =
          best == nullptr || cell.tokens_per_gpu_second > best->tokens_per_gpu_second ||
          (cell.tokens_per_gpu_second == best->tokens_per_gpu_second &&
           std::pair(gpus[cell.layout], cell.layout) < std::pair(gpus[best->layout], best->layout));
      if (better) best = &cell;
    }
    if (best != nullptr) chosen.insert(best->layout);
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace lorad::planner
