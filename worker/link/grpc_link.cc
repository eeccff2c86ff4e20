#include "worker/link/grpc_link.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <utility>

#include "lorad/worker/v1/worker.grpc.pb.h"
#include "worker/link/channel.h"
#include "worker/link/rpc_status.h"

namespace lorad::worker {
namespace {

// What a coordinator may take to hear a worker's last words. A call that is cancelled takes those
// with it that the peer has not read yet.
constexpr std::chrono::seconds kFarewell(1);

}  // namespace

struct GrpcLink::Call {
  grpc::ClientContext context;
  std::unique_ptr<v1::Coordinator::Stub> stub;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> rpc;
  // GUARDED_BY(mutex_)
  bool ended = false;
  bool writing = false;
};

GrpcLink::GrpcLink(std::string coordinator, const Credentials* credentials)
    : coordinator_(std::move(coordinator)), credentials_(credentials) {
  thread_ = std::thread([this] { Run(); });
}

GrpcLink::~GrpcLink() { Close(); }

void GrpcLink::Dial(int64_t stream, const v1::Hello& hello, Listener* listener) {
  {
    std::lock_guard lock(mutex_);
    order_ = Order{stream, hello, listener};
  }
  wake_.notify_all();
}

void GrpcLink::HangUp() {
  std::lock_guard lock(mutex_);
  if (call_ != nullptr) call_->context.TryCancel();
}

void GrpcLink::Say(v1::WorkerMessage message) {
  {
    std::lock_guard lock(mutex_);
    if (message.has_heartbeat()) {
      std::erase_if(queue_, [](const v1::WorkerMessage& waits) { return waits.has_heartbeat(); });
    }
    queue_.push_back(std::move(message));
  }
  wake_.notify_all();
}

void GrpcLink::Close() {
  {
    std::unique_lock lock(mutex_);
    closed_ = true;
    wake_.notify_all();
    wake_.wait_for(lock, kFarewell,
                   [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return call_ == nullptr; });
    if (call_ != nullptr) call_->context.TryCancel();
  }
  if (thread_.joinable()) thread_.join();
}

void GrpcLink::Run() {
  while (true) {
    Order order;
    Call call;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return closed_ || order_.has_value();
      });
      if (closed_) return;
      order = *std::exchange(order_, std::nullopt);
      queue_.clear();
      call_ = &call;
    }
    absl::Status status = RunStream(order, &call);
    {
      std::lock_guard lock(mutex_);
      call_ = nullptr;
      wake_.notify_all();
      if (closed_) return;
    }
    if (status.ok()) status = absl::UnavailableError("the coordinator ended the stream");
    order.listener->Broke(order.stream, std::move(status));
  }
}

absl::Status GrpcLink::RunStream(const Order& order, Call* call) {
  // A channel of its own for every try: a broken one would wait out its own back-off.
  call->stub = v1::Coordinator::NewStub(MakeChannel(coordinator_, credentials_));
  call->rpc = call->stub->Control(&call->context);
  v1::WorkerMessage message;
  *message.mutable_hello() = order.hello;
  call->rpc->Write(message);  // if it fails, so does the read, and Finish says why
  std::thread writer([this, call] { WriteMessages(call); });
  v1::CoordinatorMessage heard;
  while (call->rpc->Read(&heard)) order.listener->Said(order.stream, std::move(heard));
  {
    std::lock_guard lock(mutex_);
    call->ended = true;
    // It may wait for a peer that does not read any more. Otherwise the peer's status is what
    // counts.
    if (call->writing) call->context.TryCancel();
  }
  wake_.notify_all();
  writer.join();
  return ExplainTls(FromRpc(call->rpc->Finish()), credentials_);
}

void GrpcLink::WriteMessages(Call* call) {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return call->ended || closed_ || !queue_.empty();
    });
    if (call->ended) return;
    if (queue_.empty()) {  // closed, and all is said
      lock.unlock();
      call->rpc->WritesDone();
      return;
    }
    const v1::WorkerMessage message = std::move(queue_.front());
    queue_.pop_front();
    call->writing = true;
    lock.unlock();
    const bool written = call->rpc->Write(message);
    lock.lock();
    call->writing = false;
    if (written) continue;
    call->context.TryCancel();  // the reader sees the end
    return;
  }
}

}  // namespace lorad::worker
