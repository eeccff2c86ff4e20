#include "worker/uploader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "spdlog/spdlog.h"
#include "storage/sha256.h"

namespace lorad::worker {
namespace {

constexpr int64_t kBackOffFirstMs = 100;
constexpr int64_t kBackOffLastMs = 5000;

}  // namespace

Uploader::Uploader(Bulk* bulk, ReportLog* reports, int64_t epoch, std::string numerics_id)
    : bulk_(bulk), reports_(reports), epoch_(epoch), numerics_id_(std::move(numerics_id)) {
  thread_ = std::thread([this] { Run(); });
}

Uploader::~Uploader() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  bulk_->Cancel(epoch_);
  thread_.join();
}

void Uploader::Save(Slot* slot, Slot::Shard shard) {
  {
    std::lock_guard lock(mutex_);
    Task task;
    task.slot = slot;
    task.shard = std::move(shard);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_all();
}

void Uploader::Release(std::unique_ptr<Slot> slot, std::function<void()> freed) {
  {
    std::lock_guard lock(mutex_);
    Task task;
    task.released = std::move(slot);
    task.freed = std::move(freed);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_all();
}

void Uploader::Run() {
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      if (stop_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    if (task.released != nullptr) {
      DoRelease(&task);
    } else {
      DoSave(task);
    }
  }
}

void Uploader::DoSave(const Task& task) {
  const Slot::Shard& shard = task.shard;
  storage::Sha256 hash;
  hash.Update(shard.prefix);
  hash.Update(shard.data);
  v1::UploadShardRequest::Header header;
  header.set_job(task.slot->options().job);
  header.set_step(shard.step);
  header.set_epoch(epoch_);
  header.set_stage(0);
  header.set_stages(1);
  header.set_size_bytes(shard.bytes());
  header.set_sha256(hash.HexDigest());
  header.set_numerics_id(numerics_id_);
  const std::string_view parts[] = {shard.prefix, shard.data};
  absl::Status status;
  for (int64_t pause_ms = kBackOffFirstMs;; pause_ms = std::min(2 * pause_ms, kBackOffLastMs)) {
    status = bulk_->Upload(header, parts);
    // A full disk may get room again.
    const bool again = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
    if (!again || !Pause(pause_ms)) break;
  }
  task.slot->ReleaseStaging();
  if (!status.ok()) {
    // Without a Saved report the coordinator counts nothing as saved, so nothing is lost here.
    if (!absl::IsCancelled(status)) {
      spdlog::warn("job {}: step {} was not saved: {}", header.job(), header.step(),
                   status.ToString());
    }
    return;
  }
  v1::Report report;
  v1::Saved& saved = *report.mutable_saved();
  saved.set_job(header.job());
  saved.set_step(header.step());
  saved.set_sha256(header.sha256());
  saved.set_bytes(header.size_bytes());
  reports_->Add(epoch_, std::move(report));
}

void Uploader::DoRelease(Task* task) {
  v1::Report report;
  report.mutable_slot_freed()->set_job(task->released->options().job);
  task->released.reset();
  if (task->freed) task->freed();
  reports_->Add(epoch_, std::move(report));
}

bool Uploader::Pause(int64_t milliseconds) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return stop_; });
}

}  // namespace lorad::worker
