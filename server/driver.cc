#include "server/driver.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/check_queue.h"
#include "server/errors/errors.h"
#include "server/file_effects.h"
#include "server/startup.h"
#include "server/store_reads.h"
#include "server/task_pool.h"
#include "storage/directory_lock.h"
#include "storage/files.h"

namespace lorad::server {
namespace {

constexpr size_t kTurnEventsMax = 256;
constexpr auto kCommitRetry = std::chrono::seconds(1);

using Content = decltype(Event::content);

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

class DriverImpl : public Driver {
 public:
  DriverImpl(const DriverOptions& options, storage::Files& files, std::unique_ptr<Solver> solver)
      : options_(options),
        files_(files),
        clock_(*options.clock),
        data_dir_(options.data_dir),
        solver_(std::move(solver)),
        revisions_(options.core.watch_revisions_max),
        random_(std::random_device{}()) {}

  ~DriverImpl() override {
    {
      std::lock_guard lock(queue_mutex_);
      stop_ = true;
    }
    queue_wake_.notify_all();
    queue_room_.notify_all();
    if (thread_.joinable()) thread_.join();
    file_thread_.Stop();
    checks_.CancelAll();
    planner_thread_.Stop();
    if (solvers_) solvers_->Stop();
    revisions_.Shutdown();
    std::map<uint64_t, OnReply> replies;
    {
      std::lock_guard lock(replies_mutex_);
      replies_closed_ = true;
      replies.swap(replies_);
    }
    for (auto& [request, on_reply] : replies) on_reply(ShuttingDown());
  }

  absl::Status Init(storage::StoreHooks hooks) {
    if (absl::Status status = MakeFolders(data_dir_, files_); !status.ok()) return status;
    absl::StatusOr<storage::DirectoryLock> lock = storage::DirectoryLock::Take(data_dir_.root());
    if (!lock.ok()) return lock.status();
    lock_ = *std::move(lock);
    if (absl::Status status = CheckStoreIsThere(data_dir_, files_); !status.ok()) return status;
    auto store = storage::JobStore::Open(data_dir_.root(), std::move(hooks));
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    std::vector<RevisionLog::Revision> kept;
    absl::StatusOr<StoredState> stored = ReadStore(*store_, &kept);
    if (!stored.ok()) return stored.status();
    const int64_t newest = stored->last_revision;
    const int64_t gone = kept.empty() ? newest : kept.front().revision - 1;
    revisions_.Start(gone, newest, std::move(kept));
    std::vector<Effect> effects;
    auto core = Core::Create(options_.core, *stored, clock_.Now(), &effects);
    if (!core.ok()) return core.status();
    core_ = *std::move(core);
    if (absl::Status status = RemoveLeftovers(data_dir_, files_, core_->PathsInUse());
        !status.ok()) {
      return status;
    }
    solvers_ = std::make_unique<TaskPool>(options_.solver_threads + 1);  // one for small checks
    thread_ = std::thread([this, effects = std::move(effects)]() mutable {
      Carry(std::move(effects));
      Run();
    });
    return absl::OkStatus();
  }

  // ---- requests ----

  absl::StatusOr<ReplyValue> Call(Request request, absl::Time deadline) override {
    // Shared with the thread that replies: either may be the last to look at it.
    auto waiter = std::make_shared<Waiter>();
    const uint64_t number =
        PostRequest(std::move(request), [waiter](auto value) { waiter->Set(std::move(value)); });
    std::optional<absl::StatusOr<ReplyValue>> value = waiter->Wait(deadline);
    if (value) return *std::move(value);
    std::lock_guard lock(replies_mutex_);
    replies_.erase(number);
    return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                 "the answer did not come in time; what was asked for may still happen");
  }

  void Call(Request request, OnReply on_reply) override {
    PostRequest(std::move(request), std::move(on_reply));
  }

  uint64_t ConnectWorker(worker::v1::Hello hello, std::shared_ptr<WorkerSender> sender) override {
    uint64_t connection;
    {
      std::lock_guard lock(senders_mutex_);
      connection = next_connection_++;
      senders_[connection] = std::move(sender);
    }
    Post(WorkerConnected{connection, std::move(hello)}, /*may_wait=*/true);
    return connection;
  }

  void WorkerSaid(uint64_t connection, worker::v1::WorkerMessage message) override {
    Post(server::WorkerSaid{connection, std::move(message)}, /*may_wait=*/true);
  }

  void WorkerGone(uint64_t connection, std::string reason) override {
    {
      std::lock_guard lock(senders_mutex_);
      senders_.erase(connection);
    }
    Post(server::WorkerGone{connection, std::move(reason)}, /*may_wait=*/true);
  }

  // ---- reads ----

  absl::StatusOr<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest& r) override {
    return ReadEvents(*store_, r);
  }
  absl::StatusOr<v1::GetMetricsResponse> GetMetrics(const v1::GetMetricsRequest& r) override {
    return ReadMetrics(*store_, r);
  }
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(
      const v1::ListCheckpointsRequest& r) override {
    return ReadCheckpoints(*store_, r);
  }
  absl::StatusOr<v1::Checkpoint> GetCheckpoint(const v1::GetCheckpointRequest& r,
                                               std::string* path) override {
    absl::StatusOr<v1::Checkpoint> checkpoint = ReadCheckpoint(*store_, r);
    if (checkpoint.ok() && path) {
      *path =
          data_dir_.Full(absl::StrCat("checkpoints/", checkpoint->job(), "/", checkpoint->step()));
    }
    return checkpoint;
  }
  absl::StatusOr<std::string> DatasetPath(const std::string& name) override {
    absl::StatusOr<records::DatasetRecord> record = ReadDataset(*store_, name);
    if (!record.ok()) return record.status();
    return data_dir_.Full(record->path());
  }
  absl::StatusOr<std::string> AdapterPath(const std::string& name) override {
    absl::StatusOr<records::AdapterRecord> record = ReadAdapter(*store_, name);
    if (!record.ok()) return record.status();
    return data_dir_.Full(record->path());
  }

  RevisionLog& revisions() override { return revisions_; }
  const DataDir& data_dir() const override { return data_dir_; }
  storage::Files& files() override { return files_; }

 private:
  // Where a caller waits for its reply.
  class Waiter {
   public:
    void Set(absl::StatusOr<ReplyValue> value) {
      {
        std::lock_guard lock(mutex_);
        value_ = std::move(value);
      }
      changed_.notify_all();
    }
    std::optional<absl::StatusOr<ReplyValue>> Wait(absl::Time deadline) {
      std::unique_lock lock(mutex_);
      const auto set = [this] { return value_.has_value(); };
      if (deadline == absl::InfiniteFuture()) {
        changed_.wait(lock, set);
      } else {
        // The far past would overflow the clock's arithmetic.
        changed_.wait_until(lock, absl::ToChronoTime(std::max(deadline, absl::UnixEpoch())), set);
      }
      return std::move(value_);
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<absl::StatusOr<ReplyValue>> value_;  // guarded by mutex_
  };

  static absl::Status ShuttingDown() {
    return Unavailable("SHUTTING_DOWN", "the coordinator is being stopped", 5000);
  }

  uint64_t PostRequest(Request request, OnReply on_reply) {
    if (auto* create = std::get_if<CreateJob>(&request)) {
      std::lock_guard lock(random_mutex_);
      create->random = random_();
    }
    uint64_t number;
    {
      std::unique_lock lock(replies_mutex_);
      if (replies_closed_) {
        lock.unlock();
        on_reply(ShuttingDown());
        return 0;
      }
      number = next_request_++;
      replies_[number] = std::move(on_reply);
    }
    Post(Requested{number, std::move(request)}, /*may_wait=*/true);
    return number;
  }

  // The ends of effects never wait: the core's thread may be what they would wait for.
  void Post(Content content, bool may_wait) {
    {
      std::unique_lock lock(queue_mutex_);
      if (may_wait) {
        queue_room_.wait(lock, [this] {
          return stop_ || static_cast<int64_t>(queue_.size()) < options_.queue_events_max;
        });
      }
      if (stop_) return;
      queue_.push_back(std::move(content));
    }
    queue_wake_.notify_one();
  }

  // ---- the core's thread ----

  void Run() {
    for (;;) {
      std::vector<Content> turn = NextTurn();
      if (turn.empty()) return;
      std::vector<Effect> effects;
      for (Content& content : turn) {
        for (Effect& effect : core_->Apply(Event{clock_.Now(), std::move(content)})) {
          effects.push_back(std::move(effect));
        }
      }
      if (!Carry(std::move(effects))) return;
    }
  }

  // All that is there, or the timers that are due; waits for one. Empty: stop.
  std::vector<Content> NextTurn() {
    std::unique_lock lock(queue_mutex_);
    for (;;) {
      if (stop_) return {};
      std::vector<Content> turn;
      while (!timers_.empty() && timers_.begin()->first <= clock_.Now().steady_us) {
        turn.push_back(TimerFired{timers_.begin()->second});
        timers_.erase(timers_.begin());
      }
      while (!queue_.empty() && turn.size() < kTurnEventsMax) {
        turn.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
      if (!turn.empty()) {
        lock.unlock();
        queue_room_.notify_all();
        return turn;
      }
      if (timers_.empty()) {
        queue_wake_.wait(lock);
      } else {
        const int64_t us = std::max<int64_t>(timers_.begin()->first - clock_.Now().steady_us, 0);
        queue_wake_.wait_for(lock, std::chrono::microseconds(us));
      }
    }
  }

  // One transaction for the turn, then everything that depends on it. False: stopped.
  bool Carry(std::vector<Effect> effects) {
    std::vector<storage::Mutation> mutations;
    for (Effect& effect : effects) {
      if (auto* persist = std::get_if<Persist>(&effect)) {
        std::move(persist->mutations.begin(), persist->mutations.end(),
                  std::back_inserter(mutations));
      }
    }
    if (!Commit(mutations)) return false;
    for (Effect& effect : effects) {
      std::visit([this](auto& content) { Do(content); }, effect);
    }
    return true;
  }

  // The core is ahead of the store until this is done, so nothing else may be: it waits for room on
  // the disk.
  bool Commit(const std::vector<storage::Mutation>& mutations) {
    for (;;) {
      const absl::Status status = store_->Apply(mutations);
      if (status.ok()) return true;
      if (!absl::IsResourceExhausted(status)) {
        // What the store holds is not known any more; the next start reads it.
        spdlog::critical("the store cannot be written: {}", status.ToString());
        std::abort();
      }
      spdlog::error("nothing is acknowledged until the store can be written: {}",
                    status.ToString());
      std::unique_lock lock(queue_mutex_);
      if (queue_wake_.wait_for(lock, kCommitRetry, [this] { return stop_; })) return false;
    }
  }

  void Do(Persist&) {}

  void Do(Reply& reply) {
    OnReply on_reply;
    {
      std::lock_guard lock(replies_mutex_);
      auto node = replies_.extract(reply.request);
      if (node.empty()) return;  // its deadline has passed
      on_reply = std::move(node.mapped());
    }
    if (reply.status.ok()) {
      on_reply(std::move(reply.value));
    } else {
      on_reply(std::move(reply.status));
    }
  }

  std::shared_ptr<WorkerSender> SenderOf(uint64_t connection) {
    std::lock_guard lock(senders_mutex_);
    const auto found = senders_.find(connection);
    return found == senders_.end() ? nullptr : found->second;
  }

  void Do(Send& send) {
    if (auto sender = SenderOf(send.connection)) sender->Send(std::move(send.message));
  }

  void Do(Disconnect& disconnect) {
    if (auto sender = SenderOf(disconnect.connection)) sender->Close(disconnect.reason);
  }

  void Do(Announce& announce) {
    revisions_.Append({announce.revision, std::move(announce.job), std::move(announce.message)});
  }

  void Do(CheckRows& check) {
    checks_.Add(std::move(check));
    solvers_->Add([this] { MakeChecks(); });
  }

  void Do(CancelRows& cancel) { checks_.Cancel(cancel.key); }

  void MakeChecks() {
    while (const std::optional<CheckQueue::Check> check = checks_.Take()) {
      absl::StatusOr<records::RowsSummary> summary = absl::CancelledError("nobody waits for it");
      if (!*check->cancelled) {
        summary = solver_->CheckRows(check->order.source, *check->cancelled);
      }
      checks_.Done(*check);
      Post(RowsChecked{check->order.key, std::move(summary)}, /*may_wait=*/false);
    }
  }

  void Do(Plan& plan) {
    auto hurry = std::make_shared<std::atomic<bool>>(plan.hurry);
    std::erase_if(hurries_, [](const auto& entry) { return entry.second.expired(); });
    hurries_[plan.number] = hurry;
    planner_thread_.Add([this, hurry, plan = std::move(plan)] {
      absl::StatusOr<SolvedPlan> solved =
          solver_->Plan(plan.input, [&] { return hurry->load(std::memory_order_relaxed); });
      if (!solved.ok()) {
        return Post(Planned{plan.number, solved.status()}, /*may_wait=*/false);
      }
      Post(Planned{plan.number, std::move(solved->window), std::move(solved->packing),
                   std::move(solved->failures)},
           /*may_wait=*/false);
    });
  }

  void Do(Hurry& hurry) {
    const auto found = hurries_.find(hurry.number);
    if (found == hurries_.end()) return;
    if (const auto flag = found->second.lock()) flag->store(true, std::memory_order_relaxed);
  }

  void Do(MoveUpload& move) {
    file_thread_.Add([this, move = std::move(move)] {
      Post(UploadMoved{move.number, Execute(move, data_dir_, files_)}, /*may_wait=*/false);
    });
  }

  void Do(WriteCheckpoint& write) {
    file_thread_.Add([this, write = std::move(write)] {
      Post(CheckpointWritten{write.number, Execute(write, data_dir_, files_)}, /*may_wait=*/false);
    });
  }

  void Do(RemovePath& remove) {
    file_thread_.Add([this, remove = std::move(remove)] {
      const absl::Status status = Execute(remove, data_dir_, files_);
      // Only room is lost, and the next start gets it back.
      if (!status.ok()) spdlog::warn("cannot remove {}: {}", remove.path, status.ToString());
    });
  }

  void Do(SetTimer& timer) { timers_.emplace(timer.at_us, timer.timer); }

  void Do(Note& note) {
    switch (note.level) {
      case Note::Level::kInfo:
        return spdlog::info(note.message);
      case Note::Level::kWarning:
        return spdlog::warn(note.message);
      case Note::Level::kError:
        return spdlog::error(note.message);
    }
  }

  // Constant after Init:
  const DriverOptions options_;
  storage::Files& files_;
  Clock& clock_;
  const DataDir data_dir_;
  const std::unique_ptr<Solver> solver_;
  std::optional<storage::DirectoryLock> lock_;
  std::unique_ptr<storage::JobStore> store_;
  RevisionLog revisions_;

  // The core's thread alone:
  std::unique_ptr<Core> core_;
  std::multimap<int64_t, uint64_t> timers_;  // by Moment::steady_us
  // By plan. Shared with the planning thread, which may drop a plan's when it ends.
  std::map<uint64_t, std::weak_ptr<std::atomic<bool>>> hurries_;

  std::mutex random_mutex_;
  std::mt19937_64 random_;  // guarded by random_mutex_

  std::mutex queue_mutex_;
  std::condition_variable queue_wake_;
  std::condition_variable queue_room_;
  // Guarded by queue_mutex_:
  std::deque<Content> queue_;
  bool stop_ = false;

  std::mutex replies_mutex_;
  // Guarded by replies_mutex_:
  std::map<uint64_t, OnReply> replies_;
  uint64_t next_request_ = 1;
  bool replies_closed_ = false;

  std::mutex senders_mutex_;
  // Guarded by senders_mutex_:
  std::map<uint64_t, std::shared_ptr<WorkerSender>> senders_;
  uint64_t next_connection_ = 1;

  CheckQueue checks_{options_.solver_threads};
  TaskPool file_thread_{1};
  TaskPool planner_thread_{1};  // a check of many rows holds up no window
  std::unique_ptr<TaskPool> solvers_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> Driver::Start(const DriverOptions& options,
                                                      storage::Files& files,
                                                      storage::StoreHooks hooks,
                                                      std::unique_ptr<Solver> solver) {
  if (!solver) solver = MakeFeedSolver(options.data_dir, files);
  auto driver = std::make_unique<DriverImpl>(options, files, std::move(solver));
  if (absl::Status status = driver->Init(std::move(hooks)); !status.ok()) return status;
  return std::unique_ptr<Driver>(std::move(driver));
}

}  // namespace lorad::server
