#include "client/calls/follow.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "client/calls/error.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

// How long a daemon that went away is waited for, e.g. to be started again.
constexpr std::int64_t kLostMsMax = 60'000;
constexpr std::chrono::milliseconds kTryEvery(500);

std::int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool IsLost(const grpc::Status& status) {
  return status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

}  // namespace

absl::Status Follower::Run() {
  for (;;) {
    const grpc::Status status = Follow();
    if (enough_ || stopped()) return absl::OkStatus();
    if (status.error_code() == grpc::StatusCode::OUT_OF_RANGE && revision_ > 0) {
      revision_ = 0;
      store_.clear();
      following_.anew();
      continue;
    }
    if (!IsLost(status) || !connected_) return session_.FromRpc(status);
    if (WaitForDaemon()) continue;
    return status.ok() ? Error("STREAM_ENDED", "the daemon ended the watch")
                       : session_.FromRpc(status);
  }
}

void Follower::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

bool Follower::stopped() {
  std::lock_guard lock(mutex_);
  return stopped_;
}

bool Follower::Open(grpc::ClientContext* context) {
  std::lock_guard lock(mutex_);
  context_ = context;
  return !stopped_;
}

grpc::Status Follower::Follow() {
  grpc::ClientContext context;
  if (!Open(&context)) return grpc::Status::OK;
  v1::WatchJobsRequest request;
  for (const std::string& name : following_.jobs) request.add_names(name);
  request.set_live_only(following_.live_only);
  request.set_bookmarks(true);
  request.set_resume_from_revision(revision_);
  request.set_resume_from_store(store_);
  v1::Jobs::Stub stub(session_.channel());
  const auto stream = stub.WatchJobs(&context, request);
  v1::WatchJobsResponse response;
  while (!enough_ && stream->Read(&response)) {
    connected_ = true;
    lost_since_ms_ = 0;
    revision_ = std::max(revision_, response.revision());
    store_ = response.store();
    enough_ = !following_.told(response);
  }
  if (enough_) context.TryCancel();
  const grpc::Status status = stream->Finish();
  Open(nullptr);
  return status;
}

bool Follower::WaitForDaemon() {
  if (lost_since_ms_ == 0) {
    lost_since_ms_ = NowMs();
    following_.lost();
  }
  if (NowMs() - lost_since_ms_ > kLostMsMax) return false;
  std::this_thread::sleep_for(kTryEvery);
  // Each try is one: gRPC would answer for some of them that it waits a while itself.
  grpc::experimental::ChannelResetConnectionBackoff(session_.channel().get());
  return true;
}

}  // namespace lorad::client
