#include "worker/control.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lorad/worker/v1/worker.grpc.pb.h"
#include "spdlog/spdlog.h"
#include "worker/process.h"
#include "worker/rpc_status.h"

namespace lorad::worker {
namespace {

// Orders that no retry mends.
bool Final(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsAlreadyExists(status) || absl::IsUnimplemented(status) ||
         absl::IsPermissionDenied(status);
}

}  // namespace

struct ControlStream::Stream {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> rpc;
  bool greeted = false;   // a Welcome has come
  bool shutdown = false;  // the coordinator wants this worker to end

  std::mutex mutex;
  std::condition_variable wake;
  // GUARDED_BY(mutex). As long as the log of reports that are not acknowledged, at most.
  std::deque<v1::WorkerMessage> queue;
  bool closed = false;
};

ControlStream::ControlStream(Options options, Executor* executor, ReportLog* reports, Clock clock)
    : options_(std::move(options)),
      executor_(executor),
      reports_(reports),
      clock_(std::move(clock)) {}

ControlStream::~ControlStream() = default;

void ControlStream::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    if (current_ != nullptr) current_->context.TryCancel();
  }
  wake_.notify_all();
}

bool ControlStream::Pause(int64_t milliseconds) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return stop_; });
}

absl::Status ControlStream::Run() {
  int64_t pause_ms = options_.pause_first_ms;
  double heard_ms = clock_();  // when a stream last stood
  while (true) {
    Stream stream;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return absl::OkStatus();
      current_ = &stream;
    }
    const absl::Status status = RunStream(&stream);
    {
      std::lock_guard lock(mutex_);
      current_ = nullptr;
      if (stop_) return absl::OkStatus();
    }
    if (stream.shutdown) return absl::OkStatus();
    if (Final(status)) return status;
    if (stream.greeted) {
      heard_ms = clock_();
      pause_ms = options_.pause_first_ms;
    }
    spdlog::warn("coordinator {}: {}; trying again in {} ms", options_.coordinator,
                 status.ToString(), pause_ms);
    if (!Pause(pause_ms)) return absl::OkStatus();
    pause_ms = std::min(2 * pause_ms, options_.pause_last_ms);
    if (clock_() - heard_ms > static_cast<double>(lease_ms_) && executor_->held().epoch != 0) {
      spdlog::warn("no coordinator for {} ms: the group is given up", lease_ms_);
      executor_->Dissolve(0);
      reports_->BeginEpoch(0);
    }
  }
}

absl::Status ControlStream::RunStream(Stream* stream) {
  // A channel of its own for every try: a broken one would wait out its own back-off.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);  // a window is as large as its jobs' batches
  const auto stub = v1::Coordinator::NewStub(grpc::CreateCustomChannel(
      options_.coordinator, grpc::InsecureChannelCredentials(), arguments));
  stream->rpc = stub->Control(&stream->context);
  absl::Status status = Greet(stream);
  if (!status.ok()) return status;
  spdlog::info("registered with coordinator {}", options_.coordinator);
  std::thread writer([this, stream] { WriteMessages(stream); });
  ReadOrders(stream);
  reports_->SetListener(nullptr);
  {
    std::lock_guard lock(stream->mutex);
    stream->closed = true;
  }
  stream->wake.notify_all();
  // A write may wait for a peer that does not read any more.
  stream->context.TryCancel();
  writer.join();
  status = FromRpc(stream->rpc->Finish());
  return status.ok() ? absl::UnavailableError("the coordinator ended the stream") : status;
}

absl::Status ControlStream::Greet(Stream* stream) {
  v1::WorkerMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello = options_.hello;
  const Executor::Held held = executor_->held();
  hello.set_group(held.group);
  hello.set_epoch(held.epoch);
  hello.set_last_report(reports_->last_number());
  v1::CoordinatorMessage answer;
  stream->rpc->Write(message);  // if it fails, so does the read, and Finish tells why
  if (!stream->rpc->Read(&answer)) {
    const absl::Status status = FromRpc(stream->rpc->Finish());
    return status.ok() ? absl::UnavailableError("no Welcome came for our Hello") : status;
  }
  if (!answer.has_welcome()) {
    stream->context.TryCancel();
    stream->rpc->Finish();
    return absl::UnavailableError("something else than a Welcome came for our Hello");
  }
  stream->greeted = true;
  const v1::Welcome& welcome = answer.welcome();
  if (welcome.heartbeat_ms() > 0) heartbeat_ms_ = welcome.heartbeat_ms();
  if (welcome.lease_ms() > 0) lease_ms_ = welcome.lease_ms();
  if (held.epoch != 0 && !welcome.adopted()) {
    executor_->Dissolve(held.epoch);
    reports_->BeginEpoch(0);
  }
  const auto listener = [this, stream](const v1::Report& report) {
    v1::WorkerMessage told;
    *told.mutable_report() = report;
    Enqueue(stream, std::move(told));
  };
  // What the old stream did not bring over goes first. The log's lock is taken before the stream's
  // (the listener runs under both), so not while holding the latter.
  std::vector<v1::Report> kept = reports_->Resume(listener);
  std::lock_guard lock(stream->mutex);
  for (auto report = kept.rbegin(); report != kept.rend(); ++report) {
    v1::WorkerMessage told;
    *told.mutable_report() = std::move(*report);
    stream->queue.push_front(std::move(told));
  }
  return absl::OkStatus();
}

void ControlStream::Enqueue(Stream* stream, v1::WorkerMessage message) {
  {
    std::lock_guard lock(stream->mutex);
    if (stream->closed) return;
    stream->queue.push_back(std::move(message));
  }
  stream->wake.notify_all();
}

v1::Heartbeat ControlStream::MakeHeartbeat() const {
  v1::Heartbeat heartbeat;
  heartbeat.set_epoch(executor_->held().epoch);
  heartbeat.set_resident_bytes(ResidentBytes());
  heartbeat.set_peak_resident_bytes(PeakResidentBytes());
  return heartbeat;
}

void ControlStream::WriteMessages(Stream* stream) {
  double heartbeat_at_ms = clock_();
  std::unique_lock lock(stream->mutex);
  while (!stream->closed) {
    const double left_ms = std::max(0.0, heartbeat_at_ms - clock_());
    stream->wake.wait_for(lock, std::chrono::duration<double, std::milli>(left_ms),
                          [&] { return stream->closed || !stream->queue.empty(); });
    if (stream->closed) return;
    v1::WorkerMessage message;
    const bool heartbeat = clock_() >= heartbeat_at_ms;
    if (!heartbeat) {
      if (stream->queue.empty()) continue;
      message = std::move(stream->queue.front());
      stream->queue.pop_front();
    }
    // Locks are taken in the order executor, log, stream: never ask the executor under the
    // stream's.
    lock.unlock();
    if (heartbeat) {
      heartbeat_at_ms = clock_() + static_cast<double>(heartbeat_ms_);
      *message.mutable_heartbeat() = MakeHeartbeat();
    }
    if (!stream->rpc->Write(message)) {
      stream->context.TryCancel();  // the reader sees the end
      return;
    }
    lock.lock();
  }
}

void ControlStream::ReadOrders(Stream* stream) {
  v1::CoordinatorMessage message;
  while (!stream->shutdown && stream->rpc->Read(&message)) Handle(message, stream);
}

void ControlStream::Handle(const v1::CoordinatorMessage& message, Stream* stream) {
  switch (message.content_case()) {
    case v1::CoordinatorMessage::kFormGroup:
      executor_->FormGroup(message.form_group());
      break;
    case v1::CoordinatorMessage::kWindow:
      executor_->Submit(message.window());
      break;
    case v1::CoordinatorMessage::kCut: {
      v1::WorkerMessage answer;
      *answer.mutable_cut_answer() = executor_->Cut(message.cut());
      Enqueue(stream, std::move(answer));
      break;
    }
    case v1::CoordinatorMessage::kCutAt:
      executor_->CutAt(message.cut_at());
      break;
    case v1::CoordinatorMessage::kAcknowledge:
      reports_->Acknowledge(message.acknowledge().epoch(), message.acknowledge().number());
      break;
    case v1::CoordinatorMessage::kDissolveGroup:
      executor_->Dissolve(message.dissolve_group().epoch());
      break;
    case v1::CoordinatorMessage::kShutdown:
      spdlog::info("shut down by the coordinator: {}", message.shutdown().reason());
      stream->shutdown = true;
      break;
    default:
      spdlog::warn("an order that this version does not know was ignored");
      break;
  }
}

}  // namespace lorad::worker
