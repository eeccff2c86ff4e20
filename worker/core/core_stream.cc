// The coordinator: reached, heard, lost; time; the end.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/core_state.h"

namespace lorad::worker {
namespace {

// From the first try to reach a coordinator to its Welcome.
constexpr double kWelcomeMs = 10'000;
// Without a group it says so often less that it lives: a coordinator with many idle workers does
// little else than hear them.
constexpr int64_t kIdle = 2;
// Signals that come closer together are one: a launcher may send its own beside its launcher's.
constexpr double kOneSignalMs = 1000;

// Whether no retry mends it.
bool Final(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsUnimplemented(status) || absl::IsPermissionDenied(status);
}

}  // namespace

// ---- the stream ----

void WorkerCore::State::On(const Started&) {
  pause_ms_ = static_cast<double>(options_.pause_first_ms);
  dial_at_ms_ = away_since_ms_ = idle_since_ms_ = now_ms_;
}

void WorkerCore::State::Dial() {
  link_ = LinkState::kDialling;
  dial_at_ms_ = kNever;
  welcome_by_ms_ = now_ms_ + kWelcomeMs;
  v1::Hello hello = options_.hello;
  hello.set_group(held_.group);
  hello.set_epoch(held_.epoch);
  hello.set_last_report(reports_.last_number());
  hello.set_stage(held_.epoch == 0 ? 0 : stage_);
  hello.set_stages(held_.epoch == 0 ? 0 : stages_);
  hello.set_last_window(last_window_);
  hello_epoch_ = held_.epoch;
  Do(worker::Dial{++stream_, std::move(hello)});
}

void WorkerCore::State::On(CoordinatorSaid& event) {
  if (event.stream != stream_) return;
  if (link_ != LinkState::kDialling && link_ != LinkState::kStands) return;
  const bool welcome = event.message.has_welcome();
  if (welcome != (link_ == LinkState::kDialling)) {
    Log(Note::Level::kWarning, "the coordinator's Welcome did not come first, or came twice");
    return HangUpStream();
  }
  if (welcome) return OnWelcome(event.message.welcome());
  OnOrder(event.message);
}

void WorkerCore::State::OnWelcome(const v1::Welcome& welcome) {
  link_ = LinkState::kStands;
  welcome_by_ms_ = kNever;
  heartbeat_at_ms_ = now_ms_;
  pause_ms_ = static_cast<double>(options_.pause_first_ms);
  if (welcome.heartbeat_ms() > 0) heartbeat_ms_ = welcome.heartbeat_ms();
  if (welcome.lease_ms() > 0) lease_ms_ = welcome.lease_ms();
  Log(Note::Level::kInfo, "registered with the coordinator");
  // What Hello told of may have been given up meanwhile: the coordinator is not to count on it.
  if (welcome.adopted() && held_.epoch != hello_epoch_) {
    Log(Note::Level::kWarning, "the coordinator goes on with a group that is given up");
    return HangUpStream();
  }
  if (held_.epoch != 0 && !welcome.adopted()) GiveUpGroup();
  // The reports that the old stream did not bring over.
  for (const v1::Report& report : reports_.kept()) SayReport(report);
  // It may have been given a group with the Welcome.
  if (told_to_end_ms_ < kNever) SayLeaving();
}

void WorkerCore::State::OnOrder(v1::CoordinatorMessage& message) {
  switch (message.content_case()) {
    case v1::CoordinatorMessage::kFormGroup:
      return OnFormGroup(*message.mutable_form_group());
    case v1::CoordinatorMessage::kConnect:
      return OnConnect(*message.mutable_connect());
    case v1::CoordinatorMessage::kWindow:
      return OnWindow(*message.mutable_window());
    case v1::CoordinatorMessage::kCut:
      return OnCut(message.cut());
    case v1::CoordinatorMessage::kCutAt:
      return OnCutAt(message.cut_at());
    case v1::CoordinatorMessage::kAcknowledge:
      return reports_.Acknowledge(message.acknowledge().epoch(), message.acknowledge().number());
    case v1::CoordinatorMessage::kDissolveGroup:
      return OnDissolve(message.dissolve_group().epoch());
    case v1::CoordinatorMessage::kShutdown:
      Log(Note::Level::kInfo,
          absl::StrCat("shut down by the coordinator: ", message.shutdown().reason()));
      return EndWith(absl::OkStatus());
    default:
      return Log(Note::Level::kWarning, "an order that this version does not know was ignored");
  }
}

void WorkerCore::State::On(const StreamBroke& event) {
  if (event.stream != stream_ || link_ == LinkState::kDown) return;
  if (link_ == LinkState::kStands) away_since_ms_ = now_ms_;
  link_ = LinkState::kDown;
  if (Final(event.status)) return EndWith(event.status);
  if (absl::IsAborted(event.status)) GiveUpGroup();  // we are lost to the coordinator
  if (told_to_end_ms_ < kNever && held_.epoch == 0) return EndWith(absl::OkStatus());
  welcome_by_ms_ = kNever;
  dial_at_ms_ = now_ms_ + pause_ms_;
  Log(Note::Level::kWarning, absl::StrCat("no coordinator: ", event.status.ToString(),
                                          "; trying again in ", pause_ms_, " ms"));
  pause_ms_ = std::min(2 * pause_ms_, static_cast<double>(options_.pause_last_ms));
}

void WorkerCore::State::HangUpStream() {
  if (link_ == LinkState::kStands) away_since_ms_ = now_ms_;
  link_ = LinkState::kHungUp;
  welcome_by_ms_ = kNever;
  Do(HangUp{stream_});
}

void WorkerCore::State::SayReport(const v1::Report& report) {
  if (link_ != LinkState::kStands) return;
  v1::WorkerMessage message;
  *message.mutable_report() = report;
  Do(Say{std::move(message)});
}

void WorkerCore::State::On(const MemoryRead& event) {
  if (link_ != LinkState::kStands) return;
  v1::WorkerMessage message;
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_epoch(held_.epoch);
  heartbeat.set_resident_bytes(event.resident_bytes);
  heartbeat.set_peak_resident_bytes(event.peak_resident_bytes);
  heartbeat.set_clock_us(std::llround(1e3 * now_ms_));
  Do(Say{std::move(message)});
}

// ---- time ----

void WorkerCore::State::On(const TimerFired&) { timer_at_ms_ = kNever; }

void WorkerCore::State::OnTime() {
  if (now_ms_ >= leave_by_ms_) {
    return EndWith(absl::InternalError(absl::StrCat(
        "its engine hangs: it has not left its group for ", options_.leave_ms, " ms")));
  }
  if (now_ms_ >= told_to_end_ms_ + static_cast<double>(options_.grace_ms)) {
    Log(Note::Level::kWarning,
        absl::StrCat("its jobs were not saved within ", options_.grace_ms, " ms: it ends"));
    return EndWith(absl::OkStatus());
  }
  if (now_ms_ >= dial_at_ms_ && !leaving()) Dial();
  if (now_ms_ >= welcome_by_ms_) {
    Log(Note::Level::kWarning, "no Welcome came for our Hello");
    HangUpStream();
  }
  if (link_ == LinkState::kStands) {
    if (now_ms_ < heartbeat_at_ms_) return;
    heartbeat_at_ms_ =
        now_ms_ + static_cast<double>(heartbeat_ms_ * (held_.epoch == 0 ? kIdle : 1));
    Do(ReadMemory{});
  } else if (held_.epoch != 0 && now_ms_ >= away_since_ms_ + static_cast<double>(lease_ms_)) {
    Log(Note::Level::kWarning,
        absl::StrCat("no coordinator for ", lease_ms_, " ms: the group is given up"));
    GiveUpGroup();
    if (told_to_end_ms_ < kNever) EndWith(absl::OkStatus());
  }
}

double WorkerCore::State::NextDue() const {
  double due_ms = std::min({leave_by_ms_, welcome_by_ms_, drop_weights_at_ms_,
                            told_to_end_ms_ + static_cast<double>(options_.grace_ms)});
  if (link_ == LinkState::kStands) due_ms = std::min(due_ms, saves_.NextDue());
  if (!leaving()) due_ms = std::min(due_ms, dial_at_ms_);
  if (link_ == LinkState::kStands) {
    due_ms = std::min(due_ms, heartbeat_at_ms_);
  } else if (held_.epoch != 0) {
    due_ms = std::min(due_ms, away_since_ms_ + static_cast<double>(lease_ms_));
  }
  if (load_at_ms_ > now_ms_) due_ms = std::min(due_ms, load_at_ms_);
  for (const auto& [job, operation] : saves_put_off_) {
    const double ends_ms = saves_.FirstTryEnds(job);  // its next Step may be held until then
    if (ends_ms > now_ms_) due_ms = std::min(due_ms, ends_ms);
  }
  return due_ms;
}

// ---- the process ----

void WorkerCore::State::On(const StopRequested& event) {
  const bool again = told_to_end_ms_ < kNever;
  if (again && !event.at_once && now_ms_ < told_to_end_ms_ + kOneSignalMs) return;
  const bool reaches = link_ == LinkState::kStands || link_ == LinkState::kDialling;
  if (again || event.at_once || (!reaches && held_.epoch == 0)) return EndWith(absl::OkStatus());
  told_to_end_ms_ = now_ms_;
  if (link_ == LinkState::kStands) SayLeaving();
  if (options_.grace_ms == 0) return EndWith(absl::OkStatus());
  Log(Note::Level::kInfo,
      absl::StrCat("told to end: its jobs are saved first, which may take ", options_.grace_ms,
                   reaches ? " ms; " : " ms, once a coordinator is there; ",
                   "a second signal ends it at once"));
}

void WorkerCore::State::SayLeaving() {
  v1::WorkerMessage message;
  message.mutable_leaving();
  Do(Say{std::move(message)});
}

void WorkerCore::State::EndWith(absl::Status status) {
  ended_ = true;
  Do(CancelCalls{});
  Do(End{std::move(status)});
}

}  // namespace lorad::worker
