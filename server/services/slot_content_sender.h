// FetchSlotContent: what a slot starts from, on its way to the worker.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string_view>

#include "lorad/worker/v1/worker.pb.h"
#include "server/services/backend.h"

namespace lorad::server {

// Belongs to itself. storage/ pushes the content out, so it is sent by one of backend.fetches'
// threads, which waits for the worker to read: for StreamWaits::idle at most.
class SlotContentSender final : public grpc::ServerWriteReactor<worker::v1::Chunk> {
 public:
  SlotContentSender(Backend& backend, grpc::CallbackServerContext* context,
                    worker::v1::FetchSlotContentRequest request);

  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  absl::Status Enter();
  absl::Status SendAll();
  absl::Status SendPiece(std::string_view bytes);

  const Attendance::Token here_;
  Backend& backend_;
  grpc::CallbackServerContext* const context_;
  const worker::v1::FetchSlotContentRequest request_;
  std::optional<Connections::Visit> visit_;
  worker::v1::Chunk chunk_;

  std::mutex mutex_;
  std::condition_variable written_;
  std::optional<bool> write_ok_;  // guarded by mutex_; unset while a write is under way
};

}  // namespace lorad::server
