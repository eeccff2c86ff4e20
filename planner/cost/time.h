// How long a microbatch takes: t = a + b tokens + c sum(len^2) + d sum(tokens x parameters of their
// adapter), forward and backward apart, fitted online from the workers' own timings (LobRA,
// appendix D, for adapters of one rank; d is ours, for adapters that differ).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/solve/least_squares.h"

namespace lorad::planner {

// What is computed, by what its time depends on. Whole numbers, so that sums are exact below 2^53.
struct Workload {
  Workload() = default;
  // Implicit: of tokens alone, attention and adapters aside.
  Workload(double of_tokens, double squares = 0, double of_adapters = 0)  // NOLINT: implicit
      : tokens(of_tokens), squared_lengths(squares), adapter_work(of_adapters) {}

  double tokens = 0;
  double squared_lengths = 0;  // sum over sequences of len^2
  double adapter_work = 0;     // sum over tokens of the parameters of their adapter

  Workload& operator+=(const Workload& other) {
    tokens += other.tokens;
    squared_lengths += other.squared_lengths;
    adapter_work += other.adapter_work;
    return *this;
  }
  Workload& operator-=(const Workload& other) {
    tokens -= other.tokens;
    squared_lengths -= other.squared_lengths;
    adapter_work -= other.adapter_work;
    return *this;
  }
  bool operator==(const Workload&) const = default;
};
inline Workload operator*(double factor, const Workload& work) {
  return {factor * work.tokens, factor * work.squared_lengths, factor * work.adapter_work};
}

// A Step of the optimizer is taken to cost what so many tokens cost an adapter. Measured on a CPU:
// 48 for 4.7 million parameters; on a GPU it was not.
inline constexpr double kTokensOfStep = 64;

// Milliseconds; no coefficient is negative.
struct TimeCoefficients {
  double constant_ms = 0;
  double token_ms = 0;
  double squared_ms = 0;  // of one token^2
  double adapter_ms = 0;  // of one token and one parameter of its adapter

  // Of so many microbatches together.
  double Ms(const Workload& work, double microbatches) const {
    return constant_ms * microbatches + token_ms * work.tokens + squared_ms * work.squared_lengths +
           adapter_ms * work.adapter_work;
  }
};

// As many times as long, and both together.
TimeCoefficients operator*(double factor, const TimeCoefficients& times);
TimeCoefficients operator+(const TimeCoefficients& a, const TimeCoefficients& b);

// Online fit of TimeCoefficients; a value type. Old observations fade: each new one scales what
// came before by `1 - 1 / kMemory`. One alone that is far slower than the one before it (the first:
// than the second), beside what is expected of the two, counts as kOutlier times as slow: a process
// that was stopped, or a device that was cold, says nothing of what follows.
class TimeFit {
 public:
  static constexpr double kMemory = 512;  // microbatches
  static constexpr double kOutlier = 4;
  static constexpr double kNoise = 0.01;  // relative variance, as if seen in so many microbatches:
  static constexpr double kNoiseFrom = 8;
  // So much faster or slower than is assumed of it a device may be, whatever it says.
  static constexpr double kLevelMax = 1e9;

  // `expected`: what was fitted so far.
  void Observe(const Workload& microbatch, double ms, const TimeCoefficients& expected);
  int64_t observations() const { return fit_.observations(); }
  // Non-negative least squares over the observations and over `prior`, made as long in the mean as
  // what was observed (by kLevelMax at most). The prior has the weight of the noise, so it decides
  // the directions that were never observed, and what noise alone says of the others.
  TimeCoefficients Fit(const TimeCoefficients& prior) const;
  // By how much Fit's time of a microbatch may be off for want of observations like it, as a
  // standard deviation in milliseconds; 0 before the first.
  double UncertaintyMs(const Workload& microbatch, const TimeCoefficients& prior) const;
  // How many times as long as by `prior` what was observed took, in the mean; 1 before the first.
  double Level(const TimeCoefficients& prior) const;
  // As NonNegativeFit has them.
  std::vector<double> sums() const { return fit_.sums(); }
  bool SetSums(const std::vector<double>& sums) { return fit_.SetSums(sums); }
  // Of the observations; nothing before the first.
  Workload Mean() const;
  // With every term inside the range in which it was observed. REQUIRES: an observation.
  Workload Nearest(const Workload& microbatch) const;

 private:
  struct Microbatch {
    Workload work;
    double ms = 0;
  };
  void Take(const Microbatch& one, const Microbatch& beside, const TimeCoefficients& expected);
  Terms<4> Levelled(const TimeCoefficients& prior) const;
  double Noise(const Terms<4>& prior) const;

  NonNegativeFit<4> fit_{kMemory};
  std::optional<Microbatch> before_;
  bool has_taken_first_ = false;
};

// Time of a replica of `stages` pipeline stages that runs microbatches one forward, one backward;
// each takes microbatch_ms[m] on one stage (forward and backward):
//   T = sum_m t_m + (stages - 1) max_m t_m        (LobRA, appendix D, equations 10 to 12)
// Without a pipeline (stages = 1) the sum. 0 for no microbatches.
double ReplicaMs(const std::vector<double>& microbatch_ms, int stages);

// The cost of a model before anything was measured.
struct WorkModel {
  double flops_per_token = 0;    // forward: 2 * (parameters of the linear layers + head)
  double flops_per_squared = 0;  // forward attention: 2 * layers * heads * head_size, causal half
  double flops_per_second = 0;   // assumed of the worker
  // Forward, of a token and a parameter of its adapter.
  static constexpr double kFlopsPerAdapter = 2;
};
struct TimePrior {
  TimeCoefficients forward, backward;
};
// backward = 1 x forward for frozen weights (input gradients alone), 2.5 x for attention, 2 x for
// adapters (gradients of inputs and of weights).
TimePrior PriorOf(const WorkModel& work);

// Half of what a float32 product reaches on one AVX2 core, and a quarter of what a bf16 one does on
// an H100. Assumptions, and reported as such (kAssumedBasis).
inline constexpr double kAssumedFlopsPerThread = 4e10;
inline constexpr double kAssumedFlopsPerGpu = 2e14;
inline constexpr const char* kMeasuredBasis = "measured on this base model";
inline constexpr const char* kAssumedBasis = "assumed throughput";

// Forward and backward of one base model on one kind of worker.
class TimeModel {
 public:
  explicit TimeModel(const TimePrior& prior)
      : prior_(prior),
        evaluate_(prior.forward),
        backpropagate_(prior.backward),
        train_(prior.forward + prior.backward) {}
  void Observe(const Workload& microbatch, double forward_ms, double backward_ms);
  double TrainMs(const Workload& work, double microbatches) const;
  double EvaluateMs(const Workload& work, double microbatches) const;
  // What a token that is evaluated takes of the time of one that is trained, in microbatches of so
  // many tokens, with attention and adapters as in those that were trained.
  double EvaluatedShare(double tokens) const;
  const char* basis() const;  // measured from kMeasuredFrom observations on
  // The basis of an estimate for microbatches of this size: basis(), and what more there is to say:
  // how far it extrapolates, where they take longer or shorter by more than a tenth than the
  // nearest in the observed range ("measured on this base model, extrapolated by 50 %"), or by
  // which share their time may be off, where tokens, attention and adapters never stood in such a
  // proportion ("..., uncertain by 80 %"); the larger of the two.
  std::string BasisOf(const Workload& microbatch) const;
  static constexpr int64_t kMeasuredFrom = 4;
  bool is_measured() const { return forward_.observations() >= kMeasuredFrom; }
  // Of a microbatch that trains, forward and backward together, and of one that evaluates.
  const TimeCoefficients& TrainCoefficients() const { return train_; }
  const TimeCoefficients& EvaluateCoefficients() const { return evaluate_; }
  const TimeFit& forward() const { return forward_; }
  const TimeFit& backward() const { return backward_; }
  // What was learned before, of the same; false where that is not to be had from these.
  bool SetSums(const std::vector<double>& forward, const std::vector<double>& backward);
  std::string ToText() const;

 private:
  void Fit();
  TimeCoefficients BackwardPrior() const;

  TimePrior prior_;
  TimeFit forward_, backward_;
  // Of the two and the prior: asked for far more often than something is observed.
  TimeCoefficients evaluate_, backpropagate_, train_;
};

}  // namespace lorad::planner
