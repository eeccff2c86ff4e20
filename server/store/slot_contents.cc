#include "server/store/slot_contents.h"

namespace lorad::server {

absl::StatusOr<std::unique_ptr<storage::ShardReader>> OpenSlotContent(storage::Files& files,
                                                                      const DataDir& data_dir,
                                                                      const SlotContent& content,
                                                                      const std::string& job) {
  const std::string directory = data_dir.Full(content.path);
  if (content.kind != SlotContent::Kind::kAdapter) {
    absl::Status in_place = storage::CheckPlace(files, directory);
    if (!in_place.ok()) return in_place;
  }
  switch (content.kind) {
    case SlotContent::Kind::kCheckpoint:
      return storage::ShardReader::OfCheckpoint(files, directory);
    case SlotContent::Kind::kCheckpointWeights:
      return storage::ShardReader::OfWeights(files, directory, job);
    case SlotContent::Kind::kAdapter:
      break;
  }
  return storage::ShardReader::OfAdapter(files, directory, job);
}

}  // namespace lorad::server
