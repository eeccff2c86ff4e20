#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "worker/link/bulk.h"
#include "worker/link/credentials.h"

namespace lorad::worker {

// Bulk over gRPC, on a connection of its own: the control stream's flow control never waits for it.
class GrpcBulk : public Bulk {
 public:
  // As GrpcLink.
  explicit GrpcBulk(std::string coordinator, const Credentials* credentials = nullptr);
  ~GrpcBulk() override;

  absl::Status Fetch(int64_t call, const v1::FetchSlotContentRequest& request, int64_t timeout_ms,
                     const Sink& sink) override;
  absl::Status Describe(int64_t call, const v1::DescribeModelRequest& request, int64_t timeout_ms,
                        const PartSink& sink) override;
  absl::Status Upload(int64_t call, const v1::UploadShardRequest::Header& header,
                      absl::Span<const std::string_view> parts, int64_t timeout_ms) override;
  void Cancel(int64_t call) override;

 private:
  struct Stub;
  class Call;

  // On a connection that shows the credentials as they are now. Shared with the calls on it.
  std::shared_ptr<Stub> StubNow();

  const std::string coordinator_;
  const Credentials* const credentials_;
  std::mutex mutex_;
  std::shared_ptr<Stub> stub_ ABSL_GUARDED_BY(mutex_);
  int64_t cancelled_ ABSL_GUARDED_BY(mutex_) = 0;  // and all before it
  std::set<Call*> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lorad::worker
