// PLoRA's costs on A100 GPUs of 40 GB, rebuilt from the paper's text, and the readings of its
// search space. docs/planner.md, Sweeps, says where each figure comes from.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "planner/sweep/costs.h"

namespace lorad::planner {

// Read (5.1): batch 8 takes 10 % longer than batch 1; 8 adapters computed one after another take
// 3.6 times as long, so that one adapter's share is (3.6 - 1.1) / 7.
inline constexpr double kPloraSample = 0.1 / 7;
inline constexpr double kPloraAdapterAlone = (3.6 - 1.1) / 7;
// Read (table 7): packed, 2, 8 and 32 adapters run 1.97, 7.78 and 28.4 times as fast as one after
// another (means of the table's rows); fitted by least squares: each adapter beyond the first adds
// this much of that share.
inline constexpr double kPloraAdapterPacked = kPloraAdapterAlone * 0.0042;

struct PloraModel {
  const char* name;
  double measured;  // read (7.2): how many times shorter than with one configuration a GPU
  int least_gpus;   // read (7.2): that hold one configuration
  double base_gb, adapter_gb, sample_gb;  // an adapter of rank 64, one sequence of a batch
};

// Qwen-2.5-7B. Read (3.2): 18.2 GB with one adapter, 20.4 with two: 2.2 a configuration, 16.0
// without any; an adapter of rank 64 is 243 MB. Read (A.1): gradients and AdamW's moments are 3
// more of these. What is left of 2.2 GB is taken as the activations of one sequence.
inline constexpr PloraModel kPlora7B = {"Qwen-2.5-7B", 6.52, 1, 16.0, 0.243, 2.2 - 4 * 0.243};

// The others' bytes are not in the text. Inferred from their published shapes: weights in two bytes
// and 0.77 GB as for the 7B; 243 MB is what rank 64 takes on the MLP's three projections of the 7B,
// so it is on theirs; activations as layers times hidden size.
inline std::vector<PloraModel> PloraModels() {
  const auto scaled = [](const char* name, double measured, int gpus, double parameters, int layers,
                         int hidden, int ffn) {
    return PloraModel{name,
                      measured,
                      gpus,
                      2 * parameters + 0.77,
                      2e-9 * 64 * 3 * (hidden + ffn) * layers,
                      kPlora7B.sample_gb * layers * hidden / (28 * 3584)};
  };
  return {kPlora7B,
          scaled("Qwen-2.5-3B", 7.08, 1, 3.09, 36, 2048, 11008),
          scaled("Qwen-2.5-14B", 6.51, 2, 14.8, 48, 5120, 13824),
          scaled("Qwen-2.5-32B", 6.33, 4, 32.8, 64, 5120, 27648),
          scaled("LLaMa-3.2-3B", 7.52, 1, 3.21, 28, 3072, 8192),
          scaled("LLaMa-3.1-8B", 6.78, 1, 8.03, 32, 4096, 14336)};
}

// Seconds are in units of one iteration with one adapter at batch 1 on the fewest GPUs.
inline SweepCosts PloraCosts(int gpus_max, const PloraModel& model = kPlora7B,
                             bool packed_kernels = true) {
  SweepCosts costs;
  costs.base_bytes = std::llround(model.base_gb * 1e9);
  costs.rank_bytes = std::llround(4 * model.adapter_gb * 1e9 / 64);
  costs.sample_bytes = std::llround(model.sample_gb * 1e9);
  costs.gpu_bytes = 40'000'000'000;
  costs.load_factor = 1;  // "up to 10" adapters at 2.2 GB is all of the memory
  costs.sample_s = kPloraSample;
  costs.adapter_s = packed_kernels ? kPloraAdapterPacked : kPloraAdapterAlone;
  costs.iteration_s = 1 - costs.sample_s - costs.adapter_s;
  // Read (5.1): the 14B on two GPUs and the 32B on four behave as the 7B on one. Assumed beyond, as
  // the text has no figure: tensor parallelism divides what samples and adapters add, and leaves
  // the rest of an iteration as long as it is.
  for (int gpus = model.least_gpus; gpus <= gpus_max; gpus *= 2) {
    costs.degrees.push_back({gpus, 1, static_cast<double>(model.least_gpus) / gpus});
  }
  return costs;
}

// Ranks 8 to 128 and the given batches in powers of two, each as often as makes 120 with learning
// rates and alphas. Every configuration trains on the same `samples`, or makes as many steps.
inline std::vector<SweepConfiguration> PloraGrid(const std::vector<int64_t>& batches,
                                                 bool same_samples, size_t count = 120) {
  std::vector<SweepConfiguration> grid;
  while (grid.size() < count) {
    for (int64_t rank : {8, 16, 32, 64, 128}) {
      for (int64_t batch : batches) {
        if (grid.size() == count) break;
        grid.push_back({"r" + std::to_string(rank) + "-b" + std::to_string(batch) + "-" +
                            std::to_string(grid.size()),
                        rank, batch, same_samples ? 3200 / batch : 3200});
      }
    }
  }
  return grid;
}

// All of table 1's batches, shares falling as batch^-power (largest remainders), ranks in turn.
inline std::vector<SweepConfiguration> PloraMix(double power, bool same_samples,
                                                size_t count = 120) {
  const std::vector<int64_t> batches = {1, 2, 4, 8, 16, 32};
  double sum = 0;
  for (int64_t batch : batches) sum += std::pow(static_cast<double>(batch), -power);
  std::vector<std::pair<double, size_t>> remainders;
  std::vector<size_t> counts;
  size_t given = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    const double share =
        static_cast<double>(count) * std::pow(static_cast<double>(batches[i]), -power) / sum;
    counts.push_back(static_cast<size_t>(share));
    given += counts.back();
    remainders.emplace_back(static_cast<double>(counts.back()) - share, i);
  }
  std::sort(remainders.begin(), remainders.end());
  for (size_t i = 0; given < count; ++i, ++given) ++counts[remainders[i].second];
  std::vector<SweepConfiguration> mix;
  const int64_t ranks[] = {8, 16, 32, 64, 128};
  for (size_t i = 0; i < batches.size(); ++i) {
    for (size_t n = 0; n < counts[i]; ++n) {
      const int64_t rank = ranks[mix.size() % 5];
      mix.push_back({"r" + std::to_string(rank) + "-b" + std::to_string(batches[i]) + "-" +
                         std::to_string(mix.size()),
                     rank, batches[i], same_samples ? 3200 / batches[i] : 3200});
    }
  }
  return mix;
}

}  // namespace lorad::planner
