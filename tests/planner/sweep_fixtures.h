// PLoRA's costs for Qwen-2.5-7B on A100 GPUs of 40 GB, rebuilt from the paper's text, and the
// readings of its search space. docs/planner.md, Sweeps, says where each figure comes from.
#pragma once

#include <string>
#include <vector>

#include "planner/sweep_costs.h"

namespace lorad::planner {

// Seconds are in units of one iteration with one adapter at batch 1 on one GPU.
inline SweepCosts PloraCosts(int gpus_max) {
  SweepCosts costs;
  // Read (3.2): 18.2 GB with one adapter, 20.4 with two: 2.2 a configuration, 16.0 without any; an
  // adapter of rank 64 is 243 MB. Read (A.1): gradients and AdamW's moments are 3 more of these.
  // What is left of 2.2 GB is taken as the activations of one sequence.
  costs.base_bytes = 16'000'000'000;
  costs.rank_bytes = 4 * 243'000'000 / 64;
  costs.sample_bytes = 2'200'000'000 - 4 * 243'000'000;
  costs.gpu_bytes = 40'000'000'000;
  costs.load_factor = 1;  // "up to 10" adapters at 2.2 GB is all of the memory
  // Read (5.1): batch 8 takes 10 % longer than batch 1; 8 adapters computed one after another take
  // 3.6 times as long, so that one adapter's share is (3.6 - 1.1) / 7. Read (table 7): packed, 2, 8
  // and 32 adapters run 1.97, 7.78 and 28.4 times as fast as one after another (means of the
  // table's rows); fitted by least squares: each adapter beyond the first adds 0.0042 of that
  // share.
  const double sample = 0.1 / 7, adapter = (3.6 - 1.1) / 7 * 0.0042;
  costs.iteration_s = 1 - sample - adapter;
  costs.sample_s = sample;
  costs.adapter_s = adapter;
  // Assumed, as the text has no figure: tensor parallelism divides what samples and adapters add,
  // and leaves the rest of an iteration as long as it is.
  for (int gpus = 1; gpus <= gpus_max; gpus *= 2) costs.degrees.push_back({gpus, 1, 1.0 / gpus});
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

}  // namespace lorad::planner
