// The packing program of LoRAFusion 4.2 as it is written there, on HiGHS. Samples i of adapter
// a(i), bins b, x_ib in {0, 1}, z_b in {0, 1}, k_ab integer:
//   stage 1: min sum_b z_b;  z_b <= z_(b-1);  sum_b x_ib = 1;
//            sum_{i: a(i) = a} len_i x_ib <= P k_ab;  sum_a P k_ab <= C z_b
//   stage 2: with the number of bins fixed, min sum_a P k_(a,last)
// With P = 1 the k_ab go away. Equal solutions are cut off: sample i (in order of falling length)
// goes into one of the first i + 1 bins, samples longer than C/2 have their bin, and bins up to the
// lower bound are used.
// It is the plain form, which tests hold the faster one (pack_search.h) against. Programs of more
// than kPlacesMax x_ib are not begun (kLimit).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/solve/integer_program.h"
#include "planner/window/pack.h"

namespace lorad::planner {

inline constexpr size_t kPlacesMax = 20'000;  // samples * bins

struct PackProgramResult {
  IntegerSolution::Status status = IntegerSolution::Status::kLimit;
  Packing packing;  // of the best solution, if any; its emptied bin last
  int64_t nodes = 0;
};

// Stage 1, from `start` (a packing of all samples) on: never more bins than it has. Errors of
// Minimize; INVALID_ARGUMENT where a sample cannot fit.
absl::StatusOr<PackProgramResult> SolveFewestBins(const std::vector<Sample>& samples,
                                                  const PackOptions& options, const Packing& start,
                                                  const SolveLimits& limits);

// Stage 2: as many bins as `start` has, the last of them as empty as can be.
absl::StatusOr<PackProgramResult> SolveEmptiestLast(const std::vector<Sample>& samples,
                                                    const PackOptions& options,
                                                    const Packing& start,
                                                    const SolveLimits& limits);

}  // namespace lorad::planner
