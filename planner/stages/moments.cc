#include "planner/stages/moments.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "planner/window/types.h"

namespace lorad::planner {
namespace {

double LengthOf(const Span& span) { return span.end_ms - span.start_ms; }

bool TookPlace(const Span& span) { return span.end_ms > span.start_ms; }

double Within(const Span& span, const Span& steady) {
  return std::max(0.0,
                  std::min(span.end_ms, steady.end_ms) - std::max(span.start_ms, steady.start_ms));
}

// Those that all stages have computed, ascending.
std::vector<int64_t> Common(const std::vector<StageMoments>& stages) {
  std::vector<int64_t> common;
  for (size_t s = 0; s < stages.size(); ++s) {
    std::vector<int64_t> computed;
    for (const MicrobatchMoments& moments : stages[s]) {
      if (TookPlace(moments.forward)) computed.push_back(moments.number);
    }
    std::ranges::sort(computed);
    if (s == 0) {
      common = std::move(computed);
      continue;
    }
    std::vector<int64_t> both;
    std::ranges::set_intersection(common, computed, std::back_inserter(both));
    common = std::move(both);
  }
  return common;
}

const MicrobatchMoments& At(const StageMoments& stage, int64_t number) {
  return *std::ranges::find(stage, number, &MicrobatchMoments::number);
}

// Of the spans together, where they overlap once.
double UnionWithin(std::vector<Span> spans, const Span& steady) {
  std::ranges::sort(spans, {}, &Span::start_ms);
  double sum = 0, end = steady.start_ms;
  for (const Span& span : spans) {
    sum += Within({std::max(span.start_ms, end), span.end_ms}, steady);
    end = std::max(end, span.end_ms);
  }
  return sum;
}

// What comes to a stage and what its neighbours get from it.
std::vector<Span> TransfersOf(const std::vector<StageMoments>& stages, size_t s) {
  std::vector<Span> spans;
  for (const MicrobatchMoments& moments : stages[s]) {
    spans.push_back(moments.activations);
    spans.push_back(moments.gradient);
  }
  if (s + 1 < stages.size()) {
    for (const MicrobatchMoments& moments : stages[s + 1]) spans.push_back(moments.activations);
  }
  if (s > 0) {
    for (const MicrobatchMoments& moments : stages[s - 1]) spans.push_back(moments.gradient);
  }
  std::erase_if(spans, [](const Span& span) { return !TookPlace(span); });
  return spans;
}

// ---- again ----

// A stage's list, as it was executed, with its transfers where the engine has them: before the
// operation that needs them, behind the one that makes them.
struct Lists {
  std::vector<std::vector<Operation>> operations;  // by stage
  std::map<std::tuple<int, OperationKind, int64_t, bool>, double>
      costs_ms;  // of a transfer: Send's

  void Add(int stage, OperationKind kind, int64_t number, double cost_ms) {
    operations[static_cast<size_t>(stage)].push_back({.kind = kind, .microbatch = number});
    costs_ms[{stage, kind, number, false}] = cost_ms;
  }
  void Receive(int stage, int64_t number, bool gradient, double cost_ms) {
    const int from = gradient ? stage + 1 : stage - 1;
    Operation receive{.kind = OperationKind::kRecv, .microbatch = number};
    receive.peer = from;
    receive.gradient = gradient;
    operations[static_cast<size_t>(stage)].push_back(receive);
    costs_ms[{from, OperationKind::kSend, number, gradient}] = cost_ms;
  }
  void Send(int stage, int64_t number, bool gradient) {
    Operation send{.kind = OperationKind::kSend, .microbatch = number};
    send.peer = gradient ? stage - 1 : stage + 1;
    send.gradient = gradient;
    operations[static_cast<size_t>(stage)].push_back(send);
  }
};

Lists ListsOf(const std::vector<StageMoments>& stages, const std::vector<int64_t>& common) {
  Lists lists;
  lists.operations.resize(stages.size());
  const int last = static_cast<int>(stages.size()) - 1;
  for (int s = 0; s <= last; ++s) {
    std::vector<std::tuple<double, bool, const MicrobatchMoments*>> order;  // begin, backward
    for (const MicrobatchMoments& moments : stages[static_cast<size_t>(s)]) {
      if (!std::ranges::binary_search(common, moments.number)) continue;
      order.emplace_back(moments.forward.start_ms, false, &moments);
      if (!moments.evaluates) order.emplace_back(moments.backward.start_ms, true, &moments);
    }
    std::ranges::sort(order);
    for (const auto& [begin, backward, moments] : order) {
      const int64_t number = moments->number;
      if (backward) {
        if (s < last) lists.Receive(s, number, true, LengthOf(moments->gradient));
        lists.Add(s, OperationKind::kBackward, number, LengthOf(moments->backward));
        if (s > 0) lists.Send(s, number, true);
      } else {
        if (s > 0) lists.Receive(s, number, false, LengthOf(moments->activations));
        lists.Add(s, moments->evaluates ? OperationKind::kEvaluate : OperationKind::kForward,
                  number, LengthOf(moments->forward));
        if (s < last) lists.Send(s, number, false);
      }
    }
  }
  return lists;
}

Span& SpanOf(const Operation& operation, MicrobatchMoments* moments) {
  if (operation.kind == OperationKind::kRecv) {
    return operation.gradient ? moments->gradient : moments->activations;
  }
  return operation.kind == OperationKind::kBackward ? moments->backward : moments->forward;
}

}  // namespace

Shares SharesOf(const std::vector<StageMoments>& stages) {
  Shares shares;
  shares.stages.resize(stages.size());
  const std::vector<int64_t> common = Common(stages);
  if (common.size() < 2) return shares;
  double idle_ms = 0, steady_ms = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const Span steady = {At(stages[s], common.front()).forward.start_ms,
                         At(stages[s], common.back()).forward.start_ms};
    const double length_ms = LengthOf(steady);
    if (length_ms <= 0) return {.stages = std::vector<StageShares>(stages.size())};
    double busy_ms = 0;
    for (const MicrobatchMoments& moments : stages[s]) {
      busy_ms += Within(moments.forward, steady) + Within(moments.backward, steady);
    }
    shares.stages[s] = {.busy = busy_ms / length_ms,
                        .waiting = 1 - busy_ms / length_ms,
                        .transfer = UnionWithin(TransfersOf(stages, s), steady) / length_ms};
    idle_ms += length_ms - busy_ms;
    steady_ms += length_ms;
    shares.steady_ms = std::max(shares.steady_ms, length_ms);
  }
  shares.microbatches = static_cast<int64_t>(common.size()) - 1;
  shares.bubble_ratio = idle_ms / steady_ms;
  return shares;
}

absl::StatusOr<std::vector<StageMoments>> RunAgain(const std::vector<StageMoments>& stages) {
  const Lists lists = ListsOf(stages, Common(stages));
  const auto execution =
      Execute(lists.operations, Buffers(), [&](int stage, const Operation& operation) {
        const auto cost =
            lists.costs_ms.find({stage, operation.kind, operation.microbatch, operation.gradient});
        return cost == lists.costs_ms.end() ? 0 : std::max(cost->second, 0.0);
      });
  if (!execution.ok()) return execution.status();
  std::vector<StageMoments> again(stages.size());
  for (size_t s = 0; s < stages.size(); ++s) {
    std::map<int64_t, MicrobatchMoments> by_number;
    for (size_t i = 0; i < lists.operations[s].size(); ++i) {
      const Operation& operation = lists.operations[s][i];
      if (operation.kind == OperationKind::kSend) continue;
      MicrobatchMoments& moments = by_number[operation.microbatch];
      moments.number = operation.microbatch;
      if (operation.kind == OperationKind::kEvaluate) moments.evaluates = true;
      SpanOf(operation, &moments) = (*execution)[s][i];
    }
    for (auto& [number, moments] : by_number) again[s].push_back(moments);
  }
  return again;
}

}  // namespace lorad::planner
