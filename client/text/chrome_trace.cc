#include "client/text/chrome_trace.h"

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace lorad::client {
namespace {

using nlohmann::ordered_json;
using Bar = v1::Trace::Bar;
using Bars = google::protobuf::RepeatedPtrField<Bar>;

enum Track { kCompute, kSend, kReceive };
constexpr const char* kTracks[] = {"compute", "send", "receive"};

struct Looks {
  const char* letter;
  const char* category;
};

Looks LooksOf(Bar::Kind kind) {
  switch (kind) {
    case Bar::FORWARD:
      return {"F", "forward"};
    case Bar::BACKWARD:
      return {"B", "backward"};
    case Bar::EVALUATE:
      return {"E", "evaluate"};
    case Bar::ACTIVATIONS:
      return {"f", "activations"};
    case Bar::GRADIENT:
      return {"b", "gradient"};
    default:
      return {"?", "unknown"};
  }
}

// The events of one picture: what was measured, or what was simulated.
class Events {
 public:
  Events(const v1::Trace& trace, int first_process, const char* title)
      : first_process_(first_process) {
    for (const v1::Trace::Microbatch& microbatch : trace.microbatches()) {
      microbatches_[microbatch.number()] = &microbatch;
    }
    for (int stage = 0; stage < trace.stages_size(); ++stage) Name(trace, stage, title);
  }

  void Add(const Bar& bar) {
    const bool moves = bar.kind() == Bar::ACTIVATIONS || bar.kind() == Bar::GRADIENT;
    if (!moves) return Add(bar, bar.stage(), kCompute);
    Add(bar, bar.stage(), kReceive);
    Add(bar, bar.kind() == Bar::ACTIVATIONS ? bar.stage() - 1 : bar.stage() + 1, kSend);
  }

  const ordered_json& events() const { return events_; }

 private:
  void Name(const v1::Trace& trace, int stage, const char* title) {
    const v1::GroupStage& of = trace.stages(stage);
    const int process = first_process_ + stage;
    events_.push_back(
        {{"name", "process_name"},
         {"ph", "M"},
         {"pid", process},
         {"tid", 0},
         {"args", {{"name", absl::StrCat("stage ", stage, " (", of.worker(), ") ", title)}}}});
    events_.push_back({{"name", "process_sort_index"},
                       {"ph", "M"},
                       {"pid", process},
                       {"tid", 0},
                       {"args", {{"sort_index", process}}}});
    for (const Track track : {kCompute, kSend, kReceive}) {
      events_.push_back({{"name", "thread_name"},
                         {"ph", "M"},
                         {"pid", process},
                         {"tid", track},
                         {"args", {{"name", kTracks[track]}}}});
    }
  }

  void Add(const Bar& bar, int stage, Track track) {
    const Looks looks = LooksOf(bar.kind());
    ordered_json arguments = {{"microbatch", bar.microbatch()}};
    if (const auto found = microbatches_.find(bar.microbatch()); found != microbatches_.end()) {
      arguments["tokens"] = found->second->tokens();
      arguments["jobs"] = found->second->jobs();
    }
    events_.push_back({{"name", absl::StrCat(looks.letter, bar.microbatch())},
                       {"cat", looks.category},
                       {"ph", "X"},
                       {"pid", first_process_ + stage},
                       {"tid", track},
                       {"ts", bar.begin_ms() * 1000},  // microseconds
                       {"dur", (bar.end_ms() - bar.begin_ms()) * 1000},
                       {"args", std::move(arguments)}});
  }

  const int first_process_;
  std::map<int64_t, const v1::Trace::Microbatch*> microbatches_;
  ordered_json events_ = ordered_json::array();
};

}  // namespace

std::string ToChromeTrace(const v1::Trace& trace) {
  Events measured(trace, 0, "measured");
  for (const Bar& bar : trace.bars()) measured.Add(bar);
  ordered_json events = measured.events();
  if (trace.simulated_bars_size() > 0) {
    Events simulated(trace, trace.stages_size(), "simulated");
    for (const Bar& bar : trace.simulated_bars()) simulated.Add(bar);
    events.insert(events.end(), simulated.events().begin(), simulated.events().end());
  }
  const ordered_json whole = {{"displayTimeUnit", "ms"},
                              {"otherData",
                               {{"group", trace.group()},
                                {"epoch", trace.epoch()},
                                {"base_model", trace.base_model()},
                                {"bubble_ratio", trace.bubble_ratio()},
                                {"simulated_bubble_ratio", trace.simulated_bubble_ratio()}}},
                              {"traceEvents", std::move(events)}};
  return whole.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace lorad::client
