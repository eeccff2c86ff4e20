// How early a sweep can end at all: two bounds of every plan whose jobs take a_d + sum of w_k an
// iteration on d GPUs.
//
// The program. Let L be the configurations of at least some number of steps, n(d, l) the iterations
// that jobs on d GPUs make with l members of L, and y_k(d, l) those of them that hold a
// configuration of kind k, counted once for each that they hold. Then
//
//   sum_k M_k y_k <= capacity_d n         memory
//   sum_{k in L} y_k = l n,   y_k <= N_k n
//   sum_{d,l} y_k = N_k S_k               every configuration makes its steps
//   sum d (a_d n + sum_k w_k y_k) <= G T  GPU seconds
//   sum l (a_d n + sum_k w_k y_k) <= |L| T
//
// hold: the last since each of L is in one iteration at a time, and all of them are within T. So
// the least T is a bound, of plans that pause or move configurations too. Beyond
// SweepProblem::LowerBoundSeconds it takes into account that long configurations are slowed down by
// whoever shares their iterations, and that GPUs which they have to themselves are missing
// elsewhere. Many l are taken together, as ranges; then l times the fixed time is sum y_k of L and
// the rest counts with the range's least l.
//
// Rounds. A clock at each GPU counts the fixed seconds a_d alone. Let tau = s min a_d for some
// number of steps s. A configuration that makes p s steps or more without a break passes p
// multiples of tau at least on the clocks of its GPUs, and those who pass one together share
// memory. So with r_g multiples
// on GPU g, c = max capacity_d / d and p_k = floor(S_k / s)
//
//   sum_g r_g >= sum_k p_k N_k M_k / c    whole rounds
//   T >= r_g tau + u_g                    u_g: its share of the work of those with p_k >= 1
//   u_g <= r_g c max W_k / (p_k M_k),   sum_g u_g >= sum W_k
//
// in which the best r_g differ by one at most. This holds for configurations that are neither
// paused nor moved, as all are that PlanSweep plans.
#pragma once

#include "planner/sweep/costs.h"

namespace lorad::planner {

// Whether the programs take seconds at most: up to so many kinds times degrees.
inline constexpr size_t kSweepBoundMax = 256;
bool SweepBoundAffordable(const SweepProblem& problem);

// The larger of both, and no less than LowerBoundSeconds. The program is solved for up to four
// numbers of steps, the largest first, and left out where the solver gives up on it; rounds are
// counted for all.
double SweepBoundSeconds(const SweepProblem& problem);

}  // namespace lorad::planner
