// FetchSlotContent: what a slot starts from, on its way to the worker.
#pragma once

#include <memory>
#include <string>

#include "lorad/worker/v1/worker.pb.h"
#include "server/calls/backend.h"
#include "server/calls/file_sender.h"
#include "storage/adapters/shard_reader.h"

namespace lorad::server {

// Only contents that a connected worker was ordered to load (WorkerEpochs), and only from the data
// directory.
class SlotContentSource final : public Source<worker::v1::Chunk> {
 public:
  // `backend` must outlive it.
  SlotContentSource(Backend& backend, worker::v1::FetchSlotContentRequest request);

  void ComesTo(const std::string& worker) override { worker_ = worker; }
  absl::StatusOr<bool> Next(worker::v1::Chunk* chunk) override;

 private:
  absl::Status Open();

  Backend& backend_;
  const worker::v1::FetchSlotContentRequest request_;
  std::string worker_;
  std::unique_ptr<storage::ShardReader> reader_;  // null before the first chunk
};

}  // namespace lorad::server
