// The group: formed, left, failed; and the next orders to the engine.
#include "worker/core/core.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/files/errors.h"
#include "worker/core/core_state.h"

namespace lorad::worker {
namespace {

// A worker whose reports reach nobody stops here instead of growing. Two windows have some
// hundreds.
constexpr size_t kReportsMax = 65536;
constexpr char kBadWindow[] = "BAD_WINDOW";  // as any order of a coordinator that is impossible

}  // namespace

WorkerCore::WorkerCore(CoreOptions options) : state_(std::make_unique<State>(std::move(options))) {}
WorkerCore::~WorkerCore() = default;

std::vector<Effect> WorkerCore::Apply(Event event) { return state_->Apply(std::move(event)); }
WorkerCore::Held WorkerCore::held() const { return state_->held(); }
bool WorkerCore::idle() const { return state_->idle(); }
int64_t WorkerCore::reports_kept() const {
  return static_cast<int64_t>(state_->reports().kept().size());
}

std::vector<Effect> WorkerCore::State::Apply(Event event) {
  now_ms_ = event.now_ms;
  if (ended_) return {};
  std::visit([this](auto& content) { On(content); }, event.content);
  if (!ended_) OnTime();
  if (!ended_) GoOn();
  const double due_ms = ended_ ? kNever : NextDue();
  if (due_ms < timer_at_ms_) {
    timer_at_ms_ = due_ms;
    Do(SetTimer{due_ms});
  }
  return std::exchange(effects_, {});
}

bool WorkerCore::State::idle() const {
  return windows_.empty() && doing_ == Doing::kNothing && !form_.has_value() &&
         !connect_.has_value() && !leave_;
}

// ---- what the coordinator wants ----

void WorkerCore::State::OnFormGroup(v1::FormGroup& order) {
  if (order.epoch() <= held_.epoch) {
    return Log(Note::Level::kWarning,
               absl::StrCat("a group of epoch ", order.epoch(), " was ignored: epoch ", held_.epoch,
                            " is held"));
  }
  LeaveEngine();
  held_ = {order.group(), order.epoch()};
  failed_ = false;
  reports_.BeginEpoch(order.epoch());
  stage_ = order.stage();
  stages_ = std::max(order.stages(), 1);
  way_ = stages_ == 1 ? Way::kStands : Way::kAwaited;
  form_ = std::move(order);
}

// It may come before the engine's answer to FormGroup, whose report has gone ahead.
void WorkerCore::State::OnConnect(v1::Connect& order) {
  if (order.epoch() != held_.epoch || failed_) return;
  if (way_ != Way::kAwaited || order.endpoints_size() != stages_) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
                    "Connect with ", order.endpoints_size(), " endpoints, of a group of ", stages_,
                    way_ == Way::kAwaited ? "" : " that needs none any more")),
                kBadWindow);
  }
  way_ = Way::kOrdered;
  connect_ = std::move(order);
}

void WorkerCore::State::OnDissolve(int64_t epoch) {
  if (held_.epoch != 0 && (epoch == 0 || epoch == held_.epoch)) GiveUpGroup();
}

void WorkerCore::State::GiveUpGroup() {
  LeaveEngine();
  held_ = {};
  failed_ = false;
  reports_.BeginEpoch(0);
  heartbeat_at_ms_ = now_ms_;  // it says so, and may have another
}

void WorkerCore::State::LeaveEngine() {
  form_.reset();
  connect_.reset();
  leave_ = formed_ || doing_ != Doing::kNothing;
  windows_.clear();
  last_window_ = 0;
  first_not_enqueued_ = 0;
  hold_from_.reset();
  saves_put_off_.clear();
  saves_.Abandon();
  load_tries_ = 0;
  load_at_ms_ = 0;
  if (!leave_) return;
  if (!leaving()) leave_by_ms_ = now_ms_ + static_cast<double>(options_.leave_ms);
  Do(CancelCalls{});
}

void WorkerCore::State::Fail(const absl::Status& status, std::string_view otherwise) {
  const std::string reason = storage::ReasonOf(status);
  v1::Report report;
  v1::GroupFailed& failed = *report.mutable_group_failed();
  failed.set_reason(reason.empty() ? std::string(otherwise) : reason);
  // What the coordinator refused has its reason in front (worker/link/rpc_status.h).
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, absl::StrCat(failed.reason(), ": "));
  failed.set_message(std::string(message));
  Log(Note::Level::kError,
      absl::StrCat("epoch ", held_.epoch, ": ", failed.reason(), ": ", failed.message()));
  engine_epoch_ = held_.epoch;
  Report(std::move(report));
  failed_ = true;  // held_ stays: the report is still to be acknowledged
  LeaveEngine();
}

// ---- the engine ----

void WorkerCore::State::Order(Effect effect, Doing doing) {
  assert(doing_ == Doing::kNothing);
  doing_ = doing;
  Do(std::move(effect));
}

void WorkerCore::State::GoOn() {
  BeginUploads();
  if (doing_ != Doing::kNothing) return;
  if (leave_) {
    if (saves_.any_under_way()) return;  // they read the slots' memory
    leave_ = false;
    if (formed_) return Order(LeaveGroup{}, Doing::kLeaving);
    leave_by_ms_ = kNever;
  }
  if (form_.has_value()) {
    engine_epoch_ = form_->epoch();
    engine_stage_ = form_->stage();
    engine_stages_ = std::max(form_->stages(), 1);
    drop_weights_at_ms_ = kNever;
    return Order(FormGroup{*std::exchange(form_, std::nullopt)}, Doing::kForming);
  }
  if (!formed_) {
    if (now_ms_ < drop_weights_at_ms_) return;
    drop_weights_at_ms_ = kNever;
    return Order(DropWeights{}, Doing::kDropping);
  }
  if (connect_.has_value()) {
    connect_begun_ms_ = now_ms_;
    return Order(Connect{*std::exchange(connect_, std::nullopt), lease_ms_}, Doing::kConnecting);
  }
  if (reports_.kept().size() >= kReportsMax) return;
  if (SaveWhatWasPutOff()) return;
  if (windows_.empty()) return;
  GoOnWithWindow();
  if (leave_) GoOn();  // the window cannot be executed
}

void WorkerCore::State::Report(v1::Report report) {
  if (const v1::Report* kept = reports_.Add(engine_epoch_, std::move(report))) SayReport(*kept);
}

void WorkerCore::State::On(EngineReported& event) {
  if (!failed_ && !leave_) Report(std::move(event.report));
}

void WorkerCore::State::On(const EngineDone& event) {
  switch (std::exchange(doing_, Doing::kNothing)) {
    case Doing::kForming:
      return OnFormed(event);
    case Doing::kConnecting:
      return OnConnected(event);
    case Doing::kLeaving:
      leave_by_ms_ = kNever;
      return BeWithoutGroup();
    case Doing::kDropping:
      return;
    case Doing::kBeginning:
      if (!leave_) windows_.front().failure = event.done.status();
      return;
    case Doing::kExecuting:
      return OnExecuted(event);
    case Doing::kEnding:
      if (!leave_) OnWindowEnded();
      return;
    case Doing::kNothing:
      assert(false);
  }
}

void WorkerCore::State::BeWithoutGroup() {
  formed_ = false;
  drop_weights_at_ms_ = now_ms_ + static_cast<double>(options_.keep_weights_ms);
}

void WorkerCore::State::OnFormed(const EngineDone& event) {
  formed_ = event.done.ok();
  if (!formed_) BeWithoutGroup();
  if (leave_) return;
  if (!formed_) return Fail(event.done.status(), "GROUP_FORM");
  Log(Note::Level::kInfo, absl::StrCat("group ", held_.group, ", epoch ", held_.epoch, ": formed"));
}

void WorkerCore::State::OnConnected(const EngineDone& event) {
  if (leave_) return;
  if (!event.done.ok()) return Fail(event.done.status(), "STAGE_LOST");
  way_ = Way::kStands;
  v1::Report report;
  report.mutable_connected()->set_connect_seconds((now_ms_ - connect_begun_ms_) / 1000);
  Report(std::move(report));
}

}  // namespace lorad::worker
