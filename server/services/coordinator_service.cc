#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
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
constexpr int kProtocolVersion = 1;

absl::Status CheckHello(const wire::WorkerMessage& message) {
  if (!message.has_hello()) {
    return InvalidFields("message", {{"hello", "must be the first message"}});
  }
  const wire::Hello& hello = message.hello();
  if (hello.protocol_version() != kProtocolVersion) {
    return PreconditionFailed(
        "PROTOCOL_VERSION", absl::StrCat("worker ", Quotable(hello.worker(), 100)),
        absl::StrCat("this daemon speaks version ", kProtocolVersion,
                     " of the worker protocol, the worker version ", hello.protocol_version(),
                     ": run both from one release"));
  }
  const std::string wrong =
      hello.worker().empty() ? "must be given" : CheckText(hello.worker(), kNameBytesMax);
  return RequestCheck().Field("hello.worker", wrong).status();
}

using ControlStreamReactor = grpc::ServerBidiReactor<wire::WorkerMessage, wire::CoordinatorMessage>;

// One control stream, without a thread of its own: reads one message after the other, writes orders
// from a bounded queue. Lives until gRPC says that it is done with it.
class ControlStream final : public ControlStreamReactor {
 public:
  ControlStream(Backend& backend, grpc::CallbackServerContext* context)
      : backend_(backend), context_(context) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    if (sender_ != nullptr) {
      backend_.driver.WorkerSaid(connection_, std::move(incoming_));
    } else if (absl::Status status = Greet(); !status.ok()) {
      return End(status);
    }
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    orders_.pop_front();
    if (ok && !orders_.empty()) return StartWrite(&orders_.front());
    writing_ = false;
    if (!ok) orders_.clear();
    FinishIfDue();
  }

  void OnDone() override {
    if (sender_ != nullptr) {
      sender_->Detach();
      const std::string reason(reason_.message());
      backend_.driver.WorkerGone(connection_,
                                 reason.empty() ? "the worker ended its control stream" : reason);
    }
    delete this;  // it belongs to itself: gRPC's reactors have no other owner
  }

 private:
  // What the driver holds on to: it may call after the stream is gone.
  class Sender final : public WorkerSender {
   public:
    explicit Sender(ControlStream* stream) : stream_(stream) {}
    void Send(wire::CoordinatorMessage message) override {
      std::lock_guard lock(mutex_);
      if (stream_ != nullptr) stream_->Enqueue(std::move(message));
    }
    void Close(const absl::Status& reason) override {
      std::lock_guard lock(mutex_);
      if (stream_ != nullptr) stream_->End(reason);
    }
    void Detach() {
      std::lock_guard lock(mutex_);
      stream_ = nullptr;
    }

   private:
    std::mutex mutex_;
    ControlStream* stream_;  // null once it is gone
  };

  absl::Status Greet() {
    if (absl::Status status = CheckHello(incoming_); !status.ok()) return status;
    absl::StatusOr<Gate::Pass> pass = backend_.workers.Enter();
    if (!pass.ok()) return pass.status();
    pass_.emplace(*std::move(pass));
    // Shared with the driver, which may hold it longer than the stream lasts.
    sender_ = std::make_shared<Sender>(this);
    connection_ = backend_.driver.ConnectWorker(std::move(*incoming_.mutable_hello()), sender_);
    return absl::OkStatus();
  }

  void Enqueue(wire::CoordinatorMessage order) {
    std::lock_guard lock(mutex_);
    if (ending_) return;
    if (orders_.size() == kWorkerOrdersMax) {
      // It reads nothing any more: what waits for it goes with the stream.
      orders_.erase(orders_.begin() + 1, orders_.end());
      ending_ = true;
      reason_ = LimitExceeded("ORDERS_NOT_READ", "orders",
                              absl::StrCat("the worker left ", kWorkerOrdersMax, " orders unread"));
      context_->TryCancel();
      return;
    }
    orders_.push_back(std::move(order));
    if (writing_) return;
    writing_ = true;
    StartWrite(&orders_.front());
  }

  // No more orders; those that wait are still sent.
  void End(const absl::Status& reason) {
    std::lock_guard lock(mutex_);
    if (!ending_) reason_ = reason;
    ending_ = true;
    FinishIfDue();
  }

  // REQUIRES: mutex_ is held.
  void FinishIfDue() {
    if (!ending_ || writing_ || finished_) return;
    finished_ = true;
    Finish(ToGrpc(reason_));
  }

  Backend& backend_;
  grpc::CallbackServerContext* const context_;
  // The reading side alone, one callback at a time:
  wire::WorkerMessage incoming_;
  std::shared_ptr<Sender> sender_;  // null before the Hello
  uint64_t connection_ = 0;
  std::optional<Gate::Pass> pass_;

  std::mutex mutex_;
  // Guarded by mutex_:
  std::deque<wire::CoordinatorMessage> orders_;  // the first is being written, if writing_
  bool writing_ = false;
  bool ending_ = false;
  bool finished_ = false;
  absl::Status reason_;
};

// Bulk calls are plain synchronous ones; the control stream must be able to end while a read is
// under way.
class CoordinatorService final
    : public wire::Coordinator::WithCallbackMethod_Control<wire::Coordinator::Service> {
 public:
  explicit CoordinatorService(Backend& backend) : backend_(backend) {}

  ControlStreamReactor* Control(grpc::CallbackServerContext* context) override {
    return new ControlStream(backend_, context);
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
