#include "planner/window/pack_program.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

namespace lorad::planner {
namespace {

using Term = IntegerProgram::Term;
constexpr double kInfinity = IntegerProgram::kInfinity;

// The samples as the program names them: in order of falling length, adapters by number.
struct Items {
  std::vector<int> samples;  // rank -> sample
  std::vector<int64_t> lengths;
  std::vector<int> adapters;
  int adapter_count = 0;

  explicit Items(const std::vector<Sample>& all) : samples(all.size()) {
    std::map<std::string_view, int> numbers;
    std::vector<int64_t> tokens;
    for (const Sample& sample : all) {
      if (numbers.emplace(sample.job, adapter_count).second) ++adapter_count;
      tokens.push_back(Tokens(sample));
    }
    std::iota(samples.begin(), samples.end(), 0);
    std::stable_sort(samples.begin(), samples.end(),
                     [&](int a, int b) { return tokens[a] > tokens[b]; });
    for (int sample : samples) {
      lengths.push_back(tokens[sample]);
      adapters.push_back(numbers.at(all[sample].job));
    }
  }
  size_t size() const { return samples.size(); }
};

// Which bin each rank lies in, bins in order of their first rank (the one named `last` at the end):
// so rank i lies in bin i or before it.
std::vector<int> BinOfRank(const Items& items, const Packing& packing, int last) {
  std::vector<int> bin_of_sample(items.size());
  for (size_t bin = 0; bin < packing.size(); ++bin) {
    for (int sample : packing[bin]) bin_of_sample[sample] = static_cast<int>(bin);
  }
  std::vector<int> name(packing.size(), -1);
  if (last >= 0) name[last] = static_cast<int>(packing.size()) - 1;
  int next = 0;
  std::vector<int> bins;
  for (int sample : items.samples) {
    int& of_bin = name[bin_of_sample[sample]];
    if (of_bin < 0) of_bin = next++;
    bins.push_back(of_bin);
  }
  return bins;
}

// The program and where its variables lie.
class Formulation {
 public:
  Formulation(const Items& items, const PackOptions& options, int bins, bool last_is_special)
      : items_(items), options_(options), bins_(bins), last_is_special_(last_is_special) {
    place_.assign(items.size() * bins, -1);
    for (size_t i = 0; i < items.size(); ++i) {
      std::vector<Term> once;
      for (int bin = 0; bin < bins; ++bin) {
        if (!May(i, bin)) continue;
        place_[i * bins + bin] = program.AddVariable({0, 1, 0, true});
        once.push_back({place_[i * bins + bin], 1});
      }
      program.AddRow(1, 1, std::move(once));
    }
    if (options.padding > 1) AddMultiples();
  }

  IntegerProgram program;

  // sum over adapters of P k_ab, or the plain sum of lengths.
  std::vector<Term> TokensOf(int bin) const {
    std::vector<Term> terms;
    if (options_.padding > 1) {
      for (int adapter = 0; adapter < items_.adapter_count; ++adapter) {
        terms.push_back({Multiple(adapter, bin), static_cast<double>(options_.padding)});
      }
      return terms;
    }
    for (size_t i = 0; i < items_.size(); ++i) {
      const int x = place_[i * bins_ + bin];
      if (x >= 0) terms.push_back({x, static_cast<double>(items_.lengths[i])});
    }
    return terms;
  }

  // The values of x and k (not of what was added behind them).
  std::vector<double> ValuesOf(const std::vector<int>& bin_of_rank) const {
    std::vector<double> values(program.variables.size(), 0);
    std::vector<int64_t> tokens(static_cast<size_t>(items_.adapter_count * bins_), 0);
    for (size_t i = 0; i < items_.size(); ++i) {
      values[place_[i * bins_ + bin_of_rank[i]]] = 1;
      tokens[items_.adapters[i] * bins_ + bin_of_rank[i]] += items_.lengths[i];
    }
    if (options_.padding > 1) {
      for (size_t i = 0; i < tokens.size(); ++i) {
        const int64_t multiples = (tokens[i] + options_.padding - 1) / options_.padding;
        values[first_multiple_ + i] = static_cast<double>(multiples);
      }
    }
    return values;
  }

  Packing PackingOf(const std::vector<double>& values) const {
    Packing packing(bins_);
    for (size_t i = 0; i < items_.size(); ++i) {
      for (int bin = 0; bin < bins_; ++bin) {
        const int x = place_[i * bins_ + bin];
        if (x >= 0 && values[x] > 0.5) packing[bin].push_back(items_.samples[i]);
      }
    }
    std::erase_if(packing, [](const auto& bin) { return bin.empty(); });
    for (std::vector<int>& bin : packing) std::sort(bin.begin(), bin.end());
    return packing;
  }

 private:
  bool May(size_t rank, int bin) const {
    const bool special = last_is_special_ && bin == bins_ - 1;
    if (special) return true;
    const bool alone = 2 * items_.lengths[rank] > options_.capacity;
    // Without a special bin each of those longer than C/2 stands in its own.
    if (alone && !last_is_special_) return bin == static_cast<int>(rank);
    return bin <= static_cast<int>(rank);
  }

  int Multiple(int adapter, int bin) const { return first_multiple_ + adapter * bins_ + bin; }

  void AddMultiples() {
    first_multiple_ = static_cast<int>(program.variables.size());
    const int64_t multiples = options_.capacity / options_.padding;
    const double most = static_cast<double>(multiples);
    for (int i = 0; i < items_.adapter_count * bins_; ++i) {
      program.AddVariable({0, most, 0, true});
    }
    for (int adapter = 0; adapter < items_.adapter_count; ++adapter) {
      for (int bin = 0; bin < bins_; ++bin) {
        std::vector<Term> terms = {
            {Multiple(adapter, bin), -static_cast<double>(options_.padding)}};
        for (size_t i = 0; i < items_.size(); ++i) {
          const int x = place_[i * bins_ + bin];
          if (x < 0 || items_.adapters[i] != adapter) continue;
          terms.push_back({x, static_cast<double>(items_.lengths[i])});
        }
        program.AddRow(-kInfinity, 0, std::move(terms));
      }
    }
  }

  const Items& items_;
  const PackOptions& options_;
  const int bins_;
  const bool last_is_special_;
  std::vector<int> place_;  // (rank, bin) -> x, or -1
  int first_multiple_ = 0;
};

absl::StatusOr<PackProgramResult> Solve(const Formulation& formulation, const SolveLimits& limits,
                                        const std::vector<double>& start) {
  absl::StatusOr<IntegerSolution> solution = Minimize(formulation.program, limits, &start);
  if (!solution.ok()) return solution.status();
  PackProgramResult result;
  result.status = solution->status;
  result.nodes = solution->nodes;
  if (solution->found()) result.packing = formulation.PackingOf(solution->values);
  return result;
}

}  // namespace

absl::StatusOr<PackProgramResult> SolveFewestBins(const std::vector<Sample>& samples,
                                                  const PackOptions& options, const Packing& start,
                                                  const SolveLimits& limits) {
  if (samples.size() * start.size() > kPlacesMax) return PackProgramResult{};
  const Items items(samples);
  const int bins = static_cast<int>(start.size());
  const int64_t bound = LowerBoundL2(samples, options);
  Formulation formulation(items, options, bins, /*last_is_special=*/false);
  std::vector<double> values = formulation.ValuesOf(BinOfRank(items, start, -1));
  const double capacity = static_cast<double>(options.capacity);
  int before = -1;
  for (int bin = 0; bin < bins; ++bin) {
    std::vector<Term> terms = formulation.TokensOf(bin);
    const int used = formulation.program.AddVariable({bin < bound ? 1.0 : 0.0, 1, 1, true});
    values.push_back(1);
    terms.push_back({used, -capacity});
    formulation.program.AddRow(-kInfinity, 0, std::move(terms));
    if (before >= 0) formulation.program.AddRow(-kInfinity, 0, {{used, 1}, {before, -1}});
    before = used;
  }
  return Solve(formulation, limits, values);
}

absl::StatusOr<PackProgramResult> SolveEmptiestLast(const std::vector<Sample>& samples,
                                                    const PackOptions& options,
                                                    const Packing& start,
                                                    const SolveLimits& limits) {
  if (start.empty()) return PackProgramResult{IntegerSolution::Status::kOptimal, {}, 0};
  if (samples.size() * start.size() > kPlacesMax) return PackProgramResult{};
  const Items items(samples);
  const int bins = static_cast<int>(start.size());
  Formulation formulation(items, options, bins, /*last_is_special=*/true);
  const auto padded = [&](const std::vector<int>& bin) {
    return PaddedTokens(samples, bin, options);
  };
  const auto emptiest =
      std::min_element(start.begin(), start.end(),
                       [&](const auto& a, const auto& b) { return padded(a) < padded(b); });
  const int last = static_cast<int>(emptiest - start.begin());
  for (int bin = 0; bin < bins; ++bin) {
    std::vector<Term> terms = formulation.TokensOf(bin);
    if (bin == bins - 1) {
      for (const Term& term : terms) {
        formulation.program.variables[term.variable].cost = term.coefficient;
      }
    }
    const double capacity = static_cast<double>(options.capacity);
    formulation.program.AddRow(-kInfinity, capacity, std::move(terms));
  }
  return Solve(formulation, limits, formulation.ValuesOf(BinOfRank(items, start, last)));
}

}  // namespace lorad::planner
