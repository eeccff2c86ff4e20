// When the jobs of a group end, by the time model (planner/cost/time.h). Pure.
//
// A group trains in rounds: in each, every job of the group takes one step. Their steps, S tokens
// together, are packed into microbatches of at most C tokens across batches (mLoRA 3.2, LoRAFusion
// 4.2), S / C of them in the mean and one at least. A microbatch of t tokens, of sequences whose
// squared lengths are q together, and of adapters that take w (time.h) lasts a + b t + c q + d w
// (LobRA, appendix D), so with Q and W of all steps together a round lasts
//   r(S, Q, W) = a max(1, S / C) + b S + c Q + d W
// where each step has kTokensOfStep tokens more in W, for the optimizer.
// As jobs end, rounds get shorter. With the jobs in the order of their remaining steps,
// n_1 <= n_2 <= .. <= n_k, n_0 = 0, s_j the tokens of a step of job j and S_j = s_j + .. + s_k what
// is left of a round once jobs 1 .. j - 1 have ended:
//   end_j = end_(j - 1) + (n_j - n_(j - 1)) r(S_j),   end_0 = 0
//   sum_j end_j = sum_j (k - j + 1) (n_j - n_(j - 1)) r(S_j)
// which takes O(k log k), and O(k) where the jobs are sorted.
//
// Evaluations take part in that: a job does a unit each round, a step or a part of an evaluation,
// while the others of its group train. So n steps of s tokens and p parts of v tokens together are
// n + p rounds, of (n s + f v) / (n + p) tokens in the mean, where f is what an evaluated token
// takes of a trained one's time (TimeModel::EvaluatedShare), and so for what attention and adapters
// take. They are counted as if trained in all that is weighed and measured, so no pace has to know
// which of the two a group did lately. Where a job trains alone in rounds of less than C tokens, a
// part is charged all of a and not its share.
//
// The times of a base model (TimeCoefficients) are of all of it on one device: of a group of S
// stages their sum over the stages. S workers are at S microbatches at once, so every a + b t costs
// a round what it takes on the slowest stage, which does a share p of the work:
//   a_S = p a,  b_S = p b,  c_S = p c,  d_S = p d;  p = 1 / S where stages are equal, the bubble aside
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/cost/time.h"

namespace lorad::planner {

// Evaluations that a job still has to do.
struct EvaluationWork {
  int64_t parts = 0;           // of one round each
  int64_t tokens = 0;          // of all parts together
  double squared_lengths = 0;  // likewise; 0: unknown

  bool operator==(const EvaluationWork&) const = default;
};

// What a job still has to do.
struct JobWork {
  Workload step;                // of one of its rounds, as if trained
  int64_t remaining_steps = 0;  // rounds: its steps, and parts of evaluations

  bool operator==(const JobWork&) const = default;
};

// Of so many tokens, and an adapter of so many parameters.
Workload WorkloadOf(double tokens, double squared_lengths, int64_t adapter_parameters);
// Of the optimizer's pass over it alone.
Workload OptimizerOf(int64_t adapter_parameters);
// A step of these: with the optimizer's pass.
Workload StepOf(double tokens, double squared_lengths, int64_t adapter_parameters);
// That work, of steps alone, and those evaluations.
JobWork WithEvaluations(const JobWork& steps, const EvaluationWork& evaluations,
                        int64_t adapter_parameters, double evaluated_share);

// Of a group of stages the slowest of which does that share of the work (stages/blocks.h).
TimeCoefficients OfPipeline(const TimeCoefficients& times, double slowest_share);

// r(S, Q, W), in milliseconds. `capacity` (C) is of a microbatch, in tokens, above 0.
double RoundMs(const TimeCoefficients& times, const Workload& round, int64_t capacity);

// By which share a group computes more a second if a job of such steps comes, or how much less time
// the work of both takes together than with microbatches as full as they are now:
//   (x + a max(1, S / C) S' / S) / (x + a max(1, S' / C)) - 1
// where S' and x are the tokens and the time without `a` of the round with it. So it goes by what
// is shared alone, whatever ranks and lengths come, and is 0 once the steps fill a microbatch;
// while all jobs are alike it is the rise of the tokens a second. REQUIRES: the round has tokens.
double SharingGain(const TimeCoefficients& times, const Workload& round, const Workload& comes,
                   int64_t capacity);

// The end of each job in the order of `jobs`, in seconds from now, where all train together from
// now on.
std::vector<double> EndsOf(const TimeCoefficients& times, int64_t capacity,
                           const std::vector<JobWork>& jobs);

// The jobs of one group, kept sorted, so that a sum of ends costs O(k).
class Crew {
 public:
  void Add(const JobWork& job);
  void Remove(const JobWork& job);  // REQUIRES: one like it was added
  // The index of one like it. REQUIRES: there is one.
  size_t Find(const JobWork& job) const;
  size_t size() const { return jobs_.size(); }
  const Workload& round() const { return round_; }            // of all their steps
  const std::vector<JobWork>& jobs() const { return jobs_; }  // by remaining steps, then tokens

  // The sum of the ends in seconds, also if one had come, or one of these (an index of jobs()) had
  // left.
  double SumOfEnds(const TimeCoefficients& times, int64_t capacity, const JobWork* comes = nullptr,
                   std::optional<size_t> leaves = std::nullopt) const;
  // When the last of them ends, in seconds, also if one had come; 0 where there is none.
  double LastEnd(const TimeCoefficients& times, int64_t capacity,
                 const JobWork* comes = nullptr) const;

 private:
  // The sum over their ends of the seconds since the one before, times `weigh` of how many jobs
  // there were until then.
  template <class Weigh>
  double SumOver(const TimeCoefficients& times, int64_t capacity, const JobWork* comes,
                 std::optional<size_t> leaves, Weigh weigh) const;

  std::vector<JobWork> jobs_;
  Workload round_;
};

}  // namespace lorad::planner
