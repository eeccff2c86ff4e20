#include "tests/worker/memory_peers.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "storage/adapters/checkpoint.h"
#include "storage/files/errors.h"
#include "tests/worker/stages.h"

namespace lorad::worker {

// ---- MemoryBulk ----

namespace {

// Those matrices with their moments; what is no shard as it is.
std::string WhatIsAsked(const std::string& bytes, const v1::FetchSlotContentRequest& request) {
  std::set<std::string> asked;
  for (const std::string& name : request.tensors()) {
    for (const char* suffix : {"", storage::kFirstMomentSuffix, storage::kSecondMomentSuffix}) {
      asked.insert(name + suffix);
    }
  }
  return PartOfShard(bytes, [&](const std::string& name) { return asked.contains(name); });
}

}  // namespace

absl::Status MemoryBulk::Fetch(int64_t, const v1::FetchSlotContentRequest& request, int64_t,
                               const Sink& sink) {
  std::string bytes;
  {
    std::lock_guard lock(mutex_);
    const auto found = contents_.find(request.content());
    if (found == contents_.end()) return absl::NotFoundError("no content " + request.content());
    bytes = found->second;
    if (!request.tensors().empty()) bytes = WhatIsAsked(bytes, request);
    fetched_bytes_ += static_cast<int64_t>(bytes.size());
  }
  // Odd pieces: values and the header are cut anywhere.
  for (size_t at = 0; at < bytes.size(); at += 4099) {
    absl::Status status = sink(std::string_view(bytes).substr(at, 4099));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status MemoryBulk::Describe(int64_t, const v1::DescribeModelRequest&, int64_t,
                                  const PartSink&) {
  return storage::WithReason(absl::StatusCode::kFailedPrecondition, "MODEL_CHANGED",
                             "the files are not those that were registered");
}

absl::Status MemoryBulk::Upload(int64_t call, const v1::UploadShardRequest::Header& header,
                                absl::Span<const std::string_view> parts, int64_t) {
  std::string bytes;
  for (const std::string_view part : parts) bytes.append(part);
  std::unique_lock lock(mutex_);
  uploaded_.wait(lock, [&] { return header.job() != unanswered_ || call <= cancelled_; });
  if (call <= cancelled_) return absl::CancelledError("cancelled");
  if (away_) return absl::UnavailableError("away");
  shards_[{header.job(), header.step(), header.stage()}] = std::move(bytes);
  uploaded_.notify_all();
  return absl::OkStatus();
}

void MemoryBulk::Cancel(int64_t call) {
  std::lock_guard lock(mutex_);
  cancelled_ = std::max(cancelled_, call);
  uploaded_.notify_all();
}

void MemoryBulk::SetContent(const std::string& name, std::string bytes) {
  std::lock_guard lock(mutex_);
  contents_[name] = std::move(bytes);
}

int64_t MemoryBulk::fetched_bytes() {
  std::lock_guard lock(mutex_);
  return fetched_bytes_;
}

void MemoryBulk::SetAway(bool away) {
  std::lock_guard lock(mutex_);
  away_ = away;
}

void MemoryBulk::SetUnanswered(const std::string& job) {
  std::lock_guard lock(mutex_);
  unanswered_ = job;
  uploaded_.notify_all();
}

std::string MemoryBulk::Shard(const std::string& job, int64_t step, int32_t stages) {
  std::unique_lock lock(mutex_);
  std::vector<std::string> shards;
  for (int32_t stage = 0; stage < stages; ++stage) {
    const bool came = uploaded_.wait_for(lock, std::chrono::seconds(20), [&] {
      return shards_.count({job, step, stage}) != 0;
    });
    if (!came) throw std::runtime_error("no shard of " + job + " at step " + std::to_string(step));
    shards.push_back(std::move(shards_.extract({job, step, stage}).mapped()));
  }
  return stages == 1 ? shards[0] : MergeShards(shards);
}

// ---- MemoryLink ----

void MemoryLink::Dial(int64_t stream, const v1::Hello&, Listener* listener) {
  std::lock_guard lock(mutex_);
  stream_ = stream;
  listener_ = listener;
}

void MemoryLink::Say(v1::WorkerMessage message) {
  std::lock_guard lock(mutex_);
  if (message.has_report()) reports_.push_back(message.report());
  if (message.has_cut_answer()) cut_answers_.push_back(message.cut_answer());
}

void MemoryLink::Tell(v1::CoordinatorMessage message) {
  Listener* listener = nullptr;
  {
    std::lock_guard lock(mutex_);
    listener = listener_;
  }
  listener->Said(stream_, std::move(message));
}

std::vector<v1::Report> MemoryLink::TakeReports() {
  std::lock_guard lock(mutex_);
  return std::exchange(reports_, {});
}

std::vector<v1::CutAnswer> MemoryLink::TakeCutAnswers() {
  std::lock_guard lock(mutex_);
  return std::exchange(cut_answers_, {});
}

}  // namespace lorad::worker
