#include "server/services/slot_content_source.h"

#include <string>
#include <utility>

#include "server/core/events/data_dir.h"
#include "server/errors/errors.h"
#include "server/services/beneath.h"
#include "server/store/slot_contents.h"

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

SlotContentSource::SlotContentSource(Backend& backend, worker::v1::FetchSlotContentRequest request)
    : backend_(backend), request_(std::move(request)) {}

absl::StatusOr<bool> SlotContentSource::Next(worker::v1::Chunk* chunk) {
  if (!reader_) {
    if (absl::Status status = Open(); !status.ok()) return status;
  }
  absl::StatusOr<std::string> piece = reader_->Next();
  if (!piece.ok()) return piece.status();
  if (piece->empty()) return false;
  chunk->set_data(*std::move(piece));
  return true;
}

absl::Status SlotContentSource::Open() {
  if (absl::Status status = backend_.epochs.CheckFetch(request_, worker_); !status.ok())
    return status;
  const absl::StatusOr<SlotContent> content = ParseSlotContent(request_.content());
  if (!content.ok()) return content.status();
  const DataDir& data_dir = backend_.driver.data_dir();
  if (absl::Status status = CheckPath(data_dir, content->path); !status.ok()) return status;
  auto reader = OpenSlotContent(backend_.driver.files(), data_dir, *content, request_.job());
  if (!reader.ok()) return reader.status();
  reader_ = *std::move(reader);
  if (!request_.tensors().empty()) {
    reader_->Only({request_.tensors().begin(), request_.tensors().end()});
  }
  return absl::OkStatus();
}

}  // namespace lorad::server
