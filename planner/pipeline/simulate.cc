#include "planner/pipeline/simulate.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lorad::planner {
namespace {

bool IsForward(const Operation& operation) {
  return operation.kind == OperationKind::kForward || operation.kind == OperationKind::kEvaluate ||
         operation.kind == OperationKind::kGenerate;
}

bool IsWork(const Operation& operation) {
  return IsForward(operation) || operation.kind == OperationKind::kBackward ||
         operation.kind == OperationKind::kStep;
}

absl::Status CheckCosts(const Window& window, const SimulateOptions& options) {
  const auto fine = [](double ms) { return std::isfinite(ms) && ms >= 0; };
  if (!fine(options.step_ms)) return absl::InvalidArgumentError("a step's time is not a time");
  for (const Microbatch& microbatch : window.microbatches) {
    const auto found = options.costs.find(microbatch.number);
    if (found == options.costs.end() || found->second.forward_ms.size() != window.stages.size() ||
        found->second.backward_ms.size() != window.stages.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("microbatch ", microbatch.number, " has no time for each stage"));
    }
    const MicrobatchCost& cost = found->second;
    if (!fine(cost.transfer_ms) ||
        !std::all_of(cost.forward_ms.begin(), cost.forward_ms.end(), fine) ||
        !std::all_of(cost.backward_ms.begin(), cost.backward_ms.end(), fine)) {
      return absl::InvalidArgumentError(
          absl::StrCat("microbatch ", microbatch.number, " has a time that is none"));
    }
  }
  return absl::OkStatus();
}

double CostOf(const SimulateOptions& options, int stage, const Operation& operation) {
  if (operation.kind == OperationKind::kStep) return options.step_ms;
  const auto found = options.costs.find(operation.microbatch);
  if (found == options.costs.end()) return 0;  // a Noop
  const size_t s = static_cast<size_t>(stage);
  if (operation.kind == OperationKind::kSend) return found->second.transfer_ms;
  if (IsForward(operation)) return found->second.forward_ms[s];
  return operation.kind == OperationKind::kBackward ? found->second.backward_ms[s] : 0;
}

// When a stage's Forward of a microbatch begins; negative: never.
double StartOf(const std::vector<Operation>& operations, const std::vector<Span>& spans,
               int64_t microbatch) {
  for (size_t i = 0; i < operations.size(); ++i) {
    if (IsForward(operations[i]) && operations[i].microbatch == microbatch) {
      return spans[i].start_ms;
    }
  }
  return -1;
}

void MeasureFlight(const std::vector<Operation>& operations,
                   const std::map<int64_t, int64_t>& tokens, StageSimulation* stage) {
  int64_t in_flight = 0, in_flight_tokens = 0;
  for (const Operation& operation : operations) {
    const bool enters = operation.kind == OperationKind::kForward;
    if (!enters && operation.kind != OperationKind::kBackward) continue;
    in_flight += enters ? 1 : -1;
    in_flight_tokens += enters ? tokens.at(operation.microbatch) : -tokens.at(operation.microbatch);
    stage->in_flight = std::max(stage->in_flight, in_flight);
    stage->in_flight_tokens = std::max(stage->in_flight_tokens, in_flight_tokens);
  }
}

// Busy and idle time of one stage before, in and behind the steady part.
absl::Status MeasureTime(const std::vector<Operation>& operations, const std::vector<Span>& spans,
                         const SimulateOptions& options, double makespan_ms,
                         StageSimulation* stage) {
  double first = makespan_ms, last = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    if (!IsWork(operations[i])) continue;
    first = std::min(first, spans[i].start_ms);
    last = std::max(last, spans[i].end_ms);
  }
  const double from = options.from < 0 ? first : StartOf(operations, spans, options.from);
  const double to = options.to < 0 ? std::max(first, last) : StartOf(operations, spans, options.to);
  if (from < 0 || to < from) {
    return absl::InvalidArgumentError(
        absl::StrCat("no steady part from microbatch ", options.from, " to ", options.to));
  }
  double before = 0, within = 0, behind = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    if (!IsWork(operations[i])) continue;
    const auto [start, end] = spans[i];
    before += std::max(0.0, std::min(end, from) - start);
    within += std::max(0.0, std::min(end, to) - std::max(start, from));
    behind += std::max(0.0, end - std::max(start, to));
  }
  stage->busy_ms = before + within + behind;
  stage->filling_ms = from - before;
  stage->steady_ms = to - from;
  stage->idle_ms = stage->steady_ms - within;
  stage->draining_ms = makespan_ms - to - behind;
  return absl::OkStatus();
}

const char* KindOf(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kForward:
      return "forward";
    case OperationKind::kBackward:
      return "backward";
    case OperationKind::kEvaluate:
      return "evaluate";
    case OperationKind::kGenerate:
      return "generate";
    case OperationKind::kStep:
      return "step";
    case OperationKind::kSend:
    case OperationKind::kRecv:
      return operation.gradient ? "gradient" : "activations";
    default:
      return nullptr;  // takes no time
  }
}

}  // namespace

absl::StatusOr<Simulation> Simulate(const Window& window, const SimulateOptions& options) {
  if (absl::Status status = CheckCosts(window, options); !status.ok()) return status;
  auto execution = Execute(window.stages, options.buffers, [&](int stage, const Operation& o) {
    return CostOf(options, stage, o);
  });
  if (!execution.ok()) return execution.status();
  Simulation simulation;
  simulation.execution = *std::move(execution);
  for (const auto& spans : simulation.execution) {
    for (const Span& span : spans) {
      simulation.makespan_ms = std::max(simulation.makespan_ms, span.end_ms);
    }
  }
  std::map<int64_t, int64_t> tokens;
  for (const Microbatch& microbatch : window.microbatches) {
    tokens[microbatch.number] = Tokens(microbatch);
  }
  double busy = 0, idle = 0, steady = 0;
  for (size_t s = 0; s < window.stages.size(); ++s) {
    StageSimulation& stage = simulation.stages.emplace_back();
    absl::Status status = MeasureTime(window.stages[s], simulation.execution[s], options,
                                      simulation.makespan_ms, &stage);
    if (!status.ok()) return status;
    MeasureFlight(window.stages[s], tokens, &stage);
    busy += stage.busy_ms;
    idle += stage.idle_ms;
    steady += stage.steady_ms;
  }
  const double whole = simulation.makespan_ms * static_cast<double>(window.stages.size());
  simulation.bubble_ratio = steady > 0 ? idle / steady : 0;
  simulation.idle_ratio = whole > 0 ? 1 - busy / whole : 0;
  return simulation;
}

Timeline TimelineOf(const Window& window, const Execution& execution, const std::string& title) {
  Timeline timeline;
  timeline.title = title;
  for (size_t s = 0; s < window.stages.size(); ++s) {
    for (const char* stream : {"compute", "send", "receive"}) {
      timeline.tracks.push_back({absl::StrCat("stage ", s), stream});
    }
    for (size_t i = 0; i < window.stages[s].size(); ++i) {
      const Operation& operation = window.stages[s][i];
      const Span& span = execution[s][i];
      const char* kind = KindOf(operation);
      if (kind == nullptr || span.end_ms <= span.start_ms) continue;
      const int stream = operation.kind == OperationKind::kSend   ? 1
                         : operation.kind == OperationKind::kRecv ? 2
                                                                  : 0;
      const std::string name =
          operation.kind == OperationKind::kStep
              ? absl::StrCat("S ", operation.job, "/", operation.step)
          : stream == 0 ? ToText(operation)
                        : absl::StrCat(operation.gradient ? "b" : "f", operation.microbatch);
      timeline.bars.push_back(
          {static_cast<int>(3 * s) + stream, span.start_ms, span.end_ms, name, kind});
    }
  }
  return timeline;
}

std::string ToText(const Simulation& simulation) {
  std::string text = absl::StrFormat(
      "makespan %.6g ms; bubble ratio %.2f %% in steady state, %.2f %% with filling and draining\n",
      simulation.makespan_ms, 100 * simulation.bubble_ratio, 100 * simulation.idle_ratio);
  for (size_t s = 0; s < simulation.stages.size(); ++s) {
    const StageSimulation& stage = simulation.stages[s];
    absl::StrAppendFormat(
        &text,
        "stage %d: busy %.6g ms; idle %.6g of %.6g ms steady, %.6g filling, %.6g draining; at most "
        "%d microbatches (%d tokens) in flight\n",
        s, stage.busy_ms, stage.idle_ms, stage.steady_ms, stage.filling_ms, stage.draining_ms,
        stage.in_flight, stage.in_flight_tokens);
  }
  return text;
}

}  // namespace lorad::planner
