#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// The token that follows a sequence, and what the model makes of it.
struct ChosenToken {
  int32_t token = -1;  // -1: there is none
  double log_probability = std::numeric_limits<double>::quiet_NaN();
};

// Chooses from z [V], the logits: a pure function of these and of temperature T, top_p, seed and
// number; in double.
//   log_probability = z[token] - log sum_i exp(z[i]): before temperature and top_p. The order of the
//   sum is that of the processor's loops (kernels/cpu/loops.h).
//   T = 0: the smallest i of the largest z[i].
//   T > 0: w[i] = exp((z[i] - max z) / T), sums in the order that is said. Of the tokens by w, of
//   equal ones by index, the fewest whose sum reaches top_p of all are kept (0 or 1: all, by index
//   alone), and of these the first whose sum with those before it exceeds u times the kept sum is
//   chosen. u in [0, 1) has the 53 highest of the 64 bits of the first two words of
//   Philox(seed, (number, 0, 0)), the second one above the first; number is two words, the lower one
//   first. So the tokens of an answer are independent, and any of them can be drawn again.
//   Nucleus: Holtzman et al. 2020 (arXiv 1904.09751), section 3.1.
// No token where a logit is NaN or +infinity, or all are -infinity. REQUIRES: at least one logit.
ChosenToken ChooseToken(std::span<const float> logits, const v1::Sampling& sampling);

}  // namespace lorad::worker
