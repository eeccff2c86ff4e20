#include "planner/window/window.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/window/order.h"
#include "planner/window/pack.h"
#include "planner/window/pack_level.h"
#include "planner/window/turns.h"

namespace lorad::planner {
namespace {

int64_t TokensOf(const Unit& unit) {
  int64_t tokens = 0;
  for (const Unit::Sequence& sequence : unit.sequences) tokens += sequence.tokens;
  return tokens;
}

// With its padding.
int64_t LongestOf(const Unit& unit, int64_t padding) {
  int64_t tokens = 0;
  for (const Unit::Sequence& sequence : unit.sequences) tokens = std::max(tokens, sequence.tokens);
  return (tokens + padding - 1) / padding * padding;
}

// Units that share microbatches, which hold so many tokens at most.
struct Shared {
  int64_t capacity_tokens = 0;
  std::vector<const Unit*> units;
};

enum class Pass { kTrain, kEvaluate, kGenerate };

Pass PassOf(SegmentMode mode) {
  if (mode == SegmentMode::kGenerate) return Pass::kGenerate;
  return Trains(mode) ? Pass::kTrain : Pass::kEvaluate;
}

// The units of one pass.
std::vector<Shared> Together(const WindowInput& input, Pass pass) {
  std::vector<const Unit*> units;
  for (const Unit& unit : input.units) {
    const bool has_rows = !unit.sequences.empty();
    if (has_rows && PassOf(unit.mode) == pass) units.push_back(&unit);
  }
  if (units.empty()) return {};
  if (pass != Pass::kTrain || input.stages == 1) return {{input.capacity_tokens, units}};
  std::vector<TurnJob> jobs;
  for (const Unit* unit : units) {
    jobs.push_back({unit->job, TokensOf(*unit), LongestOf(*unit, input.padding)});
  }
  const int in_flight = input.in_flight > 0 ? input.in_flight : input.stages;
  const TurnOptions options{.capacity_tokens = input.capacity_tokens,
                            .places_between = ForwardsAhead(input.stages, in_flight, 0),
                            .microbatch_cost_tokens = input.microbatch_cost_tokens};
  const Turns turns = TakeTurns(jobs, options, input.before);
  std::vector<Shared> shared;
  for (const std::vector<size_t>& turn : turns.groups) {
    Shared& in_turn = shared.emplace_back(Shared{turns.capacity_tokens, {}});
    for (const size_t job : turn) in_turn.units.push_back(units[job]);
  }
  return shared;
}

// Packs these units together and appends their microbatches.
absl::Status PackUnits(const WindowInput& input, const Shared& shared, std::vector<Microbatch>* out,
                       std::vector<PackResult>* packings) {
  std::vector<Sample> samples;
  std::vector<Segment> segments;
  for (const Unit* unit : shared.units) {
    for (const Unit::Sequence& sequence : unit->sequences) {
      samples.push_back(Sample{unit->job, {sequence.tokens}});
      segments.push_back(
          Segment{unit->job, unit->mode, unit->step, sequence.index, 0, sequence.tokens});
    }
  }
  const PackOptions options{shared.capacity_tokens, input.padding};
  absl::StatusOr<PackResult> packed = PackBatch(samples, options, input.pack);
  if (!packed.ok()) return packed.status();
  // Stages wait for one another where neighbours are of unequal length.
  if (input.stages > 1) packed->packing = LevelBins(samples, packed->packing, options);
  for (const std::vector<int>& bin : packed->packing) {
    Microbatch& microbatch = out->emplace_back();
    microbatch.number = input.first_microbatch + static_cast<int64_t>(out->size()) - 1;
    for (int sample : bin) microbatch.segments.push_back(segments[sample]);
  }
  if (packings != nullptr) packings->push_back(*std::move(packed));
  return absl::OkStatus();
}

absl::StatusOr<Batch> BatchOf(const Unit& unit) {
  Batch batch{.job = unit.job, .step = unit.step};
  for (const Unit::Sequence& sequence : unit.sequences) {
    ++batch.sequences;
    batch.tokens += sequence.tokens;
    batch.trained_tokens += sequence.trained_tokens;
  }
  if (batch.trained_tokens <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch ", unit.job, "/", unit.step, " has no trained token"));
  }
  return batch;
}

}  // namespace

absl::StatusOr<Window> PlanWindow(const WindowInput& input, std::vector<PackResult>* packings,
                                  PlacesInFlight* left) {
  Window window;
  std::set<std::string> jobs;
  OrderInput order{.stages = input.stages,
                   .in_flight = input.in_flight,
                   .before = input.before,
                   .frees = input.frees,
                   .loads = input.loads,
                   .saves = input.saves,
                   .microbatches = {},
                   .ends = {}};
  for (const Unit& unit : input.units) {
    if (!jobs.insert(unit.job).second) {
      return absl::InvalidArgumentError(absl::StrCat("job ", unit.job, " has two units"));
    }
    if (unit.mode != SegmentMode::kTrain) continue;
    absl::StatusOr<Batch> batch = BatchOf(unit);
    if (!batch.ok()) return batch.status();
    window.batches.push_back(*std::move(batch));
    order.ends.push_back(BatchEnd{unit.job, unit.step, unit.learning_rate, unit.save});
  }
  for (const Pass pass : {Pass::kTrain, Pass::kEvaluate, Pass::kGenerate}) {
    for (const Shared& shared : Together(input, pass)) {
      const absl::Status status = PackUnits(input, shared, &window.microbatches, packings);
      if (!status.ok()) return status;
    }
  }
  order.microbatches = window.microbatches;
  if (left != nullptr) left->clear();
  auto stages = OrderOperations(order, window.microbatches.empty() ? nullptr : left);
  if (!stages.ok()) return stages.status();
  window.stages = *std::move(stages);
  const absl::Status verified =
      VerifyWindowAmong(window, input.in_flight, input.before, left ? *left : PlacesInFlight());
  if (!verified.ok()) return verified;
  return window;
}

WindowStatistics Describe(const Window& window, int64_t capacity_tokens) {
  WindowStatistics statistics;
  std::map<Pass, std::vector<Sample>> samples;
  int64_t adapters = 0;
  for (const Microbatch& microbatch : window.microbatches) {
    ++statistics.microbatches;
    statistics.tokens += Tokens(microbatch);
    adapters += Adapters(microbatch);
    for (const Segment& segment : microbatch.segments) {
      samples[PassOf(segment.mode)].push_back(Sample{segment.job, {segment.tokens}});
    }
  }
  if (statistics.microbatches == 0) return statistics;
  const PackOptions options{capacity_tokens, 1};
  for (const auto& [pass, of_pass] : samples) {
    statistics.bound_microbatches += LowerBoundL2(of_pass, options);
  }
  const double microbatches = static_cast<double>(statistics.microbatches);
  statistics.adapters_per_microbatch = static_cast<double>(adapters) / microbatches;
  statistics.fill = static_cast<double>(statistics.tokens) /
                    (microbatches * static_cast<double>(capacity_tokens));
  return statistics;
}

}  // namespace lorad::planner
