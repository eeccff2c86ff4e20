#include "worker/link/grpc_bulk.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "lorad/worker/v1/worker.grpc.pb.h"
#include "worker/link/channel.h"
#include "worker/link/rpc_status.h"

namespace lorad::worker {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

// Hands every message of a call to `sink`, whose error ends it and is returned.
template <class Message, class Sink>
absl::Status ReadAll(grpc::ClientContext& context, grpc::ClientReader<Message>& reader,
                     const Sink& sink) {
  Message message;
  absl::Status sunk;
  while (sunk.ok() && reader.Read(&message)) sunk = sink(message);
  if (!sunk.ok()) context.TryCancel();
  const grpc::Status status = reader.Finish();
  return sunk.ok() ? FromRpc(status) : sunk;
}

}  // namespace

struct GrpcBulk::Stub {
  std::unique_ptr<v1::Coordinator::Stub> coordinator;
  int64_t renewals = 0;  // of the credentials that it shows
};

// A call that Cancel can find while it runs.
class GrpcBulk::Call {
 public:
  Call(GrpcBulk* bulk, int64_t number, int64_t timeout_ms) : bulk_(bulk), number_(number) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
    std::lock_guard lock(bulk_->mutex_);
    cancelled_ = number <= bulk_->cancelled_;
    if (!cancelled_) bulk_->calls_.insert(this);
  }
  ~Call() {
    std::lock_guard lock(bulk_->mutex_);
    bulk_->calls_.erase(this);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Before the call begins.
  bool cancelled() const { return cancelled_; }
  int64_t number() const { return number_; }
  grpc::ClientContext& context() { return context_; }

 private:
  GrpcBulk* const bulk_;
  const int64_t number_;
  bool cancelled_ = false;
  grpc::ClientContext context_;
};

GrpcBulk::GrpcBulk(std::string coordinator, const Credentials* credentials)
    : coordinator_(std::move(coordinator)), credentials_(credentials) {}

GrpcBulk::~GrpcBulk() = default;

std::shared_ptr<GrpcBulk::Stub> GrpcBulk::StubNow() {
  const int64_t renewals = credentials_ == nullptr ? 0 : credentials_->renewals();
  std::lock_guard lock(mutex_);
  if (stub_ == nullptr || stub_->renewals != renewals) {
    stub_ = std::make_shared<Stub>();
    stub_->coordinator = v1::Coordinator::NewStub(MakeChannel(coordinator_, credentials_));
    stub_->renewals = renewals;
  }
  return stub_;
}

absl::Status GrpcBulk::Fetch(int64_t number, const v1::FetchSlotContentRequest& request,
                             int64_t timeout_ms, const Sink& sink) {
  Call call(this, number, timeout_ms);
  if (call.cancelled()) return absl::CancelledError("the group is being left");
  const std::shared_ptr<Stub> stub = StubNow();
  return ReadAll<v1::Chunk>(call.context(),
                            *stub->coordinator->FetchSlotContent(&call.context(), request),
                            [&](const v1::Chunk& chunk) { return sink(chunk.data()); });
}

absl::Status GrpcBulk::Describe(int64_t number, const v1::DescribeModelRequest& request,
                                int64_t timeout_ms, const PartSink& sink) {
  Call call(this, number, timeout_ms);
  if (call.cancelled()) return absl::CancelledError("the group is being left");
  const std::shared_ptr<Stub> stub = StubNow();
  return ReadAll<v1::ModelPart>(call.context(),
                                *stub->coordinator->DescribeModel(&call.context(), request), sink);
}

absl::Status GrpcBulk::Upload(int64_t number, const v1::UploadShardRequest::Header& header,
                              absl::Span<const std::string_view> parts, int64_t timeout_ms) {
  Call call(this, number, timeout_ms);
  if (call.cancelled()) return absl::CancelledError("the group is being left");
  v1::UploadShardResponse response;
  const std::shared_ptr<Stub> stub = StubNow();
  auto writer = stub->coordinator->UploadShard(&call.context(), &response);
  v1::UploadShardRequest request;
  *request.mutable_header() = header;
  bool open = writer->Write(request);
  for (std::string_view part : parts) {
    while (open && !part.empty()) {
      const size_t taken = std::min(part.size(), kChunkBytes);
      request.set_chunk(part.data(), taken);
      open = writer->Write(request);
      part.remove_prefix(taken);
    }
  }
  writer->WritesDone();
  return FromRpc(writer->Finish());
}

void GrpcBulk::Cancel(int64_t number) {
  std::lock_guard lock(mutex_);
  cancelled_ = std::max(cancelled_, number);
  for (Call* call : calls_) {
    if (call->number() <= number) call->context().TryCancel();
  }
}

}  // namespace lorad::worker
