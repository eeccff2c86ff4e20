#ifndef LORAD_WORKER_BULK_H_
#define LORAD_WORKER_BULK_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// What is too big for the control stream: slot contents in, checkpoint shards out.
// Threads: Fetch is called by the executor's thread while Upload runs on the uploader's.
class Bulk {
 public:
  using Sink = std::function<absl::Status(std::string_view piece)>;

  virtual ~Bulk() = default;

  // Hands the content (one safetensors file) to `sink` piece by piece, in order. An error of the
  // sink ends the transfer and is returned. kUnavailable: the coordinator cannot be reached now;
  // any other error is final.
  virtual absl::Status Fetch(const v1::FetchSlotContentRequest& request, const Sink& sink) = 0;

  // Sends the parts, one after the other, as one shard. OK once it is on the coordinator's disk.
  virtual absl::Status Upload(const v1::UploadShardRequest::Header& header,
                              absl::Span<const std::string_view> parts) = 0;

  // Calls for this epoch or an older one end with kCancelled, those under way and all later ones.
  // Threads: any.
  virtual void Cancel(int64_t epoch) = 0;
};

}  // namespace lorad::worker

#endif  // LORAD_WORKER_BULK_H_
