// Windows: begun, executed, cut, ended; and the saves and loads in them.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/core_state.h"
#include "worker/core/plan_cut.h"

namespace lorad::worker {
namespace {

// The coordinator has two windows on their way.
constexpr size_t kWindowsMax = 16;
// A slot's content is tried to be had for so long. Its job waits elsewhere then, not its neighbours
// here.
constexpr double kLoadMs = 10'000;
constexpr double kLoadPauseMs = 200;
constexpr char kBadWindow[] = "BAD_WINDOW";

}  // namespace

// ---- orders ----

void WorkerCore::State::OnWindow(v1::Window& window) {
  if (window.epoch() != held_.epoch || failed_) return;
  if (way_ != Way::kStands) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("window ", window.number(),
                                                        " came before this stage is Connected")),
                kBadWindow);
  }
  if (window.number() != last_window_ + 1) {
    return Fail(absl::InvalidArgumentError(
                    absl::StrCat("window ", window.number(), " came after ", last_window_)),
                kBadWindow);
  }
  if (windows_.size() == kWindowsMax) {
    return Fail(absl::InvalidArgumentError(
                    absl::StrCat("more than ", kWindowsMax, " windows are on their way")),
                kBadWindow);
  }
  last_window_ = window.number();
  PendingWindow& pending = windows_.emplace_back();
  pending.window = std::make_shared<const v1::Window>(std::move(window));
}

void WorkerCore::State::OnCut(const v1::Cut& cut) {
  if (cut.epoch() != held_.epoch) return;
  hold_from_ = FirstNotCommitted();
  v1::WorkerMessage message;
  v1::CutAnswer& answer = *message.mutable_cut_answer();
  answer.set_epoch(cut.epoch());
  answer.set_cut(cut.cut());
  answer.set_first_not_enqueued(*hold_from_);
  Do(Say{std::move(message)});
}

// What is loaded stays loaded on all stages: so a window whose loads have begun runs its first
// microbatch too, and by that the other stages know.
int64_t WorkerCore::State::FirstNotCommitted() const {
  if (windows_.empty() || !LoadHasBegun(windows_.front())) return first_not_enqueued_;
  const std::optional<int64_t> first = FirstMicrobatch(*windows_.front().window);
  return first.has_value() ? std::max(first_not_enqueued_, *first + 1) : first_not_enqueued_;
}

bool WorkerCore::State::LoadHasBegun(const PendingWindow& pending) const {
  for (int i = 0; i < pending.next; ++i) {
    const bool load = pending.window->operations(i).kind() == v1::Operation::LOAD_SLOT;
    if (load && (pending.kept.empty() || pending.kept[static_cast<size_t>(i)])) return true;
  }
  return false;
}

void WorkerCore::State::OnCutAt(const v1::CutAt& order) {
  if (order.epoch() != held_.epoch) return;
  hold_from_.reset();
  CutLosses losses;
  for (PendingWindow& pending : windows_) {
    const std::vector<bool> before = std::exchange(pending.kept, {});
    pending.kept = KeptAfterCut(*pending.window, order.first_dropped(), before, &losses);
    pending.cut_jobs.insert(losses.jobs.begin(), losses.jobs.end());
    // Of what is done or under way: loads of a stage that is ahead of the first one, and a Recv of
    // what that has not begun, so that nobody sends it.
    for (int i = 0; i < pending.next; ++i) {
      const v1::Operation& operation = pending.window->operations(i);
      const bool was_kept = before.empty() || before[static_cast<size_t>(i)];
      if (!was_kept || pending.kept[static_cast<size_t>(i)]) continue;
      if (operation.kind() == v1::Operation::LOAD_SLOT) {
        pending.loads_undone.push_back(operation.job());
      } else if (operation.kind() == v1::Operation::RECV && executing_.get() == &operation) {
        Do(GiveUpReceive{});
      }
    }
  }
}

// ---- executing ----

void WorkerCore::State::GoOnWithWindow() {
  PendingWindow& pending = windows_.front();
  if (!pending.begun) {
    pending.begun = true;
    pending.begun_ms = now_ms_;
    return Order(BeginWindow{pending.window}, Doing::kBeginning);
  }
  const auto execute = [&](int index) {
    executing_ = {pending.window, &pending.window->operations(index)};
    executing_put_off_ = false;
    Order(Execute{executing_}, Doing::kExecuting);
  };
  while (pending.failure.ok() && pending.next < pending.window->operations_size()) {
    const Verdict verdict = MayBegin(pending);
    if (verdict == Verdict::kWait) return;
    const int index = pending.next++;
    if (verdict == Verdict::kGo) return execute(index);
  }
  if (pending.failure.ok() && !pending.frees_put_off.empty()) {
    const int index = pending.frees_put_off.front();
    if (saves_.Find(pending.window->operations(index).job()) != nullptr) return;
    pending.frees_put_off.pop_front();
    return execute(index);
  }
  if (pending.failure.ok() && !pending.loads_undone.empty()) {
    auto free = std::make_shared<v1::Operation>();
    free->set_kind(v1::Operation::FREE_SLOT);
    free->set_job(pending.loads_undone.front());
    pending.loads_undone.pop_front();
    executing_ = std::move(free);
    executing_put_off_ = false;
    return Order(Execute{executing_}, Doing::kExecuting);
  }
  Order(EndWindow{pending.failure.ok() ? pending.cut_jobs : std::set<std::string>()},
        Doing::kEnding);
}

WorkerCore::State::Verdict WorkerCore::State::MayBegin(PendingWindow& pending) {
  if (pending.next_is_dropped()) {
    ++pending.dropped;
    load_tries_ = 0;
    return Verdict::kSkip;
  }
  const v1::Operation& operation = pending.window->operations(pending.next);
  switch (operation.kind()) {
    case v1::Operation::FORWARD:
    case v1::Operation::EVALUATE:
    case v1::Operation::GENERATE:
      return MayBeginMicrobatch(operation);
    case v1::Operation::LOAD_SLOT:
      return MayLoad(pending);
    case v1::Operation::SAVE:
      return MaySave(operation);
    case v1::Operation::STEP:
      return MayStep(operation);
    case v1::Operation::FREE_SLOT:
      return MayFree(pending);
    default:
      return Verdict::kGo;
  }
}

WorkerCore::State::Verdict WorkerCore::State::MayLoad(const PendingWindow& pending) {
  if (link_ != LinkState::kStands) return Verdict::kWait;  // as BeginUploads
  if (hold_from_.has_value()) {
    const std::optional<int64_t> first = FirstMicrobatch(*pending.window);
    if (first.has_value() && *first >= *hold_from_) return Verdict::kWait;
  }
  if (load_tries_ == 0) load_give_up_ms_ = now_ms_ + kLoadMs;
  return now_ms_ < load_at_ms_ ? Verdict::kWait : Verdict::kGo;
}

WorkerCore::State::Verdict WorkerCore::State::MayBeginMicrobatch(const v1::Operation& operation) {
  if (operation.microbatch() < first_not_enqueued_) {
    Fail(absl::InvalidArgumentError(absl::StrCat("microbatch ", operation.microbatch(),
                                                 " came after ", first_not_enqueued_ - 1)),
         kBadWindow);
    return Verdict::kWait;
  }
  if (hold_from_.has_value() && operation.microbatch() >= *hold_from_) return Verdict::kWait;
  first_not_enqueued_ = operation.microbatch() + 1;
  return Verdict::kGo;
}

void WorkerCore::State::OnExecuted(const EngineDone& event) {
  const std::shared_ptr<const v1::Operation> operation = std::exchange(executing_, nullptr);
  if (leave_) return;
  const bool done = event.done.ok() && *event.done;
  if (done && operation->kind() == v1::Operation::SAVE) {
    saves_.Add(operation->job(), operation->step(), event.staged_bytes, now_ms_);
  }
  if (executing_put_off_) {
    if (!event.done.ok()) Fail(event.done.status(), kBadWindow);
    return;
  }
  PendingWindow& pending = windows_.front();
  if (operation->kind() == v1::Operation::LOAD_SLOT && absl::IsUnavailable(event.done.status())) {
    return OnLoadFailed(pending, event.done.status());
  }
  load_tries_ = 0;
  if (!event.done.ok()) pending.failure = event.done.status();
  if (event.done.ok() && !*event.done) ++pending.dropped;
}

// A LoadSlot whose content is not to be had now.
void WorkerCore::State::OnLoadFailed(PendingWindow& pending, const absl::Status& status) {
  const v1::Operation& load = pending.window->operations(pending.next - 1);
  if (!pending.kept.empty() && !pending.kept[static_cast<size_t>(pending.next - 1)]) {
    ++pending.dropped;  // a cut came meanwhile: as if it had not begun
    pending.loads_undone.pop_back();
    load_tries_ = 0;
    return;
  }
  if (now_ms_ + kLoadPauseMs < load_give_up_ms_) {
    --pending.next;
    ++load_tries_;
    load_at_ms_ = now_ms_ + kLoadPauseMs;
    return;
  }
  load_tries_ = 0;
  Log(Note::Level::kWarning,
      absl::StrCat("job ", load.job(), ": its slot was not loaded: ", status.ToString()));
  v1::Report report;
  v1::SlotFailed& failed = *report.mutable_slot_failed();
  failed.set_job(load.job());
  failed.set_reason("CONTENT_UNAVAILABLE");
  failed.set_message(std::string(status.message()));
  Report(std::move(report));
}

void WorkerCore::State::OnWindowEnded() {
  const PendingWindow pending = std::move(windows_.front());
  if (!pending.failure.ok()) return Fail(pending.failure, kBadWindow);
  windows_.pop_front();
  v1::Report report;
  v1::WindowDone& done = *report.mutable_window_done();
  done.set_window(pending.window->number());
  done.set_busy_ms(now_ms_ - pending.begun_ms);
  done.set_idle_ms(pending.begun_ms - idle_since_ms_);
  done.set_dropped_operations(pending.dropped);
  idle_since_ms_ = now_ms_;
  Report(std::move(report));
}

// ---- saves ----

WorkerCore::State::Verdict WorkerCore::State::MaySave(const v1::Operation& operation) {
  const Saves::Shard* before = saves_.Find(operation.job());
  if (before == nullptr) return Verdict::kGo;
  // Where it is the same step, that is on its way.
  if (before->step != operation.step()) saves_put_off_[operation.job()] = operation;
  return Verdict::kSkip;
}

// A Step makes another step of what its job's Save was to copy.
WorkerCore::State::Verdict WorkerCore::State::MayStep(const v1::Operation& operation) {
  const auto put_off = saves_put_off_.find(operation.job());
  if (put_off == saves_put_off_.end()) return Verdict::kGo;
  if (now_ms_ < saves_.FirstTryEnds(operation.job())) return Verdict::kWait;
  Log(Note::Level::kWarning,
      absl::StrCat("job ", operation.job(), ": step ", put_off->second.step(),
                   " is not saved: the one before is still on its way"));
  saves_put_off_.erase(put_off);
  return Verdict::kGo;
}

// Its last shard goes first; the rest of the window does not wait for it. A save that was put off is
// not made any more: who wants it frees the slot when it has come.
WorkerCore::State::Verdict WorkerCore::State::MayFree(PendingWindow& pending) {
  const std::string& job = pending.window->operations(pending.next).job();
  if (const auto put_off = saves_put_off_.find(job); put_off != saves_put_off_.end()) {
    Log(Note::Level::kWarning, absl::StrCat("job ", job, ": step ", put_off->second.step(),
                                            " is not saved: its slot is freed"));
    saves_put_off_.erase(put_off);
  }
  if (saves_.LastTry(job)) {
    Log(Note::Level::kWarning, absl::StrCat("job ", job, ": its last save was given up"));
  }
  if (saves_.Find(job) == nullptr) return Verdict::kGo;
  pending.frees_put_off.push_back(pending.next);
  return Verdict::kSkip;
}

bool WorkerCore::State::SaveWhatWasPutOff() {
  for (auto& [job, operation] : saves_put_off_) {
    if (saves_.Find(job) != nullptr) continue;
    executing_ = std::make_shared<const v1::Operation>(std::move(operation));
    executing_put_off_ = true;
    saves_put_off_.erase(executing_->job());
    Order(Execute{executing_}, Doing::kExecuting);
    return true;
  }
  return false;
}

// A coordinator that was started again takes nothing of a worker that it has not welcomed.
void WorkerCore::State::BeginUploads() {
  if (link_ != LinkState::kStands) return;
  for (const int64_t number : saves_.Begin(now_ms_)) {
    const Saves::Shard& shard = saves_.at(number);
    v1::UploadShardRequest::Header header;
    header.set_job(shard.job);
    header.set_step(shard.step);
    header.set_epoch(engine_epoch_);
    header.set_stage(engine_stage_);
    header.set_stages(engine_stages_);
    header.set_size_bytes(shard.bytes);
    header.set_numerics_id(options_.hello.numerics_id());
    Do(Upload{number, std::move(header), shard.timeout_ms()});
  }
}

void WorkerCore::State::On(const UploadDone& event) {
  if (!saves_.under_way(event.upload)) return;
  const auto [shard, outcome, tell] = saves_.End(event.upload, event.status, now_ms_);
  const auto note = [&](std::string_view what) {
    Log(Note::Level::kWarning, absl::StrCat("job ", shard.job, ": step ", shard.step, " ",
                                            std::string(what), ": ", event.status.ToString()));
  };
  switch (outcome) {
    case Saves::Outcome::kSaved: {
      v1::Report report;
      v1::Saved& saved = *report.mutable_saved();
      saved.set_job(shard.job);
      saved.set_step(shard.step);
      saved.set_sha256(event.sha256);
      saved.set_bytes(shard.bytes);
      return Report(std::move(report));
    }
    case Saves::Outcome::kAgain: {
      if (shard.failed_tries == 1) note("is not saved yet");
      if (!tell) return;
      v1::Report report;
      v1::SaveDelayed& delayed = *report.mutable_save_delayed();
      delayed.set_job(shard.job);
      delayed.set_step(shard.step);
      delayed.set_message(std::string(event.status.message()));
      return Report(std::move(report));
    }
    case Saves::Outcome::kGivenUp:
      // Without a Saved report the coordinator counts nothing as saved, so nothing is lost here.
      return note("was not saved");
    case Saves::Outcome::kAbandoned:
      return;
  }
}

}  // namespace lorad::worker
