// Non-negative least squares of a few terms, online: y ~ sum_i x_i f_i, x >= 0. The memory beyond
// the counted bytes is of this kind, with the terms f = (1, tokens, sum of squared lengths), and
// the time of a microbatch, which has one term more for adapters (LobRA, appendix D; mLoRA 3.4).
//
// A prediction comes with an interval, and says how far outside the observed terms it lies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lorad::planner {

template <size_t kTerms>
using Terms = std::array<double, kTerms>;

// In the unit of the responses.
struct Prediction {
  double value = 0;
  // A new observation lies inside with 95 %, were the errors normal and independent (conditional on
  // which coefficients are zero). From 0 to infinity where too little was observed to say: hardly
  // more observations than coefficients, or terms in a proportion that is not of those observed
  // (all microbatches alike leave open how their time splits).
  double low = 0;
  double high = 0;
  // 0 inside the observed range of every term; 0.5: a term half as large again as the largest
  // observed, or the smallest observed half as large again as it. Infinite before any observation,
  // and where a term is zero that never was, or the other way round.
  double outside = 0;

  // "812 (790 to 834)", with ", 50 % outside the observed range" where that is so.
  std::string ToText() const;
};

// A value type; O(1) memory and O(1) an operation: a fit solves 2^n systems of n terms, which are 3
// or 4.
template <size_t kTerms>
class NonNegativeFit {
 public:
  // Each observation scales the weight of those before it by 1 - 1 / memory; 0: nothing fades.
  explicit NonNegativeFit(double memory = 0) : memory_(memory) {}

  // Finite, terms >= 0, weight > 0 (asserted). The error's variance is assumed to go with
  // 1 / weight: weight 1 / y^2 fits relative errors.
  void Observe(const Terms<kTerms>& terms, double response, double weight = 1);
  int64_t observations() const { return observations_; }

  // The minimum over x >= 0 of the weighted squares, exact: the best of the sets of terms that may
  // be positive. `prior_weight` of a mean observation pulls each coefficient towards `prior`, and
  // so decides the directions that were never observed. What counts is by which share of its prior
  // a coefficient is off; of one that is 0, which share of a mean response it takes. So with the
  // relative variance of the noise for the weight that is the most likely x of those that lie
  // about their prior within a factor of two.
  Terms<kTerms> Fit(const Terms<kTerms>& prior = {}, double prior_weight = 1e-9) const;
  // For a new observation of `terms` with `weight`, by Fit's coefficients.
  Prediction Predict(const Terms<kTerms>& terms, const Terms<kTerms>& prior = {},
                     double prior_weight = 1e-9, double weight = 1) const;
  // What was observed over what `prior` says of the same, in the mean; 1 where it says nothing.
  // REQUIRES: the first term is constant.
  double LevelOf(const Terms<kTerms>& prior) const;
  // The share of the squared responses that x leaves open: 0, all is met, to 1.
  double Misfit(const Terms<kTerms>& x) const;
  // In the mean of the observations; 0 before the first. REQUIRES: the first term is 1.
  Terms<kTerms> MeanTerms() const;
  double count() const { return count_; }  // of observations, faded
  // By how much what `terms` take may be off for want of observations, as a standard deviation, by
  // Fit's own assumptions: small in the proportions that were observed, the prior's own error in
  // others. 0 before the first observation.
  double Uncertainty(const Terms<kTerms>& terms, const Terms<kTerms>& prior,
                     double prior_weight) const;
  // See Prediction::outside.
  double Outside(const Terms<kTerms>& terms) const;
  // Each of the terms, or the end of its observed range that is nearest. REQUIRES: an observation.
  Terms<kTerms> Nearest(const Terms<kTerms>& terms) const;

  // All that it knows, to be kept, in the sequence of the members below.
  static constexpr size_t kSums = kTerms * kTerms + 3 * kTerms + 5;
  std::vector<double> sums() const;
  // False, and nothing changed, where that was never anybody's sums().
  bool SetSums(const std::vector<double>& sums);

 private:
  using Matrix = std::array<Terms<kTerms>, kTerms>;
  // The equations with every term scaled to its observed size, the prior in.
  struct Scaled {
    Matrix products;
    Terms<kTerms> responses;
    Terms<kTerms> scale;
  };
  Scaled Scale(const Terms<kTerms>& prior, double prior_weight) const;
  // terms^T E^-1 terms of the equations E, over those of the terms that x takes; nothing where they
  // leave it open.
  std::optional<double> Leverage(const Terms<kTerms>& terms, const Terms<kTerms>& x,
                                 const Scaled& equations) const;
  // Whether the terms of `subset` (bits) are a combination of observed ones.
  bool Observed(const Terms<kTerms>& terms, unsigned subset) const;

  double memory_;
  Matrix products_{};          // sum of w f f^T
  Terms<kTerms> responses_{};  // sum of w f y
  double squared_ = 0;         // sum of w y^2
  double weight_ = 0;          // sum of w
  double count_ = 0;           // observations, faded
  double count_squares_ = 0;   // sum of squared fading factors
  int64_t observations_ = 0;
  Terms<kTerms> least_{}, largest_{};  // observed
};

// The 97.5 % quantile of Student's t; degrees >= 1 (asserted). Within 0.1 % of the tables.
double StudentQuantile(double degrees);

}  // namespace lorad::planner
