#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "lorad/worker/v1/worker.grpc.pb.h"

namespace lorad::worker {

using namespace std::chrono_literals;

// One stream at a time: what the test says goes down, what the worker says is kept.
class FakeCoordinator : public v1::Coordinator::Service {
 public:
  FakeCoordinator() { Start(0); }
  ~FakeCoordinator() override { StopServer(); }

  void Start(int port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    // As the real one: workers ask whether their coordinator still lives.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  void StopServer() {
    Break();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + 200ms);
    server_.reset();
  }
  // Ends the stream that stands.
  void Break() {
    {
      std::lock_guard lock(mutex_);
      ended_ = newest_;
      if (context_ != nullptr) context_->TryCancel();
    }
    wake_.notify_all();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }

  void Send(v1::CoordinatorMessage message) {
    std::lock_guard lock(mutex_);
    orders_.push_back(std::move(message));
    wake_.notify_all();
  }

  // Waits for the next message that `wanted` takes; the others are dropped.
  v1::WorkerMessage Await(const std::function<bool(const v1::WorkerMessage&)>& wanted) {
    std::unique_lock lock(mutex_);
    v1::WorkerMessage found;
    const bool came = heard_.wait_for(lock, 20s, [&] {
      while (!messages_.empty()) {
        found = std::move(messages_.front());
        messages_.pop_front();
        if (wanted(found)) return true;
      }
      return false;
    });
    REQUIRE(came);
    return found;
  }
  v1::Hello AwaitHello() {
    return Await([](const v1::WorkerMessage& m) { return m.has_hello(); }).hello();
  }
  v1::Report AwaitReport(v1::Report::ContentCase kind) {
    return Await([&](const v1::WorkerMessage& m) {
             return m.has_report() && m.report().content_case() == kind;
           })
        .report();
  }

  grpc::Status Control(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>* stream) override {
    int mine = 0;  // a worker may be back before the stream that broke has ended here
    {
      std::lock_guard lock(mutex_);
      if (!refuse_.ok()) return refuse_;
      context_ = context;
      mine = ++newest_;
      orders_.clear();
      v1::CoordinatorMessage welcome;
      welcome.mutable_welcome()->set_heartbeat_ms(20);
      welcome.mutable_welcome()->set_lease_ms(lease_ms);
      welcome.mutable_welcome()->set_adopted(adopt);
      orders_.push_back(welcome);
    }
    std::thread writer([&] {
      std::unique_lock lock(mutex_);
      while (true) {
        wake_.wait(lock, [&] { return ended_ >= mine || newest_ > mine || !orders_.empty(); });
        if (ended_ >= mine || newest_ > mine) return;
        const v1::CoordinatorMessage message = std::move(orders_.front());
        orders_.pop_front();
        lock.unlock();
        stream->Write(message);
        lock.lock();
      }
    });
    v1::WorkerMessage message;
    while (stream->Read(&message)) {
      std::lock_guard lock(mutex_);
      messages_.push_back(message);
      heard_.notify_all();
    }
    {
      std::lock_guard lock(mutex_);
      ended_ = std::max(ended_, mine);
      if (context_ == context) context_ = nullptr;
    }
    wake_.notify_all();
    writer.join();
    return grpc::Status::OK;
  }

  grpc::Status FetchSlotContent(grpc::ServerContext* context,
                                const v1::FetchSlotContentRequest* request,
                                grpc::ServerWriter<v1::Chunk>* writer) override {
    if (!Awaited(request->content(), context)) return fetch_answer;
    if (request->content() != "shard") return {grpc::StatusCode::NOT_FOUND, "no such content"};
    for (size_t at = 0; at < shard.size(); at += 1000) {
      v1::Chunk chunk;
      chunk.set_data(shard.substr(at, 1000));
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  }

  grpc::Status UploadShard(grpc::ServerContext* context,
                           grpc::ServerReader<v1::UploadShardRequest>* reader,
                           v1::UploadShardResponse*) override {
    v1::UploadShardRequest request;
    reader->Read(&request);
    header = request.header();
    std::string bytes;
    while (reader->Read(&request)) bytes += request.chunk();
    if (!Awaited("upload", context)) return grpc::Status::CANCELLED;
    std::lock_guard lock(mutex_);
    shard = bytes;
    return grpc::Status::OK;
  }

  // False: the call was named by `unanswered`, and its client has given it up; or fetch_answer is
  // what it gets.
  bool Awaited(const std::string& what, grpc::ServerContext* context) {
    calls++;
    if (what != unanswered) return fetch_answer.ok() || what == "upload";
    while (!context->IsCancelled()) std::this_thread::sleep_for(5ms);
    return false;
  }

  void Refuse(grpc::Status status) {
    std::lock_guard lock(mutex_);
    refuse_ = std::move(status);
  }

  // Set before what they decide happens.
  bool adopt = false;
  int lease_ms = 10000;
  std::string unanswered;     // a content, or "upload"
  grpc::Status fetch_answer;  // of every fetch, unless OK
  std::atomic<int> calls = 0;
  std::string shard;
  v1::UploadShardRequest::Header header;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable heard_;
  grpc::ServerContext* context_ = nullptr;
  int newest_ = 0;  // of the streams, counted from 1
  int ended_ = 0;   // the streams up to this one are to end
  grpc::Status refuse_;
  std::deque<v1::CoordinatorMessage> orders_;
  std::deque<v1::WorkerMessage> messages_;
};

}  // namespace lorad::worker
