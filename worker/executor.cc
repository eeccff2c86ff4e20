#include "worker/executor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "storage/errors.h"
#include "worker/plan_cut.h"

namespace lorad::worker {
namespace {

bool BeginsMicrobatch(const v1::Operation& operation) {
  return operation.kind() == v1::Operation::FORWARD || operation.kind() == v1::Operation::EVALUATE;
}

}  // namespace

Executor::Executor(kernels::Backend* backend, Bulk* bulk, ReportLog* reports, EngineOptions options,
                   Clock clock)
    : environment_{backend, bulk, reports, std::move(options), std::move(clock)} {
  thread_ = std::thread([this] { Run(); });
}

Executor::~Executor() {
  int64_t epoch = 0;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    epoch = held_.epoch;
  }
  wake_.notify_all();
  environment_.bulk->Cancel(epoch);
  thread_.join();
}

void Executor::FormGroup(v1::FormGroup order) {
  int64_t old_epoch = 0;
  {
    std::lock_guard lock(mutex_);
    old_epoch = held_.epoch;
    held_ = {order.group(), order.epoch()};
    leave_ = true;
    failed_ = false;
    windows_.clear();
    first_not_enqueued_ = 0;
    hold_from_.reset();
    cut_jobs_.clear();
    environment_.reports->BeginEpoch(order.epoch());
    form_ = std::move(order);
  }
  if (old_epoch != 0) environment_.bulk->Cancel(old_epoch);
  wake_.notify_all();
}

void Executor::Submit(v1::Window window) {
  {
    std::lock_guard lock(mutex_);
    if (window.epoch() != held_.epoch || failed_) return;
    auto pending = std::make_shared<PendingWindow>();
    pending->window = std::move(window);
    windows_.push_back(std::move(pending));
  }
  wake_.notify_all();
}

v1::CutAnswer Executor::Cut(const v1::Cut& cut) {
  std::lock_guard lock(mutex_);
  v1::CutAnswer answer;
  answer.set_epoch(cut.epoch());
  answer.set_cut(cut.cut());
  if (cut.epoch() == held_.epoch) hold_from_ = first_not_enqueued_;
  answer.set_first_not_enqueued(first_not_enqueued_);
  return answer;
}

void Executor::CutAt(const v1::CutAt& order) {
  {
    std::lock_guard lock(mutex_);
    if (order.epoch() != held_.epoch) return;
    hold_from_.reset();
    for (const auto& pending : windows_) {
      // What an earlier cut dropped stays dropped: only the rest is looked at.
      const std::vector<bool> kept =
          KeptAfterCut(pending->window, pending->next, order.first_dropped(), &cut_jobs_);
      pending->kept.resize(pending->window.operations_size(), true);
      for (size_t i = 0; i < kept.size(); ++i) {
        if (!kept[i]) pending->kept[pending->next + i] = false;
      }
    }
  }
  wake_.notify_all();
}

void Executor::Dissolve(int64_t epoch) {
  int64_t cancelled = 0;
  {
    std::lock_guard lock(mutex_);
    if (held_.epoch == 0 || (epoch != 0 && epoch != held_.epoch)) return;
    cancelled = held_.epoch;
    Forget();
  }
  environment_.bulk->Cancel(cancelled);
  wake_.notify_all();
}

void Executor::Forget() {
  held_ = {};
  leave_ = true;
  form_.reset();
  windows_.clear();
  hold_from_.reset();
  cut_jobs_.clear();
}

Executor::Held Executor::held() const {
  std::lock_guard lock(mutex_);
  return held_;
}

void Executor::WaitIdle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return stop_ || (windows_.empty() && !busy_ && !form_ && !leave_); });
}

void Executor::Run() {
  std::unique_lock lock(mutex_);
  idle_since_ms_ = environment_.clock();
  while (true) {
    wake_.wait(lock, [&] { return stop_ || leave_ || (engine_ != nullptr && !windows_.empty()); });
    if (stop_) break;
    busy_ = true;
    if (leave_) {
      leave_ = false;
      std::optional<v1::FormGroup> order = std::exchange(form_, std::nullopt);
      lock.unlock();
      engine_.reset();  // first, so that old and new never lie in memory together
      if (order.has_value()) Form(*order);
      lock.lock();
    } else {
      const std::shared_ptr<PendingWindow> pending = windows_.front();
      Execute(&lock, pending.get());
    }
    busy_ = false;
    idle_.notify_all();
  }
  lock.unlock();
  engine_.reset();
  idle_.notify_all();
}

void Executor::Form(const v1::FormGroup& order) {
  auto engine = Engine::Form(order, environment_);
  if (!engine.ok()) {
    Fail(order.epoch(), engine.status(), "GROUP_FORM");
    return;
  }
  engine_ = *std::move(engine);
  spdlog::info("group {}, epoch {}: formed with {} bytes", order.group(), order.epoch(),
               engine_->group_bytes());
}

bool Executor::MayBegin(std::unique_lock<std::mutex>* lock, PendingWindow* pending) {
  const int index = pending->next;
  const v1::Operation& operation = pending->window.operations(index);
  const auto dropped = [&] {
    return !pending->kept.empty() && !pending->kept[static_cast<size_t>(index)];
  };
  if (BeginsMicrobatch(operation)) {
    wake_.wait(*lock, [&] {
      return stop_ || leave_ || dropped() || !hold_from_.has_value() ||
             operation.microbatch() < *hold_from_;
    });
  }
  if (stop_ || leave_ || dropped()) return false;
  if (BeginsMicrobatch(operation)) first_not_enqueued_ = operation.microbatch() + 1;
  return true;
}

// Holds the lock but while an operation runs.
void Executor::Execute(std::unique_lock<std::mutex>* lock, PendingWindow* pending) {
  const v1::Window& window = pending->window;
  const int64_t epoch = window.epoch();
  const double begun_ms = environment_.clock();
  int64_t dropped = 0;
  absl::Status status = engine_->BeginWindow(window);
  while (status.ok() && pending->next < window.operations_size()) {
    const bool run = MayBegin(lock, pending);
    if (stop_ || leave_) return;
    const v1::Operation& operation = window.operations(pending->next++);
    if (!run) {
      ++dropped;
      continue;
    }
    lock->unlock();
    const absl::StatusOr<bool> done = engine_->Execute(operation);
    lock->lock();
    status = done.status();
    if (done.ok() && !*done) ++dropped;
  }
  if (stop_ || leave_) return;
  engine_->EndWindow();
  if (!status.ok()) {
    lock->unlock();
    Fail(epoch, status, "BAD_WINDOW");
    lock->lock();
    return;
  }
  if (!pending->kept.empty()) engine_->DropBatches(cut_jobs_);
  windows_.pop_front();
  // The last window that a cut touched is done: who was cut may come again.
  if (windows_.empty() || windows_.front()->kept.empty()) cut_jobs_.clear();
  const double now_ms = environment_.clock();
  v1::Report report;
  v1::WindowDone& done = *report.mutable_window_done();
  done.set_window(window.number());
  done.set_busy_ms(now_ms - begun_ms);
  done.set_idle_ms(begun_ms - idle_since_ms_);
  done.set_dropped_operations(dropped);
  idle_since_ms_ = now_ms;
  environment_.reports->Add(epoch, std::move(report));
}

// The epoch is over for this worker: tells the coordinator and lets go of everything.
void Executor::Fail(int64_t epoch, const absl::Status& status, std::string_view otherwise) {
  const auto payload = status.GetPayload(storage::Absl(storage::kReasonPayload));
  v1::Report report;
  v1::GroupFailed& failed = *report.mutable_group_failed();
  failed.set_reason(payload.has_value() ? std::string(*payload) : std::string(otherwise));
  failed.set_message(std::string(status.message()));
  spdlog::error("epoch {}: {}: {}", epoch, failed.reason(), failed.message());
  environment_.reports->Add(epoch, std::move(report));
  std::lock_guard lock(mutex_);
  if (held_.epoch != epoch) return;
  windows_.clear();
  failed_ = true;
  leave_ = true;  // held_ stays: the report is still to be acknowledged
}

}  // namespace lorad::worker
