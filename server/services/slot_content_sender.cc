#include "server/services/slot_content_sender.h"

#include <string>
#include <utility>

#include "server/data_dir.h"
#include "server/errors/errors.h"
#include "server/errors/grpc_status.h"
#include "server/services/beneath.h"
#include "storage/checkpoint.h"

namespace lorad::server {
namespace {

// Contents lie in a folder of the data directory, which may itself be a link to another disk.
absl::Status CheckPath(const DataDir& data_dir, const std::string& path) {
  const size_t slash = path.find('/');
  const std::string folder = path.substr(0, slash);
  if (slash != std::string::npos && (folder == "checkpoints" || folder == "adapters") &&
      CheckBeneath(data_dir.Full(folder), path.substr(slash + 1)).ok()) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kNotFound, "SLOT_CONTENT_NOT_FOUND",
               "the slot's content is not in the data directory");
}

}  // namespace

SlotContentSender::SlotContentSender(Backend& backend, grpc::CallbackServerContext* context,
                                     worker::v1::FetchSlotContentRequest request)
    : here_(backend.calls), backend_(backend), context_(context), request_(std::move(request)) {
  if (absl::Status status = Enter(); !status.ok()) {
    Finish(ToGrpc(status));
  } else {
    backend_.fetches.Add([this] { Finish(ToGrpc(SendAll())); });
  }
}

absl::Status SlotContentSender::Enter() {
  absl::StatusOr<Connections::Visit> visit =
      backend_.connections.Enter(context_->peer(), Connections::Who::kWorker);
  if (!visit.ok()) return visit.status();
  visit_.emplace(*std::move(visit));
  return backend_.epochs.CheckFetch(request_);
}

absl::Status SlotContentSender::SendAll() {
  const absl::StatusOr<SlotContent> content = ParseSlotContent(request_.content());
  if (!content.ok()) return content.status();
  const DataDir& data_dir = backend_.driver.data_dir();
  if (absl::Status status = CheckPath(data_dir, content->path); !status.ok()) return status;
  const std::string directory = data_dir.Full(content->path);
  const storage::ByteSink sink = [this](std::string_view bytes) { return SendPiece(bytes); };
  return content->kind == SlotContent::Kind::kCheckpoint
             ? storage::StreamCheckpoint(directory, sink)
             : storage::StreamAdapter(directory, request_.job(), sink);
}

absl::Status SlotContentSender::SendPiece(std::string_view bytes) {
  std::unique_lock lock(mutex_);
  write_ok_.reset();
  chunk_.set_data(bytes.data(), bytes.size());
  StartWrite(&chunk_);
  const auto written = [this] { return write_ok_.has_value(); };
  if (!written_.wait_for(lock, absl::ToChronoMilliseconds(backend_.waits.idle), written)) {
    context_->TryCancel();
    written_.wait(lock, written);
  }
  return *write_ok_ ? absl::OkStatus() : absl::CancelledError("the worker left, or did not read");
}

void SlotContentSender::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  write_ok_ = ok;
  written_.notify_all();
}

}  // namespace lorad::server
