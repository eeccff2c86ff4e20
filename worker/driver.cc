#include "worker/driver.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

#include "spdlog/spdlog.h"
#include "storage/files/sha256.h"
#include "worker/core/saves.h"
#include "worker/host/process.h"

namespace lorad::worker {

Driver::Driver(CoreOptions options, std::unique_ptr<EngineMaker> maker, OpenListener open_listener,
               Link* link, Bulk* bulk, Clock clock)
    : maker_(std::move(maker)),
      link_(link),
      bulk_(bulk),
      clock_(std::move(clock)),
      numerics_id_(options.hello.numerics_id()),
      way_(std::move(open_listener)),
      core_(std::move(options)) {
  for (int i = 0; i < Saves::kTriesAtOnce; ++i) {
    upload_threads_.emplace_back([this] { RunUploads(); });
  }
  timer_thread_ = std::thread([this] { RunTimer(); });
  engine_thread_ = std::thread([this] { RunEngine(); });
  std::lock_guard lock(mutex_);
  Apply(Started{});
}

Driver::~Driver() {
  {
    std::lock_guard lock(mutex_);
    Apply(StopRequested{.at_once = true});
    stop_ = true;
  }
  link_->Close();
  engine_wake_.notify_all();
  upload_wake_.notify_all();
  timer_wake_.notify_all();
  timer_thread_.join();
  engine_thread_.join();
}

absl::Status Driver::AwaitEnd() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); });
  return *end_;
}

void Driver::Stop() {
  std::lock_guard lock(mutex_);
  Apply(StopRequested{});
}

WorkerCore::Held Driver::held() const {
  std::lock_guard lock(mutex_);
  return core_.held();
}

int64_t Driver::reports_kept() const {
  std::lock_guard lock(mutex_);
  return core_.reports_kept();
}

void Driver::WaitIdle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return core_.idle() || end_.has_value();
  });
}

void Driver::Said(int64_t stream, v1::CoordinatorMessage message) {
  std::lock_guard lock(mutex_);
  Apply(CoordinatorSaid{stream, std::move(message)});
}

void Driver::Broke(int64_t stream, absl::Status status) {
  std::lock_guard lock(mutex_);
  Apply(StreamBroke{stream, std::move(status)});
}

// ---- effects ----

void Driver::Apply(decltype(Event::content) content) {
  for (Effect& effect : core_.Apply({clock_(), std::move(content)})) {
    std::visit([this](auto& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Carry(one); }, effect);
  }
  if (end_.has_value() || core_.idle()) idle_.notify_all();
}

void Driver::Carry(Dial& effect) { link_->Dial(effect.stream, effect.hello, this); }
void Driver::Carry(HangUp&) { link_->HangUp(); }
void Driver::Carry(Say& effect) { link_->Say(std::move(effect.message)); }
void Driver::Carry(FormGroup& effect) { Give(std::move(effect)); }
void Driver::Carry(Connect& effect) { Give(std::move(effect)); }
void Driver::Carry(LeaveGroup& effect) { Give(effect); }
void Driver::Carry(DropWeights& effect) { Give(effect); }
void Driver::Carry(BeginWindow& effect) { Give(std::move(effect)); }
void Driver::Carry(Execute& effect) { Give(std::move(effect)); }
void Driver::Carry(EndWindow& effect) { Give(std::move(effect)); }

void Driver::Give(EngineOrder order) {
  assert(!order_.has_value());
  order_ = std::move(order);
  order_call_ = ++last_call_;
  engine_wake_.notify_one();
}

void Driver::Carry(Upload& effect) {
  uploads_.push_back({std::move(effect), ++last_call_});
  upload_wake_.notify_one();
}

void Driver::Carry(GiveUpReceive&) { way_.GiveUpReceive(); }

void Driver::Carry(CancelCalls&) {
  bulk_->Cancel(last_call_);
  way_.Interrupt(absl::CancelledError("the group is given up"));
}

void Driver::Carry(ReadMemory&) {
  memory_due_ = true;
  timer_wake_.notify_one();
}

void Driver::Carry(SetTimer& effect) {
  timer_at_ms_ = effect.at_ms;
  timer_wake_.notify_one();
}

void Driver::Carry(Note& effect) {
  switch (effect.level) {
    case Note::Level::kInfo:
      return spdlog::info("{}", effect.text);
    case Note::Level::kWarning:
      return spdlog::warn("{}", effect.text);
    case Note::Level::kError:
      return spdlog::error("{}", effect.text);
  }
}

void Driver::Carry(End& effect) { end_ = std::move(effect.status); }

// ---- the engine ----

void Driver::RunEngine() {
  std::unique_lock lock(mutex_);
  while (true) {
    engine_wake_.wait(
        lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || order_.has_value(); });
    if (stop_) break;
    const EngineOrder order = *std::exchange(order_, std::nullopt);
    lock.unlock();
    EngineDone done = Obey(order);
    lock.lock();
    Apply(std::move(done));
  }
  lock.unlock();
  for (std::thread& thread : upload_threads_) thread.join();  // they read the slots' memory
  engine_.reset();
  maker_->DropWeights();
}

EngineDone Driver::Obey(const EngineOrder& order) {
  absl::Status status;
  if (const auto* form = std::get_if<FormGroup>(&order)) {
    status = Form(form->order);
  } else if (const auto* connect = std::get_if<Connect>(&order)) {
    status = JoinStages(*connect);
  } else if (std::holds_alternative<LeaveGroup>(order)) {
    Leave();
  } else if (std::holds_alternative<DropWeights>(order)) {
    maker_->DropWeights();
  } else if (const auto* begin = std::get_if<BeginWindow>(&order)) {
    window_ = begin->window;
    status = engine_->BeginWindow(window_);
  } else if (const auto* end = std::get_if<EndWindow>(&order)) {
    engine_->EndWindow();
    if (!end->cut_jobs.empty()) engine_->DropBatches(end->cut_jobs);
    window_.reset();
  } else {
    return DoOperation(*std::get<Execute>(order).operation);
  }
  if (!status.ok()) return {status};
  return {true};
}

absl::Status Driver::Form(const v1::FormGroup& order) {
  EngineContext context = Context();
  if (order.stages() > 1) {
    const auto endpoint = way_.Open();
    if (!endpoint.ok()) return endpoint.status();
    context.endpoint = *endpoint;
  }
  identity_ = {.epoch = order.epoch(),
               .stage = order.stage(),
               .stages = order.stages(),
               .numerics_id = numerics_id_};
  auto engine = maker_->Form(order, context);
  if (!engine.ok()) {
    way_.Close();
    return engine.status();
  }
  engine_ = *std::move(engine);
  return absl::OkStatus();
}

absl::Status Driver::JoinStages(const Connect& connect) {
  identity_.lease_ms = connect.lease_ms;
  identity_.secret = connect.order.secret();
  const auto& endpoints = connect.order.endpoints();
  const absl::Status status = way_.Join(identity_, {endpoints.begin(), endpoints.end()});
  return status.ok() ? engine_->Connect(way_.transport()) : status;
}

void Driver::Leave() {
  engine_.reset();
  way_.Close();
  window_.reset();
  std::lock_guard lock(mutex_);
  staged_.clear();
}

EngineDone Driver::DoOperation(const v1::Operation& operation) {
  EngineDone done{engine_->Execute(operation)};
  if (operation.kind() == v1::Operation::FREE_SLOT) {
    std::lock_guard lock(mutex_);
    staged_.erase(operation.job());
  }
  if (operation.kind() == v1::Operation::SAVE && done.done.ok() && *done.done) {
    Shard shard = engine_->Staged(operation.job());
    done.staged_bytes = shard.bytes();
    std::lock_guard lock(mutex_);
    staged_[operation.job()] = {std::move(shard), ""};
  }
  return done;
}

int64_t Driver::OrderCall() {
  std::lock_guard lock(mutex_);
  return order_call_;
}

EngineContext Driver::Context() {
  EngineContext context;
  context.report = [this](v1::Report report) {
    std::lock_guard lock(mutex_);
    Apply(EngineReported{std::move(report)});
  };
  context.fetch = [this](const v1::FetchSlotContentRequest& request, int64_t timeout_ms,
                         const Bulk::Sink& sink) {
    return bulk_->Fetch(OrderCall(), request, timeout_ms, sink);
  };
  context.describe = [this](const v1::DescribeModelRequest& request, int64_t timeout_ms,
                            const Bulk::PartSink& sink) {
    return bulk_->Describe(OrderCall(), request, timeout_ms, sink);
  };
  return context;
}

// ---- uploads ----

void Driver::RunUploads() {
  std::unique_lock lock(mutex_);
  while (true) {
    upload_wake_.wait(
        lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !uploads_.empty(); });
    if (stop_) return;
    const UploadTask task = std::move(uploads_.front());
    uploads_.pop_front();
    lock.unlock();
    UploadDone done = TryUpload(task);
    lock.lock();
    Apply(std::move(done));
  }
}

UploadDone Driver::TryUpload(const UploadTask& task) {
  // The core lets nothing of a job be staged while its shard is under way.
  StagedShard* staged = nullptr;
  {
    std::lock_guard lock(mutex_);
    staged = &staged_.at(task.upload.header.job());
  }
  if (staged->sha256.empty()) {
    storage::Sha256 hash;
    hash.Update(staged->shard.prefix);
    hash.Update(staged->shard.data);
    staged->sha256 = hash.HexDigest();
  }
  v1::UploadShardRequest::Header header = task.upload.header;
  header.set_sha256(staged->sha256);
  const std::string_view parts[] = {staged->shard.prefix, staged->shard.data};
  const absl::Status status = bulk_->Upload(task.call, header, parts, task.upload.timeout_ms);
  return {task.upload.upload, status, staged->sha256};
}

// ---- time ----

void Driver::RunTimer() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (std::exchange(memory_due_, false)) {
      lock.unlock();
      const MemoryRead read{ResidentBytes(), PeakResidentBytes()};
      lock.lock();
      Apply(read);
    } else if (!timer_at_ms_.has_value()) {
      timer_wake_.wait(lock);
    } else if (const double left_ms = *timer_at_ms_ - clock_(); left_ms > 0) {
      timer_wake_.wait_for(lock, std::chrono::duration<double, std::milli>(left_ms));
    } else {
      timer_at_ms_.reset();
      Apply(TimerFired{});
    }
  }
}

}  // namespace lorad::worker
