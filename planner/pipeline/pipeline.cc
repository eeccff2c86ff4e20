#include "planner/pipeline/pipeline.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/window/order.h"
#include "planner/window/pack_batch.h"
#include "planner/window/pack_level.h"
#include "planner/window/pack_merge.h"

namespace lorad::planner {
namespace {

absl::Status Check(const PipelineInput& input) {
  const auto wrong = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (input.stages < 1) return wrong(input.stages, " stages");
  if (input.adapters.empty()) return wrong("no adapters");
  if (input.groups < 0 || static_cast<size_t>(input.groups) > input.adapters.size()) {
    return wrong(input.groups, " groups of ", input.adapters.size(), " adapters");
  }
  std::set<std::string> names;
  for (const PipelineAdapter& adapter : input.adapters) {
    if (!names.insert(adapter.name).second) return wrong("two adapters named ", adapter.name);
    if (adapter.batches.empty()) return wrong("adapter ", adapter.name, " has no global batch");
    for (const auto& batch : adapter.batches) {
      if (batch.empty()) return wrong("adapter ", adapter.name, " has an empty global batch");
    }
  }
  return absl::OkStatus();
}

double MeanLength(const PipelineAdapter& adapter) {
  double sum = 0, count = 0;
  for (const auto& batch : adapter.batches) {
    sum += std::accumulate(batch.begin(), batch.end(), 0.0);
    count += static_cast<double>(batch.size());
  }
  return sum / count;
}

// The global batches of one group of adapters, as what is packed and as what that stands for.
struct GroupBatches {
  std::vector<std::vector<Sample>> samples;    // [batch][sample]
  std::vector<std::vector<Segment>> segments;  // of the same
};

GroupBatches BatchesOf(const PipelineInput& input, const std::vector<int>& group) {
  GroupBatches batches;
  for (const int a : group) {
    const PipelineAdapter& adapter = input.adapters[static_cast<size_t>(a)];
    const size_t rounds = std::max(batches.samples.size(), adapter.batches.size());
    batches.samples.resize(rounds);
    batches.segments.resize(rounds);
    for (size_t j = 0; j < adapter.batches.size(); ++j) {
      for (size_t i = 0; i < adapter.batches[j].size(); ++i) {
        const int64_t tokens = adapter.batches[j][i];
        batches.samples[j].push_back(Sample{adapter.name, {tokens}});
        batches.segments[j].push_back({.job = adapter.name,
                                       .step = static_cast<int64_t>(j) + 1,
                                       .sequence = static_cast<int64_t>(i),
                                       .tokens = tokens});
      }
    }
  }
  return batches;
}

// Each merged microbatch stands with the earliest global batch of its samples.
absl::StatusOr<std::vector<std::vector<Microbatch>>> Merge(const PipelineInput& input,
                                                           const GroupBatches& batches,
                                                           const std::vector<PackResult>& packed,
                                                           const PackLimits& limits) {
  const int apart = ForwardsAhead(input.stages, input.in_flight, 0) + 1;
  const auto merged = MergeBatches(batches.samples, packed, apart, input.pack, limits);
  if (!merged.ok()) return merged.status();
  std::vector<std::vector<Microbatch>> rounds(batches.samples.size());
  for (const std::vector<BatchSample>& bin : merged->bins) {
    Microbatch microbatch;
    size_t round = rounds.size();
    for (const BatchSample& at : bin) {
      const size_t batch = static_cast<size_t>(at.batch);
      round = std::min(round, batch);
      microbatch.segments.push_back(batches.segments[batch][static_cast<size_t>(at.sample)]);
    }
    rounds[round].push_back(std::move(microbatch));
  }
  return rounds;
}

absl::StatusOr<std::vector<std::vector<Microbatch>>> PackGroup(const PipelineInput& input,
                                                               const std::vector<int>& group,
                                                               int64_t nodes, int64_t* bound) {
  const GroupBatches batches = BatchesOf(input, group);
  PackLimits limits;
  limits.nodes = nodes;
  limits.empty_last_bin = input.packing == PipelinePacking::kMerged;
  std::vector<PackResult> packed;
  for (const std::vector<Sample>& samples : batches.samples) {
    auto result = PackBatch(samples, input.pack, limits);
    if (!result.ok()) return result.status();
    *bound += result->bound_bins;
    packed.push_back(*std::move(result));
  }
  if (input.packing == PipelinePacking::kMerged) return Merge(input, batches, packed, limits);
  std::vector<std::vector<Microbatch>> rounds(packed.size());
  for (size_t j = 0; j < packed.size(); ++j) {
    const Packing bins = input.packing == PipelinePacking::kLevel
                             ? LevelBins(batches.samples[j], packed[j].packing, input.pack)
                             : packed[j].packing;
    for (const std::vector<int>& bin : bins) {
      Microbatch& microbatch = rounds[j].emplace_back();
      for (const int i : bin) {
        microbatch.segments.push_back(batches.segments[j][static_cast<size_t>(i)]);
      }
    }
  }
  return rounds;
}

absl::StatusOr<std::vector<Microbatch>> PackGroups(const PipelineInput& input, const Groups& groups,
                                                   int64_t nodes, int64_t* bound) {
  std::vector<std::vector<std::vector<Microbatch>>> batches;
  for (const std::vector<int>& group : groups) {
    auto packed = PackGroup(input, group, nodes, bound);
    if (!packed.ok()) return packed.status();
    batches.push_back(*std::move(packed));
  }
  std::vector<Microbatch> microbatches = Interleave(batches);
  if (static_cast<int64_t>(microbatches.size()) * input.stages > kPipelinePlacesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(microbatches.size(), " microbatches on ", input.stages,
                     " stages are more than this planner holds at once (", kPipelinePlacesMax,
                     " places): give fewer global batches"));
  }
  return microbatches;
}

// What a microbatch's time depends on, and of that what is trained on.
struct Load {
  Workload all, trained;
};

Load LoadOf(const PipelineInput& input, const Microbatch& microbatch) {
  Load load;
  for (const Segment& segment : microbatch.segments) {
    const auto adapter =
        std::find_if(input.adapters.begin(), input.adapters.end(),
                     [&](const PipelineAdapter& a) { return a.name == segment.job; });
    const double tokens = static_cast<double>(segment.tokens);
    const Workload sequence = {tokens, tokens * tokens};
    load.all += sequence;
    load.trained += adapter->trained_share * sequence;
  }
  return load;
}

double TimeOf(const TimeCoefficients& time, const PipelineBlock& block, const Load& load) {
  return time.Ms(block.trained_only ? load.trained : load.all, 1);
}

absl::StatusOr<Cut> CutBlocks(const PipelineInput& input, const std::vector<Load>& loads) {
  std::vector<double> block_ms(input.blocks.size(), 0);
  for (size_t b = 0; b < input.blocks.size(); ++b) {
    const PipelineBlock& block = input.blocks[b];
    for (const Load& load : loads) {
      block_ms[b] += TimeOf(block.forward, block, load) + TimeOf(block.backward, block, load);
    }
  }
  if (input.first_blocks.empty()) return CutStages(block_ms, input.stages);
  Cut cut{input.first_blocks, {}};
  cut.first.push_back(static_cast<int>(block_ms.size()));
  if (cut.first.front() != 0 || cut.first.size() != static_cast<size_t>(input.stages) + 1 ||
      std::adjacent_find(cut.first.begin(), cut.first.end(), std::greater_equal<int>()) !=
          cut.first.end()) {
    return absl::InvalidArgumentError(absl::StrCat("the first blocks of ", input.stages,
                                                   " stages must rise from 0 to below ",
                                                   block_ms.size()));
  }
  for (int s = 0; s < input.stages; ++s) {
    cut.stage_ms.push_back(std::accumulate(block_ms.begin() + cut.first[static_cast<size_t>(s)],
                                           block_ms.begin() + cut.first[static_cast<size_t>(s) + 1],
                                           0.0));
  }
  return cut;
}

MicrobatchCost CostOf(const PipelineInput& input, const Cut& cut, const Load& load) {
  MicrobatchCost cost;
  cost.transfer_ms = input.transfer_latency_ms + input.transfer_token_ms * load.all.tokens;
  for (size_t s = 0; s + 1 < cut.first.size(); ++s) {
    double forward_ms = 0, backward_ms = 0;
    for (int b = cut.first[s]; b < cut.first[s + 1]; ++b) {
      const PipelineBlock& block = input.blocks[static_cast<size_t>(b)];
      forward_ms += TimeOf(block.forward, block, load);
      backward_ms += TimeOf(block.backward, block, load);
    }
    cost.forward_ms.push_back(forward_ms);
    cost.backward_ms.push_back(backward_ms);
  }
  return cost;
}

absl::StatusOr<std::vector<std::vector<Operation>>> Order(
    const PipelineInput& input, const std::vector<Microbatch>& microbatches) {
  OrderInput order;
  order.stages = input.stages;
  order.in_flight = input.in_flight;
  order.microbatches = microbatches;
  for (const PipelineAdapter& adapter : input.adapters) {
    for (size_t j = 0; j < adapter.batches.size(); ++j) {
      order.ends.push_back({adapter.name, static_cast<int64_t>(j) + 1, 0, false});
    }
  }
  return OrderOperations(order);
}

// The first microbatch that holds global batch `step` or a later one of a job of the first group.
int64_t FirstOf(const PipelineInput& input, const PipelinePlan& plan, int64_t step) {
  for (const Microbatch& microbatch : plan.window.microbatches) {
    for (const Segment& segment : microbatch.segments) {
      for (const int a : plan.groups.front()) {
        if (segment.job == input.adapters[static_cast<size_t>(a)].name && segment.step >= step) {
          return microbatch.number;
        }
      }
    }
  }
  return -1;
}

absl::StatusOr<PipelinePlan> PlanGroups(const PipelineInput& input, int groups, int64_t nodes) {
  PipelinePlan plan;
  std::vector<double> means;
  for (const PipelineAdapter& adapter : input.adapters) means.push_back(MeanLength(adapter));
  plan.groups = GroupAdapters(means, groups);
  auto microbatches = PackGroups(input, plan.groups, nodes, &plan.bound_microbatches);
  if (!microbatches.ok()) return microbatches.status();
  plan.window.microbatches = *std::move(microbatches);

  std::vector<Load> loads;
  for (const Microbatch& microbatch : plan.window.microbatches) {
    loads.push_back(LoadOf(input, microbatch));
  }
  auto cut = CutBlocks(input, loads);
  if (!cut.ok()) return cut.status();
  plan.cut = *std::move(cut);

  auto stages = Order(input, plan.window.microbatches);
  if (!stages.ok()) return stages.status();
  plan.window.stages = *std::move(stages);
  if (absl::Status status = VerifyWindow(plan.window, input.buffers); !status.ok()) return status;
  for (const Operation& operation : plan.window.stages.front()) {
    plan.noops += operation.kind == OperationKind::kNoop ? 1 : 0;
  }

  SimulateOptions options;
  options.step_ms = input.step_ms;
  options.buffers = input.buffers;
  for (size_t i = 0; i < loads.size(); ++i) {
    options.costs[plan.window.microbatches[i].number] = CostOf(input, plan.cut, loads[i]);
  }
  if (input.measured > 0) {
    options.from = FirstOf(input, plan, input.skipped + 1);
    options.to = FirstOf(input, plan, input.skipped + input.measured + 1);
  }
  auto simulation = Simulate(plan.window, options);
  if (!simulation.ok()) return simulation.status();
  plan.simulation = *std::move(simulation);
  for (size_t s = 0; s < plan.simulation.stages.size(); ++s) {
    double bytes = 0;
    for (int b = plan.cut.first[s]; b < plan.cut.first[s + 1]; ++b) {
      bytes += input.blocks[static_cast<size_t>(b)].activation_bytes;
    }
    plan.activation_bytes.push_back(
        bytes * static_cast<double>(plan.simulation.stages[s].in_flight_tokens));
  }
  return plan;
}

bool Faster(const PipelinePlan& a, const PipelinePlan& b) {
  return a.simulation.makespan_ms < b.simulation.makespan_ms;
}

// Beyond one group more than stages there is nothing left to keep apart.
std::vector<int> GroupsTried(const PipelineInput& input) {
  if (input.groups > 0) return {input.groups};
  const int adapters = static_cast<int>(input.adapters.size());
  std::vector<int> groups(
      static_cast<size_t>(std::min({adapters, input.stages + 1, kGroupsTried})));
  std::iota(groups.begin(), groups.end(), 1);
  return groups;
}

// Microbatches in flight: more than stages absorb unequal lengths, but keep the batches of a job
// further apart, which may cost Noops.
std::vector<int> DepthsTried(const PipelineInput& input) {
  std::vector<int> depths;
  for (int depth = input.stages; depth < input.in_flight; depth *= 2) depths.push_back(depth);
  depths.push_back(input.in_flight);
  return depths;
}

}  // namespace

absl::StatusOr<PipelinePlan> PlanPipeline(const PipelineInput& input) {
  if (absl::Status status = Check(input); !status.ok()) return status;
  const std::vector<int> groups = GroupsTried(input), depths = DepthsTried(input);
  size_t batches = 0;
  for (const PipelineAdapter& adapter : input.adapters) batches += adapter.batches.size();
  const int64_t nodes =
      input.pack_nodes / static_cast<int64_t>(batches * groups.size() * depths.size());
  std::optional<absl::StatusOr<PipelinePlan>> best;
  PipelineInput tried = input;
  for (const int depth : depths) {
    tried.in_flight = depth;
    for (const int count : groups) {
      auto plan = PlanGroups(tried, count, nodes);
      if (absl::IsInvalidArgument(plan.status())) return plan;
      if (!best || (plan.ok() && (!best->ok() || Faster(*plan, **best)))) best = std::move(plan);
    }
  }
  return *std::move(best);
}

std::string ToText(const PipelinePlan& plan) {
  std::string text = absl::StrCat("groups ", ToText(plan.groups), "\ncut ", ToText(plan.cut), "\n");
  int64_t tokens = 0;
  for (const Microbatch& microbatch : plan.window.microbatches) tokens += Tokens(microbatch);
  absl::StrAppend(&text, plan.window.microbatches.size(), " microbatches (no packing of these ",
                  "groups has fewer than ", plan.bound_microbatches, "), ", plan.noops, " Noops, ",
                  tokens, " tokens\n", ToText(plan.simulation));
  for (size_t s = 0; s < plan.activation_bytes.size(); ++s) {
    if (plan.activation_bytes[s] <= 0) continue;
    absl::StrAppendFormat(&text, "stage %d keeps at most %.0f bytes of activations\n", s,
                          plan.activation_bytes[s]);
  }
  return text;
}

}  // namespace lorad::planner
