#include "planner/scenario/fit.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/scenario/fields.h"
#include "planner/solve/least_squares.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kRowsMax = 1'000'000;
constexpr int64_t kTokensMax = int64_t{1} << 40;
constexpr double kSquaresMax = 1e24;
constexpr int64_t kBytesMax = int64_t{1} << 50;
constexpr int64_t kFittedFrom = 4;  // observations before errors of predictions count

std::vector<FitScenario::Microbatch> ReadMicrobatches(Fields& fields, const std::string& name,
                                                      bool measured) {
  std::vector<FitScenario::Microbatch> microbatches;
  for (Fields& entry : fields.Objects(name, {.max = kRowsMax, .required = false})) {
    FitScenario::Microbatch microbatch;
    microbatch.tokens = entry.Number("tokens", {.min = 1, .max = static_cast<double>(kTokensMax)});
    microbatch.squared_lengths = entry.Number("squared_lengths", {.min = 0, .max = kSquaresMax});
    microbatch.adapter_work =
        entry.Number("adapter_work", {.min = 0, .max = kSquaresMax, .fallback = 0});
    if (measured) microbatch.ms = entry.Number("ms", {.min = 1e-6, .max = 1e12});
    microbatches.push_back(microbatch);
  }
  return microbatches;
}

std::vector<MemoryFit::Peak> ReadPeaks(Fields& fields, const std::string& name, bool measured) {
  std::vector<MemoryFit::Peak> peaks;
  for (Fields& entry : fields.Objects(name, {.max = kRowsMax, .required = false})) {
    MemoryFit::Peak peak;
    peak.counted_bytes = entry.Int64("counted_bytes", {.min = 1, .max = kBytesMax});
    peak.tokens = entry.Int64("tokens", {.min = 1, .max = kTokensMax});
    peak.squared_lengths = entry.Int64("squared_lengths", {.min = 0, .max = kBytesMax});
    if (measured) peak.peak_bytes = entry.Int64("peak_bytes", {.min = 1, .max = kBytesMax});
    peaks.push_back(peak);
  }
  return peaks;
}

FitScenario Read(Fields& fields) {
  FitScenario scenario;
  const size_t before = fields.violations();
  scenario.microbatches = ReadMicrobatches(fields, "microbatches", true);
  scenario.peaks = ReadPeaks(fields, "peaks", true);
  const bool known = fields.violations() == before;
  if (known && scenario.microbatches.empty() && scenario.peaks.empty()) {
    fields.Violate("", "has neither microbatches nor peaks", "give what was measured");
  }
  scenario.microbatches_to_come = ReadMicrobatches(fields, "microbatches_to_come", false);
  scenario.peaks_to_come = ReadPeaks(fields, "peaks_to_come", false);
  if (known && scenario.microbatches.empty() && !scenario.microbatches_to_come.empty()) {
    fields.Violate("microbatches_to_come", "stands without microbatches", "give measured ones");
  }
  if (known && scenario.peaks.empty() && !scenario.peaks_to_come.empty()) {
    fields.Violate("peaks_to_come", "stands without peaks", "give measured ones");
  }
  return scenario;
}

// Infinity and NaN are no JSON.
ordered_json Finite(double x) { return std::isfinite(x) ? ordered_json(x) : ordered_json(nullptr); }

ordered_json ToJson(const Prediction& prediction) {
  return {{"value", prediction.value},
          {"low", prediction.low},
          {"high", Finite(prediction.high)},
          {"outside", Finite(prediction.outside)}};
}

Terms<4> TermsOf(const FitScenario::Microbatch& microbatch) {
  return {1, microbatch.tokens, microbatch.squared_lengths, microbatch.adapter_work};
}

void FitTime(const FitScenario& scenario, PlanResult* result) {
  if (scenario.microbatches.empty()) return;
  NonNegativeFit<4> fit;
  double errors = 0;
  int64_t predicted = 0;
  for (const FitScenario::Microbatch& microbatch : scenario.microbatches) {
    if (fit.observations() >= kFittedFrom) {
      errors += std::abs(fit.Predict(TermsOf(microbatch)).value / microbatch.ms - 1);
      ++predicted;
    }
    fit.Observe(TermsOf(microbatch), microbatch.ms, 1 / (microbatch.ms * microbatch.ms));
  }
  const Terms<4> x = fit.Fit();
  const double mean_error = predicted > 0 ? errors / static_cast<double>(predicted) : std::nan("");
  absl::StrAppend(&result->text, "time: ", x[0], " + ", x[1], " tokens + ", x[2], " squares + ",
                  x[3], " adapters ms (", fit.observations(), " microbatches");
  if (predicted > 0) {
    absl::StrAppendFormat(&result->text, ", mean error of predictions %.3f %%", 100 * mean_error);
  }
  absl::StrAppend(&result->text, ")\n");
  ordered_json& json = result->json["time"];
  json = {{"constant_ms", x[0]},
          {"token_ms", x[1]},
          {"squared_ms", x[2]},
          {"adapter_ms", x[3]},
          {"observations", fit.observations()},
          {"mean_error", Finite(mean_error)},
          {"predictions", ordered_json::array()}};
  for (const FitScenario::Microbatch& microbatch : scenario.microbatches_to_come) {
    const double value = fit.Predict(TermsOf(microbatch)).value;
    const double weight = value > 0 ? 1 / (value * value) : 1;
    const Prediction prediction = fit.Predict(TermsOf(microbatch), {}, 1e-9, weight);
    absl::StrAppend(&result->text, microbatch.tokens, " tokens, ", microbatch.squared_lengths,
                    " squares, ", microbatch.adapter_work, " adapters, ms: ", prediction.ToText(),
                    "\n");
    json["predictions"].push_back(ToJson(prediction));
  }
}

void FitMemory(const FitScenario& scenario, PlanResult* result) {
  if (scenario.peaks.empty()) return;
  MemoryFit fit;
  for (const MemoryFit::Peak& peak : scenario.peaks) fit.Observe(peak);
  const MemoryCoefficients b = fit.Fit();
  absl::StrAppend(&result->text, "memory: ", fit.ToText(), "\n");
  ordered_json& json = result->json["memory"];
  json = {{"constant_bytes", b.constant},
          {"token_bytes", b.token},
          {"squared_bytes", b.squared},
          {"observations", fit.observations()},
          {"mean_error", Finite(fit.mean_error())},
          {"predictions", ordered_json::array()}};
  for (const MemoryFit::Peak& peak : scenario.peaks_to_come) {
    const Prediction prediction =
        fit.Predict(peak.counted_bytes, peak.tokens, peak.squared_lengths);
    absl::StrAppend(&result->text, peak.counted_bytes, " bytes counted, ", peak.tokens, " tokens, ",
                    peak.squared_lengths, " squares, bytes: ", prediction.ToText(), "\n");
    json["predictions"].push_back(ToJson(prediction));
  }
}

}  // namespace

absl::StatusOr<FitScenario> ReadFit(const json& scenario) {
  return ReadScenario<FitScenario>(scenario, Read);
}

absl::Status CheckFit(const json& scenario) { return ReadFit(scenario).status(); }

absl::StatusOr<PlanResult> RunFit(const json& json_scenario) {
  const auto scenario = ReadFit(json_scenario);
  if (!scenario.ok()) return scenario.status();
  PlanResult result;
  FitTime(*scenario, &result);
  FitMemory(*scenario, &result);
  return result;
}

}  // namespace lorad::planner::scenario
