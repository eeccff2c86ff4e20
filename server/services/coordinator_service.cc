#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lorad/worker/v1/worker.grpc.pb.h"
#include "server/services/backend.h"
#include "server/services/call.h"
#include "server/services/services.h"
#include "server/services/upload.h"
#include "server/validation/limits.h"
#include "storage/checkpoint.h"

namespace lorad::server {
namespace {

namespace wire = worker::v1;
using ControlStream = grpc::ServerReaderWriter<wire::CoordinatorMessage, wire::WorkerMessage>;

constexpr int kProtocolVersion = 1;
// How long a worker has, after the last order, to end the stream itself.
constexpr std::chrono::seconds kLastOrderGrace(2);

// The writing half of a control stream: a bounded queue, emptied by a thread of the stream's own.
class ControlSender final : public WorkerSender {
 public:
  ControlSender(grpc::ServerContext& context, ControlStream& stream)
      : context_(context), stream_(stream) {}

  void Send(wire::CoordinatorMessage message) override {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    if (orders_.size() == kWorkerOrdersMax) {
      // It reads nothing any more: it is lost.
      overflowed_ = closed_ = true;
      orders_.clear();
      context_.TryCancel();
    } else {
      orders_.push_back(std::move(message));
    }
    changed_.notify_all();
  }

  void Close(const absl::Status& reason) override {
    std::lock_guard lock(mutex_);
    closed_ = true;
    reason_ = reason;
    changed_.notify_all();
  }

  // Writes orders as they come; ends once closed and empty, or with the stream.
  void WriteOrders() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      if (!orders_.empty()) {
        const wire::CoordinatorMessage order = std::move(orders_.front());
        orders_.pop_front();
        lock.unlock();
        const bool written = stream_.Write(order);
        lock.lock();
        if (!written) return;
      } else if (closed_) {
        if (!changed_.wait_for(lock, kLastOrderGrace, [this] { return ended_; })) {
          context_.TryCancel();  // so that the reading half ends too
        }
        return;
      } else {
        changed_.wait(lock, [this] { return ended_ || closed_ || !orders_.empty(); });
      }
    }
  }

  // The reading half has ended: nothing can be written any more. Returns why.
  absl::Status End() {
    std::lock_guard lock(mutex_);
    ended_ = closed_ = true;
    changed_.notify_all();
    if (overflowed_) {
      return LimitExceeded("ORDERS_NOT_READ", "orders",
                           absl::StrCat("the worker left ", kWorkerOrdersMax, " orders unread"));
    }
    return reason_;
  }

 private:
  grpc::ServerContext& context_;
  ControlStream& stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<wire::CoordinatorMessage> orders_;
  absl::Status reason_;
  bool closed_ = false;  // no more orders
  bool overflowed_ = false;
  bool ended_ = false;  // the stream is over
};

// What the driver holds on to: it may call after the stream is gone.
class SenderHandle final : public WorkerSender {
 public:
  explicit SenderHandle(ControlSender* sender) : sender_(sender) {}
  void Send(wire::CoordinatorMessage message) override {
    std::lock_guard lock(mutex_);
    if (sender_ != nullptr) sender_->Send(std::move(message));
  }
  void Close(const absl::Status& reason) override {
    std::lock_guard lock(mutex_);
    if (sender_ != nullptr) sender_->Close(reason);
  }
  void Detach() {
    std::lock_guard lock(mutex_);
    sender_ = nullptr;
  }

 private:
  std::mutex mutex_;
  ControlSender* sender_;  // null once the stream is gone
};

class CoordinatorService final : public wire::Coordinator::Service {
 public:
  explicit CoordinatorService(Backend& backend) : backend_(backend) {}

  grpc::Status Control(grpc::ServerContext* context, ControlStream* stream) override {
    return ToGrpc(RunControl(*context, *stream));
  }

  grpc::Status FetchSlotContent(grpc::ServerContext*, const wire::FetchSlotContentRequest* request,
                                grpc::ServerWriter<wire::Chunk>* writer) override {
    return ToGrpc(Fetch(*request, *writer));
  }

  grpc::Status UploadShard(grpc::ServerContext* context,
                           grpc::ServerReader<wire::UploadShardRequest>* reader,
                           wire::UploadShardResponse*) override {
    return ToGrpc(TakeShard(*context, *reader));
  }

 private:
  absl::Status RunControl(grpc::ServerContext& context, ControlStream& stream) {
    wire::WorkerMessage message;
    if (!stream.Read(&message) || !message.has_hello()) {
      return InvalidFields("message", {{"hello", "must be the first message"}});
    }
    if (absl::Status status = CheckHello(message.hello()); !status.ok()) return status;
    absl::StatusOr<Gate::Pass> pass = backend_.workers.Enter();
    if (!pass.ok()) return pass.status();

    ControlSender sender(context, stream);
    // Shared with the driver, which may hold it longer than this call lasts.
    auto handle = std::make_shared<SenderHandle>(&sender);
    const uint64_t connection =
        backend_.driver.ConnectWorker(std::move(*message.mutable_hello()), handle);
    std::thread writer([&sender] { sender.WriteOrders(); });
    while (stream.Read(&message)) backend_.driver.WorkerSaid(connection, std::move(message));
    const absl::Status reason = sender.End();
    writer.join();
    handle->Detach();
    backend_.driver.WorkerGone(connection, reason.ok() ? "the worker ended its control stream"
                                                       : std::string(reason.message()));
    return reason;
  }

  static absl::Status CheckHello(const wire::Hello& hello) {
    if (hello.protocol_version() != kProtocolVersion) {
      return PreconditionFailed(
          "PROTOCOL_VERSION", absl::StrCat("worker ", Quotable(hello.worker(), 100)),
          absl::StrCat("this daemon speaks version ", kProtocolVersion,
                       " of the worker protocol, the worker version ", hello.protocol_version(),
                       ": run both from one release"));
    }
    return RequestCheck().Field("hello.worker", CheckName(hello.worker())).status();
  }

  absl::Status Fetch(const wire::FetchSlotContentRequest& request,
                     grpc::ServerWriter<wire::Chunk>& writer) {
    absl::StatusOr<SlotContent> content = ParseSlotContent(request.content());
    if (!content.ok()) return content.status();
    if (content->path.find("..") != std::string::npos) {
      return InvalidFields("message", {{"content", "must lie in the data directory"}});
    }
    const std::string directory = backend_.driver.data_dir().Full(content->path);
    const storage::ByteSink sink = [&writer](std::string_view bytes) -> absl::Status {
      wire::Chunk chunk;
      chunk.set_data(bytes.data(), bytes.size());
      return writer.Write(chunk) ? absl::OkStatus() : absl::CancelledError("the worker left");
    };
    return content->kind == SlotContent::Kind::kCheckpoint
               ? storage::StreamCheckpoint(directory, sink)
               : storage::StreamAdapter(directory, request.job(), sink);
  }

  absl::Status TakeShard(grpc::ServerContext& context,
                         grpc::ServerReader<wire::UploadShardRequest>& reader) {
    wire::UploadShardRequest message;
    if (!reader.Read(&message) || !message.has_header()) {
      return InvalidFields("message", {{"header", "must be the first message"}});
    }
    ShardUploaded shard;
    shard.header = message.header();
    absl::StatusOr<Upload> upload =
        Upload::Create(backend_.driver.files(), backend_.driver.data_dir().NewUpload(),
                       "checkpoint shard", kShardBytesMax);
    if (!upload.ok()) return upload.status();
    while (reader.Read(&message)) {
      if (message.content_case() != wire::UploadShardRequest::kChunk) {
        return InvalidFields("message", {{"header", "must come once, in the first message"}});
      }
      if (absl::Status status = upload->Append(message.chunk()); !status.ok()) return status;
    }
    if (context.IsCancelled()) return absl::CancelledError("the worker left in mid-upload");
    absl::Status status = upload->Finish(shard.header.size_bytes(), shard.header.sha256());
    if (!status.ok()) return status;
    shard.upload = upload->Release();
    return backend_.driver.Call(std::move(shard), DeadlineOf(context)).status();
  }

  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCoordinatorService(Backend& backend) {
  return std::make_unique<CoordinatorService>(backend);
}

}  // namespace lorad::server
