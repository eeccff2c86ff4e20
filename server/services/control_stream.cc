#include "server/services/control_stream.h"

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "server/calls/call.h"
#include "server/calls/stream_errors.h"
#include "server/errors/errors.h"
#include "server/errors/grpc_status.h"
#include "server/validation/limits.h"

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

}  // namespace

// The driver holds on to this: it may call after the stream is gone.
class ControlStream::Sender final : public WorkerSender {
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
  ControlStream* stream_ ABSL_GUARDED_BY(mutex_);  // null once it is gone
};

ControlStream::ControlStream(Backend& backend, grpc::CallbackServerContext* context)
    : here_(backend.calls),
      backend_(backend),
      context_(context),
      timer_(backend.patience, [this] { End(FirstMessageLate(backend_.waits.first_message)); }) {
  absl::StatusOr<Connections::Visit> visit =
      backend.connections.Enter(CallerOf(*context), Connections::Who::kWorker);
  if (!visit.ok()) {
    End(visit.status());
    return;
  }
  visit_.emplace(*std::move(visit));
  timer_.Start(backend.waits.first_message);
  StartRead(&incoming_);
}

void ControlStream::OnReadDone(bool ok) {
  timer_.Stop();
  if (!ok) return End(absl::OkStatus());
  if (sender_ != nullptr) {
    backend_.driver.WorkerSaid(connection_, std::move(incoming_));
  } else if (absl::Status status = Greet(); !status.ok()) {
    return End(status);
  }
  incoming_.Clear();
  StartRead(&incoming_);
}

void ControlStream::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  orders_.pop_front();
  if (ok && !orders_.empty()) return StartWrite(&orders_.front());
  writing_ = false;
  if (!ok) orders_.clear();
  FinishIfDue();
}

void ControlStream::OnDone() {
  if (sender_ != nullptr) {
    sender_->Detach();
    backend_.epochs.Disconnected(this);
    std::string reason;
    {
      std::lock_guard lock(mutex_);
      reason = std::string(reason_.message());
    }
    backend_.driver.WorkerGone(connection_,
                               reason.empty() ? "the worker ended its control stream" : reason);
  }
  delete this;
}

absl::Status ControlStream::Greet() {
  if (absl::Status status = CheckHello(incoming_); !status.ok()) return status;
  worker_ = incoming_.hello().worker();
  if (const std::string& certified = visit_->worker(); !certified.empty() && worker_ != certified) {
    return Error(absl::StatusCode::kPermissionDenied, "WORKER_NAME_NOT_CERTIFIED",
                 absl::StrCat("it calls itself '", worker_, "', and its certificate is of worker '",
                              certified,
                              "': leave --name out, or take the bundle that `lorad auth "
                              "worker ",
                              worker_, "` makes"));
  }
  absl::StatusOr<Gate::Pass> pass = backend_.workers.Enter();
  if (!pass.ok()) return pass.status();
  pass_.emplace(*std::move(pass));
  // Shared with the driver, which may hold it longer than the stream lasts.
  sender_ = std::make_shared<Sender>(this);
  connection_ = backend_.driver.ConnectWorker(std::move(*incoming_.mutable_hello()), sender_);
  return absl::OkStatus();
}

void ControlStream::Enqueue(wire::CoordinatorMessage order) {
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
  backend_.epochs.Ordered(this, worker_, order);
  welcomed_ |= order.has_welcome();
  orders_.push_back(std::move(order));
  if (writing_) return;
  writing_ = true;
  StartWrite(&orders_.front());
}

void ControlStream::End(const absl::Status& reason) {
  std::lock_guard lock(mutex_);
  if (!ending_) reason_ = reason;
  ending_ = true;
  FinishIfDue();
}

void ControlStream::FinishIfDue() {
  if (!ending_ || writing_ || finished_) return;
  finished_ = true;
  if (!reason_.ok() && !worker_.empty() && !welcomed_) {
    backend_.connections.refusals().Note(absl::StrCat("worker '", Quotable(worker_, 100), "' at ",
                                                      HostOf(CallerOf(*context_).address)),
                                         reason_);
  }
  Finish(ToGrpc(reason_));
}

}  // namespace lorad::server
