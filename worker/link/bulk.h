#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// Transfers that are too big or too slow for the control stream: slot contents and hashes in,
// checkpoint shards out. Every call has a number, which its caller counts up, and ends within its
// time: kDeadlineExceeded. Threads: any; several calls at once.
class Bulk {
 public:
  using Sink = std::function<absl::Status(std::string_view piece)>;

  virtual ~Bulk() = default;

  // Hands the content (one safetensors file) to `sink` piece by piece, in order. An error of the
  // sink ends the transfer and is returned.
  virtual absl::Status Fetch(int64_t call, const v1::FetchSlotContentRequest& request,
                             int64_t timeout_ms, const Sink& sink) = 0;

  // Hands what the coordinator's files of the group's model hold to `sink`, part by part, in order.
  using PartSink = std::function<absl::Status(const v1::ModelPart& part)>;
  virtual absl::Status Describe(int64_t call, const v1::DescribeModelRequest& request,
                                int64_t timeout_ms, const PartSink& sink) = 0;

  // Sends the parts, one after the other, as one shard. OK once it is on the coordinator's disk.
  virtual absl::Status Upload(int64_t call, const v1::UploadShardRequest::Header& header,
                              absl::Span<const std::string_view> parts, int64_t timeout_ms) = 0;

  // This call and all of lower numbers end with kCancelled, those under way and those that are yet
  // to begin.
  virtual void Cancel(int64_t call) = 0;
};

}  // namespace lorad::worker
