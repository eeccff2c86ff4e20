#include "server/driver/driver.h"

#include <malloc.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/driver/bell.h"
#include "server/driver/disk.h"
#include "server/driver/loop.h"
#include "server/driver/thread_tasks.h"
#include "server/errors/errors.h"
#include "server/store/access.h"
#include "server/store/startup.h"
#include "server/store/store_reads.h"
#include "storage/files/directory_lock.h"
#include "storage/files/files.h"

namespace lorad::server {
namespace {

// A call that finds no place is asked to come again after so long.
constexpr int64_t kBusyRetryMs = 500;
constexpr int kGroupKeyWords = 8;  // of 32 bits

class DriverImpl final : public Driver, private Sinks {
 public:
  DriverImpl(const DriverOptions& options, storage::Files& files, std::unique_ptr<Solver> solver)
      : options_(options),
        files_(files),
        clock_(*options.clock),
        data_dir_(options.data_dir),
        solver_(std::move(solver)),
        disk_(RealDisk(options.data_dir)),
        revisions_(options.core.watch_memory_max),
        mailbox_(clock_, options.mailbox, [this] { bell_.Ring(); }),
        random_(std::random_device{}()),
        tasks_(options.solver_threads + 1) {}

  ~DriverImpl() override {
    stop_ = true;
    bell_.Ring();
    if (thread_.joinable()) thread_.join();
    mailbox_.Close();
    loop_.reset();  // ends the tasks that are under way
    tasks_.Stop();
    revisions_.Shutdown();
    EndCalls();
  }

  absl::Status Init(storage::StoreHooks hooks) {
    if (absl::Status status = CheckOwner(data_dir_.root(), geteuid()); !status.ok()) return status;
    absl::Status ours = storage::JobStore::CheckIsOurs(data_dir_.root());  // before all changes
    if (!ours.ok()) return ours;
    if (absl::Status status = MakeFolders(data_dir_, files_); !status.ok()) return status;
    absl::StatusOr<std::vector<std::string>> opened = MakePrivate(data_dir_.root());
    if (!opened.ok()) return opened.status();
    for (const std::string& path : *opened) {
      spdlog::warn("others could look into {}: it is its owner's alone from here on", path);
    }
    absl::StatusOr<storage::DirectoryLock> lock = storage::DirectoryLock::Take(data_dir_.root());
    if (!lock.ok()) return lock.status();
    lock_ = *std::move(lock);
    if (absl::Status status = CheckStoreIsThere(data_dir_, files_); !status.ok()) return status;
    auto store = storage::JobStore::Open(data_dir_.root(), hooks);
    if (absl::IsResourceExhausted(store.status()) && disk_->DropBallast().ok()) {
      store = storage::JobStore::Open(data_dir_.root(), hooks);
    }
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    std::random_device device;
    const uint64_t random = uint64_t{device()} << 32 | device();
    CoreOptions core = options_.core;
    for (int i = 0; i < kGroupKeyWords; ++i) absl::StrAppend(&core.group_key, device(), ".");
    auto loop = Loop::Start({core, options_.reserve_bytes, options_.solver_threads, random},
                            {clock_, data_dir_, files_, *store_, *disk_, tasks_, *solver_, mailbox_,
                             revisions_, *this});
    if (!loop.ok()) return loop.status();
    loop_ = *std::move(loop);
    malloc_trim(0);  // what was read to begin with goes back to the system
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  // ---- requests ----

  absl::StatusOr<ReplyValue> Call(Request request, absl::Time deadline) override {
    // Shared with the thread that replies: either may be the last to look at it.
    auto waiter = std::make_shared<Waiter>();
    const uint64_t number =
        PostRequest(std::move(request), [waiter](auto value) { waiter->Set(std::move(value)); });
    std::optional<absl::StatusOr<ReplyValue>> value = waiter->Wait(deadline - absl::Now());
    if (value) return *std::move(value);
    GiveUp(number);
    return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                 "the answer did not come in time; what was asked for may still happen");
  }

  uint64_t Call(Request request, OnReply on_reply) override {
    return PostRequest(std::move(request), std::move(on_reply));
  }

  void GiveUp(uint64_t number) override {
    {
      std::lock_guard lock(replies_mutex_);
      if (!replies_.contains(number)) return;
    }
    PostRequest(GiveUpRequest{number}, [](absl::StatusOr<ReplyValue>) {});
  }

  absl::Status Stop(absl::Time deadline) override {
    const absl::Status status = Driver::Stop(deadline);
    EndCalls();
    return status;
  }

  uint64_t ConnectWorker(worker::v1::Hello hello, std::shared_ptr<WorkerSender> sender) override {
    uint64_t connection;
    {
      std::lock_guard lock(senders_mutex_);
      connection = next_connection_++;
      senders_[connection] = std::move(sender);
    }
    mailbox_.Post(WorkerConnected{connection, std::move(hello)});
    return connection;
  }

  void WorkerSaid(uint64_t connection, worker::v1::WorkerMessage message) override {
    if (mailbox_.Post(server::WorkerSaid{connection, std::move(message)})) return;
    // Reports have an order, so none may be left out: it connects again, and starts over.
    Close(connection, Busy());
    WorkerGone(connection, "it said more than the coordinator could hear");
  }

  void WorkerGone(uint64_t connection, std::string reason) override {
    {
      std::lock_guard lock(senders_mutex_);
      if (senders_.erase(connection) == 0) return;
    }
    mailbox_.Post(server::WorkerGone{connection, std::move(reason)});
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
  absl::StatusOr<std::string> DatasetPath(const std::string& name, std::string* sha256) override {
    absl::StatusOr<records::DatasetRecord> record = ReadDataset(*store_, name);
    if (!record.ok()) return record.status();
    if (sha256) *sha256 = record->dataset().sha256();
    return data_dir_.Full(record->path());
  }
  absl::StatusOr<std::string> AdapterPath(const std::string& name) override {
    absl::StatusOr<records::AdapterRecord> record = ReadAdapter(*store_, name);
    if (!record.ok()) return record.status();
    return data_dir_.Full(record->path());
  }

  absl::Status Writable() override {
    {
      std::lock_guard lock(writable_mutex_);
      if (!absl::IsResourceExhausted(writable_)) return writable_;
    }
    return loop_->CheckRoom();  // there may be room since the last look
  }

  RevisionLog& revisions() override { return revisions_; }
  const DataDir& data_dir() const override { return data_dir_; }
  storage::Files& files() override { return files_; }

 private:
  // Where a caller waits for its reply.
  class Waiter {
   public:
    // More would overflow the clock's arithmetic.
    static constexpr absl::Duration kWaitMax = absl::Hours(24 * 365);

    void Set(absl::StatusOr<ReplyValue> value) {
      {
        std::lock_guard lock(mutex_);
        value_ = std::move(value);
      }
      changed_.notify_all();
    }
    // By the monotonic clock, whatever happens to the wall's meanwhile.
    std::optional<absl::StatusOr<ReplyValue>> Wait(absl::Duration patience) {
      std::unique_lock lock(mutex_);
      const auto set = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return value_.has_value(); };
      if (patience > kWaitMax) {
        changed_.wait(lock, set);
      } else {
        changed_.wait_for(
            lock, absl::ToChronoMicroseconds(std::max(patience, absl::ZeroDuration())), set);
      }
      return std::move(value_);
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<absl::StatusOr<ReplyValue>> value_ ABSL_GUARDED_BY(mutex_);
  };

  static absl::Status ShuttingDown() {
    return Unavailable("SHUTTING_DOWN", "the coordinator is being stopped", 5000);
  }
  static absl::Status Busy() {
    return Unavailable("BUSY", "the coordinator has more to do than it can take on: come again",
                       kBusyRetryMs);
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
    Mailbox::Content content = Requested{number, std::move(request)};
    if (!mailbox_.Post(std::move(content))) Refuse(std::get<Requested>(content));
    return number;
  }

  // A call that waits would hold up the end: a shard, say, that no report follows any more.
  void EndCalls() {
    std::map<uint64_t, OnReply> replies;
    {
      std::lock_guard lock(replies_mutex_);
      replies_closed_ = true;
      replies.swap(replies_);
    }
    for (auto& [request, on_reply] : replies) on_reply(ShuttingDown());
  }

  void Refuse(const Requested& requested) {
    if (const std::string* upload = UploadOf(requested.content)) {
      tasks_.Add(Tasks::Queue::kFiles,
                 [this, upload = *upload] { storage::RemoveTree(files_, upload).IgnoreError(); });
    }
    Answer(requested.request, Busy());
  }

  // ---- the loop's thread ----

  void Run() {
    while (!stop_) {
      const absl::StatusOr<bool> went_on = loop_->Step();
      if (!went_on.ok()) {
        // The content of the store is not known any more; the next start reads it.
        spdlog::critical("the store cannot be written or read, so the daemon ends: {}",
                         went_on.status().ToString());
        std::abort();
      }
      if (*went_on) continue;
      const int64_t wake_us = loop_->wake_us();
      if (wake_us == Loop::kNever) {
        bell_.Wait();
      } else {
        const int64_t us = std::max<int64_t>(wake_us - clock_.Now().steady_us, 0);
        bell_.WaitFor(std::chrono::microseconds(us));
      }
    }
  }

  // ---- where the loop's answers and orders go ----

  void Answer(uint64_t request, absl::StatusOr<ReplyValue> value) override {
    OnReply on_reply;
    {
      std::lock_guard lock(replies_mutex_);
      auto node = replies_.extract(request);
      if (node.empty()) return;  // its deadline has passed
      on_reply = std::move(node.mapped());
    }
    on_reply(std::move(value));
  }

  std::shared_ptr<WorkerSender> SenderOf(uint64_t connection) {
    std::lock_guard lock(senders_mutex_);
    const auto found = senders_.find(connection);
    return found == senders_.end() ? nullptr : found->second;
  }

  void Send(uint64_t connection, worker::v1::CoordinatorMessage message) override {
    if (auto sender = SenderOf(connection)) sender->Send(std::move(message));
  }

  void Close(uint64_t connection, const absl::Status& reason) override {
    if (auto sender = SenderOf(connection)) sender->Close(reason);
  }

  void Writable(const absl::Status& status) override {
    {
      std::lock_guard lock(writable_mutex_);
      writable_ = status;
    }
    if (options_.on_writable) options_.on_writable(status);
  }

  void Log(Note::Level level, const std::string& message) override {
    switch (level) {
      case Note::Level::kInfo:
        return spdlog::info(message);
      case Note::Level::kWarning:
        return spdlog::warn(message);
      case Note::Level::kError:
        return spdlog::error(message);
    }
  }

  // Constant after Init:
  const DriverOptions options_;
  storage::Files& files_;
  Clock& clock_;
  const DataDir data_dir_;
  const std::unique_ptr<Solver> solver_;
  const std::unique_ptr<Disk> disk_;
  std::optional<storage::DirectoryLock> lock_;
  std::unique_ptr<storage::JobStore> store_;
  RevisionLog revisions_;
  Bell bell_;
  Mailbox mailbox_;
  std::unique_ptr<Loop> loop_;  // Init, then the loop's thread; CheckRoom any
  std::atomic<bool> stop_ = false;

  std::mutex random_mutex_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(random_mutex_);

  std::mutex replies_mutex_;
  std::map<uint64_t, OnReply> replies_ ABSL_GUARDED_BY(replies_mutex_);
  uint64_t next_request_ ABSL_GUARDED_BY(replies_mutex_) = 1;
  bool replies_closed_ ABSL_GUARDED_BY(replies_mutex_) = false;

  std::mutex writable_mutex_;
  absl::Status writable_ ABSL_GUARDED_BY(writable_mutex_);

  std::mutex senders_mutex_;
  std::map<uint64_t, std::shared_ptr<WorkerSender>> senders_ ABSL_GUARDED_BY(senders_mutex_);
  uint64_t next_connection_ ABSL_GUARDED_BY(senders_mutex_) = 1;

  ThreadTasks tasks_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> Driver::Start(const DriverOptions& options,
                                                      storage::Files& files,
                                                      storage::StoreHooks hooks,
                                                      std::unique_ptr<Solver> solver) {
  if (!solver) solver = MakeFeedSolver(options.data_dir, files, *options.clock);
  auto driver = std::make_unique<DriverImpl>(options, files, std::move(solver));
  if (absl::Status status = driver->Init(std::move(hooks)); !status.ok()) return status;
  return std::unique_ptr<Driver>(std::move(driver));
}

}  // namespace lorad::server
