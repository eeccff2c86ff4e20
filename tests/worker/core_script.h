// The worker's core in tests that read like scripts: what happens, and in words what it wants done.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/core/core.h"

namespace lorad::worker {

using Lines = std::vector<std::string>;

inline std::string ToText(const v1::Operation& operation) {
  const std::string kind = v1::Operation::Kind_Name(operation.kind());
  if (operation.microbatch() > 0) return absl::StrCat(kind, " ", operation.microbatch());
  return absl::StrCat(kind, " ", operation.job(), " ", operation.step());
}

inline std::string ToText(const v1::Report& report) {
  switch (report.content_case()) {
    case v1::Report::kGroupFormed:
      return "GroupFormed";
    case v1::Report::kGroupFailed:
      return absl::StrCat("GroupFailed ", report.group_failed().reason());
    case v1::Report::kConnected:
      return absl::StrCat("Connected in ", report.connected().connect_seconds(), " s");
    case v1::Report::kSlotFailed:
      return absl::StrCat("SlotFailed ", report.slot_failed().job(), " ",
                          report.slot_failed().reason());
    case v1::Report::kStepDone:
      return absl::StrCat("StepDone ", report.step_done().job(), " ", report.step_done().step());
    case v1::Report::kSaved:
      return absl::StrCat("Saved ", report.saved().job(), " ", report.saved().step());
    case v1::Report::kSaveDelayed:
      return absl::StrCat("SaveDelayed ", report.save_delayed().job(), " ",
                          report.save_delayed().step(), " ", report.save_delayed().message());
    case v1::Report::kWindowDone:
      return absl::StrCat("WindowDone ", report.window_done().window(), ", ",
                          report.window_done().dropped_operations(), " dropped");
    default:
      return "another report";
  }
}

struct EffectText {
  std::string operator()(const Dial& e) const {
    return absl::StrCat("dial ", e.stream, ", epoch ", e.hello.epoch());
  }
  std::string operator()(const HangUp& e) const { return absl::StrCat("hang up ", e.stream); }
  std::string operator()(const Say& e) const {
    if (e.message.has_heartbeat()) {
      return absl::StrCat("say heartbeat of epoch ", e.message.heartbeat().epoch());
    }
    if (e.message.has_cut_answer()) {
      return absl::StrCat("say first not enqueued ", e.message.cut_answer().first_not_enqueued());
    }
    if (e.message.has_leaving()) return "say that it leaves";
    const v1::Report& report = e.message.report();
    return absl::StrCat("say ", report.epoch(), ".", report.number(), " ", ToText(report));
  }
  std::string operator()(const FormGroup& e) const {
    return absl::StrCat("form group of epoch ", e.order.epoch());
  }
  std::string operator()(const Connect& e) const {
    return absl::StrCat("connect ", e.order.endpoints_size(), " stages, lease ", e.lease_ms, " ms");
  }
  std::string operator()(const LeaveGroup&) const { return "leave group"; }
  std::string operator()(const DropWeights&) const { return "drop weights"; }
  std::string operator()(const BeginWindow& e) const {
    return absl::StrCat("begin window ", e.window->number());
  }
  std::string operator()(const Execute& e) const { return ToText(*e.operation); }
  std::string operator()(const EndWindow& e) const {
    std::string text = "end window";
    for (const std::string& job : e.cut_jobs) absl::StrAppend(&text, ", drop batch of ", job);
    return text;
  }
  std::string operator()(const GiveUpReceive&) const { return "give up receive"; }
  std::string operator()(const Upload& e) const {
    return absl::StrCat("upload ", e.upload, ": ", e.header.job(), " ", e.header.step(), " within ",
                        e.timeout_ms, " ms");
  }
  std::string operator()(const CancelCalls&) const { return "cancel calls"; }
  std::string operator()(const ReadMemory&) const { return "read memory"; }
  std::string operator()(const SetTimer&) const { return ""; }
  std::string operator()(const Note&) const { return ""; }
  std::string operator()(const End& e) const { return absl::StrCat("end: ", e.status.ToString()); }
};

class Script {
 public:
  explicit Script(int64_t grace_ms = CoreOptions().grace_ms)
      : core_({.hello = MakeHello(), .grace_ms = grace_ms}) {}

  // What the core wants done about this. Notes and timers are not told of, but timers fire (Wait).
  Lines Happens(decltype(Event::content) content) {
    Lines lines;
    for (const Effect& effect : core_.Apply({now_ms_, std::move(content)})) {
      if (const auto* timer = std::get_if<SetTimer>(&effect)) timer_at_ms_ = timer->at_ms;
      std::string text = std::visit(EffectText(), effect);
      if (!text.empty()) lines.push_back(std::move(text));
    }
    return lines;
  }
  // What it wants done while that time goes by, up to the first of it.
  std::vector<Effect> Effects(double ms) {
    const double until_ms = now_ms_ + ms;
    std::vector<Effect> effects;
    while (effects.empty() && timer_at_ms_.has_value() && *timer_at_ms_ <= until_ms) {
      now_ms_ = *std::exchange(timer_at_ms_, std::nullopt);
      effects = core_.Apply({now_ms_, TimerFired{}});
      std::erase_if(effects, [this](const Effect& effect) {
        const auto* timer = std::get_if<SetTimer>(&effect);
        if (timer != nullptr) timer_at_ms_ = timer->at_ms;
        return timer != nullptr;
      });
    }
    return effects;
  }
  // Time goes by. Heartbeats are left out.
  Lines Wait(double ms) {
    const double until_ms = now_ms_ + ms;
    Lines lines;
    while (timer_at_ms_.has_value() && *timer_at_ms_ <= until_ms) {
      now_ms_ = *std::exchange(timer_at_ms_, std::nullopt);
      for (std::string& line : Happens(TimerFired{})) {
        if (line != "read memory") lines.push_back(std::move(line));
      }
    }
    now_ms_ = until_ms;
    return lines;
  }

  // ---- the coordinator ----
  Lines Hears(v1::CoordinatorMessage message) {
    return Happens(CoordinatorSaid{stream, std::move(message)});
  }
  Lines Welcome(bool adopted, int32_t lease_ms = 10'000) {
    v1::CoordinatorMessage message;
    message.mutable_welcome()->set_adopted(adopted);
    message.mutable_welcome()->set_lease_ms(lease_ms);
    return Hears(std::move(message));
  }
  Lines Form(int64_t epoch) {
    v1::CoordinatorMessage message;
    message.mutable_form_group()->set_group("g");
    message.mutable_form_group()->set_epoch(epoch);
    return Hears(std::move(message));
  }
  Lines FormStages(int64_t epoch, int32_t stages) {
    v1::CoordinatorMessage message;
    message.mutable_form_group()->set_group("g");
    message.mutable_form_group()->set_epoch(epoch);
    message.mutable_form_group()->set_stage(1);
    message.mutable_form_group()->set_stages(stages);
    return Hears(std::move(message));
  }
  Lines Connect(int64_t epoch, int endpoints) {
    v1::CoordinatorMessage message;
    message.mutable_connect()->set_epoch(epoch);
    for (int i = 0; i < endpoints; ++i) message.mutable_connect()->add_endpoints("here");
    return Hears(std::move(message));
  }
  Lines Cut(int64_t epoch) {
    v1::CoordinatorMessage message;
    message.mutable_cut()->set_epoch(epoch);
    return Hears(std::move(message));
  }
  Lines CutAt(int64_t epoch, int64_t first_dropped) {
    v1::CoordinatorMessage message;
    message.mutable_cut_at()->set_epoch(epoch);
    message.mutable_cut_at()->set_first_dropped(first_dropped);
    return Hears(std::move(message));
  }
  Lines Dissolve(int64_t epoch) {
    v1::CoordinatorMessage message;
    message.mutable_dissolve_group()->set_epoch(epoch);
    return Hears(std::move(message));
  }
  Lines Breaks(absl::Status status = absl::UnavailableError("gone")) {
    return Happens(StreamBroke{stream++, std::move(status)});
  }

  // ---- the engine ----
  Lines Done() { return Happens(EngineDone{true}); }
  Lines DoneStaged(int64_t bytes = 1000) { return Happens(EngineDone{true, bytes}); }
  Lines Fails(absl::Status status) { return Happens(EngineDone{std::move(status)}); }
  Lines Uploaded(int64_t upload, absl::Status status = absl::OkStatus()) {
    return Happens(UploadDone{upload, std::move(status), "hash"});
  }
  // Dialled, welcomed, and a group of epoch 1 formed.
  void Begin() {
    Happens(Started{});
    Welcome(false);
    Form(1);
    Done();
  }

  WorkerCore& core() { return core_; }
  int64_t stream = 1;  // the one that stands, or is dialled next

 private:
  static v1::Hello MakeHello() {
    v1::Hello hello;
    hello.set_worker("w");
    hello.set_numerics_id("numerics");
    return hello;
  }

  WorkerCore core_;
  double now_ms_ = 1000;
  std::optional<double> timer_at_ms_;
};

// A window, operation by operation. Microbatches hold one row of the jobs named.
class WindowOf {
 public:
  WindowOf(int64_t epoch, int64_t number) {
    message_.mutable_window()->set_epoch(epoch);
    message_.mutable_window()->set_number(number);
  }
  WindowOf& Train(int64_t microbatch, const std::vector<std::string>& jobs) {
    v1::Microbatch& added = *message_.mutable_window()->add_microbatches();
    added.set_number(microbatch);
    for (const std::string& job : jobs) added.add_segments()->set_job(job);
    Add(v1::Operation::FORWARD).set_microbatch(microbatch);
    Add(v1::Operation::BACKWARD).set_microbatch(microbatch);
    return *this;
  }
  // A stage between two others.
  WindowOf& Pass(int64_t microbatch, const std::vector<std::string>& jobs) {
    v1::Microbatch& added = *message_.mutable_window()->add_microbatches();
    added.set_number(microbatch);
    for (const std::string& job : jobs) added.add_segments()->set_job(job);
    for (const auto kind : {v1::Operation::RECV, v1::Operation::FORWARD, v1::Operation::SEND}) {
      Add(kind).set_microbatch(microbatch);
    }
    return *this;
  }
  WindowOf& Step(const std::string& job, int64_t step) {
    return Of(v1::Operation::STEP, job, step);
  }
  WindowOf& Save(const std::string& job, int64_t step) {
    return Of(v1::Operation::SAVE, job, step);
  }
  WindowOf& Load(const std::string& job) { return Of(v1::Operation::LOAD_SLOT, job, 0); }
  WindowOf& Free(const std::string& job) { return Of(v1::Operation::FREE_SLOT, job, 0); }
  operator v1::CoordinatorMessage() const { return message_; }

 private:
  WindowOf& Of(v1::Operation::Kind kind, const std::string& job, int64_t step) {
    v1::Operation& operation = Add(kind);
    operation.set_job(job);
    operation.set_step(step);
    return *this;
  }
  v1::Operation& Add(v1::Operation::Kind kind) {
    v1::Operation& operation = *message_.mutable_window()->add_operations();
    operation.set_kind(kind);
    return operation;
  }
  v1::CoordinatorMessage message_;
};

}  // namespace lorad::worker
