// A driver that answers by script and remembers what it was asked; the API server of a test stands
// on it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/driver/driver.h"
#include "storage/files/files.h"
#include "storage/files/sha256.h"

namespace lorad::server {

class FakeDriver final : public Driver {
 public:
  FakeDriver(const std::string& data_dir, storage::Files& files)
      : data_dir_(data_dir), files_(files) {
    const absl::Status made = files.MakeDirectory(data_dir + "/uploads");
    assert(made.ok());
  }

  // What Call answers; the default is NOT_FOUND for everything.
  std::function<absl::StatusOr<ReplyValue>(const Request&)> answer = [](const Request&) {
    return absl::NotFoundError("nothing is there");
  };
  // Requests are kept, and answered by AnswerHeld() alone.
  std::atomic<bool> hold{false};
  void AnswerHeld(const absl::StatusOr<ReplyValue>& reply) {
    std::vector<OnReply> held;
    {
      std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (OnReply& on_reply : held) on_reply(reply);
  }
  size_t held() const {
    std::lock_guard lock(mutex_);
    return held_.size();
  }

  std::function<absl::StatusOr<v1::Checkpoint>(const v1::GetCheckpointRequest&, std::string*)>
      checkpoint;
  std::function<absl::StatusOr<std::string>(const std::string&)> adapter_path;
  std::function<absl::StatusOr<std::string>(const std::string&)> dataset_path;

  absl::StatusOr<ReplyValue> Call(Request request, absl::Time) override {
    absl::StatusOr<ReplyValue> reply = answer(request);
    std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
    return reply;
  }
  uint64_t Call(Request request, OnReply on_reply) override {
    if (hold) {
      std::lock_guard lock(mutex_);
      requests_.push_back(std::move(request));
      held_.push_back(std::move(on_reply));
      return requests_.size();
    }
    on_reply(Call(std::move(request), absl::InfiniteFuture()));
    return 0;
  }

  uint64_t ConnectWorker(worker::v1::Hello hello, std::shared_ptr<WorkerSender> sender) override {
    std::lock_guard lock(mutex_);
    worker_log_.push_back("connected " + hello.worker());
    senders_.push_back(std::move(sender));
    return senders_.size();
  }
  void WorkerSaid(uint64_t connection, worker::v1::WorkerMessage message) override {
    std::lock_guard lock(mutex_);
    worker_log_.push_back("said " + std::to_string(connection) + " " + message.ShortDebugString());
  }
  void WorkerGone(uint64_t connection, std::string reason) override {
    std::lock_guard lock(mutex_);
    worker_log_.push_back("gone " + std::to_string(connection) + " " + reason);
  }

  absl::StatusOr<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest& request) override {
    v1::ListEventsResponse response;
    response.add_events()->set_job(request.job() + "/" + std::to_string(request.page_size()));
    return response;
  }
  absl::StatusOr<v1::GetMetricsResponse> GetMetrics(const v1::GetMetricsRequest& request) override {
    v1::GetMetricsResponse response;
    response.add_steps()->set_step(request.page_size());
    return response;
  }
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(
      const v1::ListCheckpointsRequest& request) override {
    v1::ListCheckpointsResponse response;
    response.add_checkpoints()->set_job(request.job());
    return response;
  }
  absl::StatusOr<v1::Checkpoint> GetCheckpoint(const v1::GetCheckpointRequest& request,
                                               std::string* path) override {
    return checkpoint ? checkpoint(request, path) : absl::NotFoundError("no checkpoint");
  }
  absl::StatusOr<std::string> DatasetPath(const std::string& name, std::string* sha256) override {
    if (!dataset_path) return absl::NotFoundError("no dataset");
    const absl::StatusOr<std::string> path = dataset_path(name);
    if (path.ok() && sha256) {
      *sha256 = storage::Sha256::Of(*storage::RealFiles().ReadAll(*path, 1 << 20));
    }
    return path;
  }
  absl::StatusOr<std::string> AdapterPath(const std::string& name) override {
    return adapter_path ? adapter_path(name) : absl::NotFoundError("no adapter");
  }

  absl::Status Writable() override {
    std::lock_guard lock(mutex_);
    return writable_;
  }
  void SetWritable(const absl::Status& writable) {
    std::lock_guard lock(mutex_);
    writable_ = writable;
  }

  RevisionLog& revisions() override { return revisions_; }
  const DataDir& data_dir() const override { return data_dir_; }
  storage::Files& files() override { return files_; }

  // All requests of one kind, in order.
  template <typename Kind>
  std::vector<Kind> Requests() const {
    std::lock_guard lock(mutex_);
    std::vector<Kind> found;
    for (const Request& request : requests_) {
      if (const Kind* kind = std::get_if<Kind>(&request)) found.push_back(*kind);
    }
    return found;
  }
  std::vector<std::string> worker_log() const {
    std::lock_guard lock(mutex_);
    return worker_log_;
  }
  std::shared_ptr<WorkerSender> sender(size_t index) const {
    std::lock_guard lock(mutex_);
    return index < senders_.size() ? senders_[index] : nullptr;
  }

 private:
  DataDir data_dir_;
  storage::Files& files_;
  RevisionLog revisions_{100};
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<Request> requests_;
  std::vector<OnReply> held_;
  absl::Status writable_;
  std::vector<std::string> worker_log_;
  std::vector<std::shared_ptr<WorkerSender>> senders_;
};

}  // namespace lorad::server
