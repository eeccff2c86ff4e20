#include "planner/window/pack_batch.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/window/pack_program.h"
#include "planner/window/pack_search.h"

namespace lorad::planner {
namespace {

// PackLimits::iterations are of programs of so many samples times bins.
constexpr int64_t kPlacesOfIterations = 1000;

enum class Outcome { kProved, kLimit, kCancelled };

class Batch {
 public:
  Batch(const std::vector<Sample>& samples, const PackOptions& options, const PackLimits& limits)
      : samples_(samples), options_(options), limits_(limits) {}

  absl::StatusOr<PackResult> Pack() {
    absl::StatusOr<Packing> greedy = PackFirstFitDecreasing(samples_, options_);
    if (!greedy.ok()) return greedy.status();
    result_.packing = *std::move(greedy);
    result_.greedy_bins = Bins();
    result_.bound_bins = LowerBoundL2(samples_, options_);
    if (limits_.empty_last_bin) EmptiestLast(&result_.packing);
    best_ = result_.packing;
    if (absl::Status status = Improve(); !status.ok()) return status;
    if (!result_.packing.empty()) result_.last_padded = Padded(result_.packing.back());
    return std::move(result_);
  }

 private:
  int64_t Bins() const { return static_cast<int64_t>(result_.packing.size()); }
  int64_t Padded(const std::vector<int>& bin) const {
    return PaddedTokens(samples_, bin, options_);
  }

  void EmptiestLast(Packing* packing) const {
    if (packing->empty()) return;
    const auto emptiest =
        std::min_element(packing->rbegin(), packing->rend(),
                         [&](const auto& a, const auto& b) { return Padded(a) < Padded(b); });
    std::rotate(std::prev(emptiest.base()), emptiest.base(), packing->end());
  }

  // No packing into as many bins leaves less in its last one.
  int64_t LastBound() const {
    const int64_t multiples = options_.capacity / options_.padding;
    const int64_t others = (static_cast<int64_t>(best_.size()) - 1) * multiples * options_.padding;
    return std::max(options_.padding, PaddedTokens(samples_, options_) - others);
  }

  absl::Status Improve() {
    const bool met_bound = Bins() == result_.bound_bins;
    const auto last_met_bound = [&] {
      return !limits_.empty_last_bin || best_.empty() || Padded(best_.back()) <= LastBound();
    };
    result_.proved = met_bound && last_met_bound();
    result_.path = met_bound ? PackPath::kGreedyMetBound : PackPath::kGreedyAlone;
    if (result_.proved || limits_.nodes <= 0) return absl::OkStatus();
    Outcome outcome = Outcome::kProved;
    if (!met_bound) {
      if (absl::Status status = FewestBins(&outcome); !status.ok()) return status;
    }
    if (outcome != Outcome::kCancelled && !last_met_bound()) {
      Outcome second = Outcome::kProved;
      if (absl::Status status = EmptiestLastBin(&second); !status.ok()) return status;
      if (outcome == Outcome::kProved || second == Outcome::kCancelled) outcome = second;
    }
    Choose(outcome);
    return absl::OkStatus();
  }

  void Choose(Outcome outcome) {
    if (outcome == Outcome::kCancelled) {
      result_.path = PackPath::kCancelled;
      return;
    }
    result_.proved = outcome == Outcome::kProved;
    const bool fewer = best_.size() < result_.packing.size();
    const bool emptier = limits_.empty_last_bin && best_.size() == result_.packing.size() &&
                         Padded(best_.back()) < Padded(result_.packing.back());
    if (fewer || emptier) {
      result_.packing = best_;
      result_.path = PackPath::kProgramImproved;
    } else {
      result_.path = result_.proved ? PackPath::kGreedyProved : PackPath::kNodeLimit;
    }
  }

  // Stage 1: `best_` gets the fewest bins that are found.
  absl::Status FewestBins(Outcome* outcome) {
    if (limits_.solver == PackSolver::kHighs) return OnHighs(SolveFewestBins, outcome);
    while (static_cast<int64_t>(best_.size()) > result_.bound_bins) {
      const int64_t bins = static_cast<int64_t>(best_.size()) - 1;
      PackSearchResult found = Search(bins, options_.capacity, limits_.nodes);
      if (found.status != PackSearchResult::Status::kFound) {
        *outcome = OutcomeOf(found.status);
        break;
      }
      std::erase_if(found.packing, [](const auto& bin) { return bin.empty(); });
      best_ = std::move(found.packing);
    }
    if (limits_.empty_last_bin) EmptiestLast(&best_);
    return absl::OkStatus();
  }

  // Stage 2, by halving what is left to gain. A half that is left open by the node limit counts as
  // if nothing were there; then nothing is proved.
  absl::Status EmptiestLastBin(Outcome* outcome) {
    if (limits_.solver == PackSolver::kHighs) return OnHighs(SolveEmptiestLast, outcome);
    const int64_t bins = static_cast<int64_t>(best_.size());
    const int64_t step = options_.padding;
    int64_t low = (LastBound() + step - 1) / step, high = Padded(best_.back()) / step;
    int64_t nodes = limits_.nodes;
    bool first = true;  // the bound itself is often met
    while (low < high) {
      const int64_t middle = first ? low : low + (high - low) / 2;
      first = false;
      PackSearchResult found = Search(bins, middle * step, std::max<int64_t>(1, nodes / 4));
      nodes -= found.nodes;
      if (found.status == PackSearchResult::Status::kFound) {
        std::erase_if(found.packing, [](const auto& bin) { return bin.empty(); });
        best_ = std::move(found.packing);
        if (static_cast<int64_t>(best_.size()) < bins) {  // what stage 1 left open
          EmptiestLast(&best_);
          *outcome = Outcome::kLimit;
          break;
        }
        high = Padded(best_.back()) / step;
        continue;
      }
      low = middle + 1;
      const Outcome open = OutcomeOf(found.status);
      if (open != Outcome::kProved) *outcome = open;
      if (open == Outcome::kCancelled) break;
    }
    return absl::OkStatus();
  }

  PackSearchResult Search(int64_t bins, int64_t last_max, int64_t nodes) {
    PackSearchResult found =
        SearchPacking(samples_, options_, bins, last_max, {nodes, limits_.cancelled});
    result_.nodes += found.nodes;
    return found;
  }

  template <class Stage>
  absl::Status OnHighs(Stage stage, Outcome* outcome) {
    SolveLimits limits;
    limits.nodes = limits_.nodes;
    // An iteration takes as much longer as there are more places.
    const auto places = static_cast<int64_t>(samples_.size() * best_.size());
    limits.iterations =
        limits_.iterations * kPlacesOfIterations / std::max(places, kPlacesOfIterations);
    limits.cancelled = limits_.cancelled;
    absl::StatusOr<PackProgramResult> found = stage(samples_, options_, best_, limits);
    if (!found.ok()) return found.status();
    result_.nodes += found->nodes;
    if (!found->packing.empty()) best_ = std::move(found->packing);
    if (limits_.empty_last_bin) EmptiestLast(&best_);
    using Status = IntegerSolution::Status;
    *outcome = found->status == Status::kOptimal     ? Outcome::kProved
               : found->status == Status::kCancelled ? Outcome::kCancelled
                                                     : Outcome::kLimit;
    return absl::OkStatus();
  }

  static Outcome OutcomeOf(PackSearchResult::Status status) {
    switch (status) {
      case PackSearchResult::Status::kCancelled:
        return Outcome::kCancelled;
      case PackSearchResult::Status::kLimit:
        return Outcome::kLimit;
      default:
        return Outcome::kProved;
    }
  }

  const std::vector<Sample>& samples_;
  const PackOptions& options_;
  const PackLimits& limits_;
  PackResult result_;  // greedy until Choose
  Packing best_;       // the program's
};

}  // namespace

absl::StatusOr<PackResult> PackBatch(const std::vector<Sample>& samples, const PackOptions& options,
                                     const PackLimits& limits) {
  return Batch(samples, options, limits).Pack();
}

const char* Name(PackPath path) {
  switch (path) {
    case PackPath::kGreedyMetBound:
      return "greedy met the bound";
    case PackPath::kGreedyAlone:
      return "greedy alone";
    case PackPath::kProgramImproved:
      return "integer program improved";
    case PackPath::kGreedyProved:
      return "greedy proved best";
    case PackPath::kNodeLimit:
      return "node limit";
    case PackPath::kCancelled:
      return "cancelled";
  }
  assert(false);
  return "";
}

std::string ToText(const PackResult& result) {
  return absl::StrCat(result.packing.size(), " bins (bound ", result.bound_bins, ", greedy ",
                      result.greedy_bins, ", last ", result.last_padded, " tokens), ",
                      Name(result.path), ", ", result.nodes, " nodes: ", ToText(result.packing));
}

}  // namespace lorad::planner
