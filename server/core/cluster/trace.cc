#include "server/core/cluster/trace.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "planner/stages/moments.h"

namespace lorad::server {
namespace {

using planner::MicrobatchMoments;
using planner::StageMoments;
using Bars = google::protobuf::RepeatedPtrField<v1::Trace::Bar>;

struct Part {
  v1::Trace::Bar::Kind kind;
  planner::Span span;
};

std::vector<Part> PartsOf(const MicrobatchMoments& moments) {
  std::vector<Part> parts = {
      {moments.evaluates ? v1::Trace::Bar::EVALUATE : v1::Trace::Bar::FORWARD, moments.forward},
      {v1::Trace::Bar::BACKWARD, moments.backward},
      {v1::Trace::Bar::ACTIVATIONS, moments.activations},
      {v1::Trace::Bar::GRADIENT, moments.gradient}};
  std::erase_if(parts, [](const Part& part) { return part.span.end_ms <= part.span.start_ms; });
  return parts;
}

void AddBars(const std::vector<StageMoments>& stages, Bars* bars) {
  double origin_ms = std::numeric_limits<double>::infinity();
  for (const StageMoments& stage : stages) {
    for (const MicrobatchMoments& moments : stage) {
      for (const Part& part : PartsOf(moments)) {
        origin_ms = std::min(origin_ms, part.span.start_ms);
      }
    }
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const MicrobatchMoments& moments : stages[s]) {
      for (const Part& part : PartsOf(moments)) {
        v1::Trace::Bar& bar = *bars->Add();
        bar.set_kind(part.kind);
        bar.set_stage(static_cast<int32_t>(s));
        bar.set_microbatch(moments.number);
        bar.set_begin_ms(part.span.start_ms - origin_ms);
        bar.set_end_ms(part.span.end_ms - origin_ms);
      }
    }
  }
  std::ranges::stable_sort(*bars, {}, &v1::Trace::Bar::begin_ms);
}

}  // namespace

v1::Trace ToTrace(const MeasuredGroup& measured) {
  v1::Trace trace = measured.trace;
  AddBars(measured.stages, trace.mutable_bars());
  const auto again = planner::RunAgain(measured.stages);
  if (!again.ok()) return trace;
  AddBars(*again, trace.mutable_simulated_bars());
  trace.set_simulated_bubble_ratio(planner::SharesOf(*again).bubble_ratio);
  return trace;
}

}  // namespace lorad::server
