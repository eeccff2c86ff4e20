// What a worker speaks with, in the memory of a test.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"
#include "worker/link/bulk.h"
#include "worker/link/link.h"

namespace lorad::worker {

// Slot contents and shards in memory.
class MemoryBulk : public Bulk {
 public:
  absl::Status Fetch(int64_t call, const v1::FetchSlotContentRequest& request, int64_t timeout_ms,
                     const Sink& sink) override;
  // The coordinator's files are not the registered ones.
  absl::Status Describe(int64_t call, const v1::DescribeModelRequest& request, int64_t timeout_ms,
                        const PartSink& sink) override;
  absl::Status Upload(int64_t call, const v1::UploadShardRequest::Header& header,
                      absl::Span<const std::string_view> parts, int64_t timeout_ms) override;
  void Cancel(int64_t call) override;

  // A shard, of which each stage of several is sent what it asks for.
  void SetContent(const std::string& name, std::string bytes);
  // That were sent of all contents.
  int64_t fetched_bytes();
  // Waits for the shards of (job, step) of all stages; they as one.
  std::string Shard(const std::string& job, int64_t step, int32_t stages = 1);
  // While true, uploads answer kUnavailable.
  void SetAway(bool away);
  // Uploads of this job are not answered until they are cancelled or another job is named.
  void SetUnanswered(const std::string& job);

 private:
  std::mutex mutex_;
  std::condition_variable uploaded_;  // or anything else has changed
  std::map<std::string, std::string> contents_;
  std::map<std::tuple<std::string, int64_t, int32_t>, std::string> shards_;  // by job, step, stage
  int64_t fetched_bytes_ = 0;
  int64_t cancelled_ = 0;
  bool away_ = false;
  std::string unanswered_;
};

// A stream whose other end is the test.
class MemoryLink : public Link {
 public:
  void Dial(int64_t stream, const v1::Hello& hello, Listener* listener) override;
  void HangUp() override {}
  void Say(v1::WorkerMessage message) override;
  void Close() override {}

  // Gives the worker a message.
  void Tell(v1::CoordinatorMessage message);
  // What it has said since the last call.
  std::vector<v1::Report> TakeReports();
  std::vector<v1::CutAnswer> TakeCutAnswers();

 private:
  std::mutex mutex_;
  int64_t stream_ = 0;
  Listener* listener_ = nullptr;
  std::vector<v1::Report> reports_;
  std::vector<v1::CutAnswer> cut_answers_;
};

}  // namespace lorad::worker
