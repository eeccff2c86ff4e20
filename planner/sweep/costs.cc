#include "planner/sweep/costs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lorad::planner {
namespace {

constexpr double kBytesMax = 1e18;  // sums of kConfigurationsMax of them are summed as doubles

absl::Status Invalid(const std::string& what) { return absl::InvalidArgumentError(what); }

bool IsCost(double value) { return std::isfinite(value) && value >= 0; }

absl::Status CheckCosts(const SweepCosts& costs) {
  if (costs.base_bytes < 0 || costs.rank_bytes < 0 || costs.sample_bytes < 0) {
    return Invalid("bytes must not be negative");
  }
  if (costs.gpu_bytes <= 0) return Invalid("a GPU must have memory");
  if (!(costs.load_factor > 0 && costs.load_factor <= 1)) {
    return Invalid("the load factor must be in (0, 1]");
  }
  if (!(costs.iteration_s > 0) || !std::isfinite(costs.iteration_s)) {
    return Invalid("an iteration must take more than 0 seconds");
  }
  if (!IsCost(costs.adapter_s) || !IsCost(costs.rank_s) || !IsCost(costs.sample_s)) {
    return Invalid("seconds must be finite and not negative");
  }
  if (costs.degrees.empty()) return Invalid("no degree of parallelism");
  int before = 0;
  for (const SweepDegree& degree : costs.degrees) {
    if (degree.gpus <= before || (degree.gpus & (degree.gpus - 1)) != 0) {
      return Invalid("degrees of parallelism must be rising powers of two");
    }
    before = degree.gpus;
    if (!(degree.fixed_scale > 0) || !std::isfinite(degree.fixed_scale) ||
        !IsCost(degree.work_scale)) {
      return Invalid(absl::StrCat("scales of degree ", degree.gpus, " must be positive"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckConfiguration(const SweepCosts& costs, const SweepConfiguration& c) {
  if (c.rank <= 0 || c.batch <= 0 || c.steps <= 0) {
    return Invalid(absl::StrCat("configuration ", c.name, ": rank, batch and steps must be > 0"));
  }
  const double bytes = static_cast<double>(costs.rank_bytes) * static_cast<double>(c.rank) +
                       static_cast<double>(costs.sample_bytes) * static_cast<double>(c.batch);
  if (c.steps > SweepProblem::kStepsMax || c.rank > SweepProblem::kRankMax ||
      c.batch > SweepProblem::kBatchMax || bytes > kBytesMax) {
    return Invalid(absl::StrCat("configuration ", c.name, ": its numbers are too large"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SweepProblem> SweepProblem::Create(
    const SweepCosts& costs, const std::vector<SweepConfiguration>& configurations, int gpus) {
  if (gpus < 1 || gpus > kGpusMax) {
    return Invalid(absl::StrCat("GPUs must be 1..", kGpusMax));
  }
  if (configurations.empty()) return Invalid("no configuration");
  if (configurations.size() > kConfigurationsMax) {
    return Invalid(absl::StrCat("more than ", kConfigurationsMax, " configurations"));
  }
  if (absl::Status checked = CheckCosts(costs); !checked.ok()) return checked;
  SweepProblem problem;
  problem.gpus_ = gpus;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, std::vector<int>> kinds;
  for (size_t i = 0; i < configurations.size(); ++i) {
    const SweepConfiguration& c = configurations[i];
    if (absl::Status checked = CheckConfiguration(costs, c); !checked.ok()) return checked;
    const int64_t bytes = costs.rank_bytes * c.rank + costs.sample_bytes * c.batch;
    kinds[{-c.steps, -bytes, c.rank, c.batch}].push_back(static_cast<int>(i));
  }
  for (auto& [key, members] : kinds) {
    const auto& [steps, bytes, rank, batch] = key;
    problem.kinds_.push_back({rank, batch, -steps, -bytes, std::move(members)});
  }
  for (const SweepDegree& degree : costs.degrees) {
    if (degree.gpus > gpus) break;
    Degree& entry = problem.degrees_.emplace_back();
    entry.gpus = degree.gpus;
    const double capacity = costs.load_factor * static_cast<double>(costs.gpu_bytes) * degree.gpus -
                            static_cast<double>(costs.base_bytes);
    entry.capacity_bytes = static_cast<int64_t>(std::floor(std::clamp(capacity, -1.0, kBytesMax)));
    entry.fixed_s = degree.fixed_scale * costs.iteration_s;
    for (const Kind& kind : problem.kinds_) {
      const double one = costs.adapter_s + costs.rank_s * static_cast<double>(kind.rank) +
                         costs.sample_s * static_cast<double>(kind.batch);
      entry.work_s.push_back(degree.work_scale * one * static_cast<double>(kind.steps));
      if (!std::isfinite(entry.work_s.back()) ||
          !std::isfinite(entry.fixed_s * static_cast<double>(kind.steps))) {
        return Invalid("a configuration takes longer than a double can tell");
      }
    }
  }
  if (problem.degrees_.empty()) {
    return Invalid(absl::StrCat("no degree of parallelism of at most ", gpus, " GPUs"));
  }
  for (size_t k = 0; k < problem.kinds_.size(); ++k) {
    const bool fits = std::any_of(
        problem.degrees_.begin(), problem.degrees_.end(),
        [&](const Degree& degree) { return problem.kinds_[k].bytes <= degree.capacity_bytes; });
    if (fits) continue;
    return Invalid(absl::StrCat(
        "configuration ", configurations[problem.kinds_[k].configurations[0]].name,
        " fits no degree: it needs ", problem.kinds_[k].bytes, " bytes beside the base model, ",
        problem.degrees_.back().gpus, " GPUs offer ", problem.degrees_.back().capacity_bytes));
  }
  return problem;
}

SweepCounts SweepProblem::All() const {
  SweepCounts counts;
  for (const Kind& kind : kinds_) {
    counts.push_back(static_cast<int32_t>(kind.configurations.size()));
  }
  return counts;
}

double SweepProblem::AloneSeconds(size_t kind, const Degree& degree) const {
  if (kinds_[kind].bytes > degree.capacity_bytes) return std::numeric_limits<double>::infinity();
  return degree.fixed_s * static_cast<double>(kinds_[kind].steps) + degree.work_s[kind];
}

double SweepProblem::LowerBoundSeconds() const {
  double gpu_seconds = 0, longest = 0;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    double least = std::numeric_limits<double>::infinity();
    double alone = std::numeric_limits<double>::infinity();
    for (const Degree& degree : degrees_) {
      if (kinds_[k].bytes > degree.capacity_bytes) continue;
      // Zero bytes of zero bytes take no share.
      const double share = kinds_[k].bytes == 0 ? 0
                                                : static_cast<double>(kinds_[k].bytes) /
                                                      static_cast<double>(degree.capacity_bytes);
      const double seconds =
          degree.fixed_s * static_cast<double>(kinds_[k].steps) * share + degree.work_s[k];
      least = std::min(least, degree.gpus * seconds);
      alone = std::min(alone, AloneSeconds(k, degree));
    }
    gpu_seconds += least * static_cast<double>(kinds_[k].configurations.size());
    longest = std::max(longest, alone);
  }
  return std::max(longest, gpu_seconds / gpus_);
}

double SweepProblem::OneEachSeconds() const {
  struct Run {
    int gpus;
    double seconds;
  };
  std::vector<Run> runs;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    for (const Degree& degree : degrees_) {
      if (kinds_[k].bytes > degree.capacity_bytes) continue;
      runs.insert(runs.end(), kinds_[k].configurations.size(),
                  {degree.gpus, AloneSeconds(k, degree)});
      break;
    }
  }
  // Most GPUs first, then longest first, each on the GPUs that are free first.
  std::stable_sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return a.gpus != b.gpus ? a.gpus > b.gpus : a.seconds > b.seconds;
  });
  std::vector<double> free_at(gpus_, 0.0);
  for (const Run& run : runs) {
    std::partial_sort(free_at.begin(), free_at.begin() + run.gpus, free_at.end());
    std::fill_n(free_at.begin(), run.gpus, free_at[run.gpus - 1] + run.seconds);
  }
  return *std::max_element(free_at.begin(), free_at.end());
}

}  // namespace lorad::planner
