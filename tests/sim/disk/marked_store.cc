#include "tests/sim/disk/marked_store.h"

namespace lorad::sim {

absl::Status MarkedStore::Open() {
  broken_ = Mark();
  return broken_;
}

absl::Status MarkedStore::Apply(const std::vector<storage::Mutation>& mutations) {
  if (mutations.empty()) return absl::OkStatus();
  if (!broken_.ok()) return broken_;
  const absl::Status status = Mark();
  if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) return status;
  broken_ = status;
  return status.ok() ? MemoryStore::Apply(mutations) : status;
}

absl::Status MarkedStore::Mark() {
  auto file = files_.OpenAppend(path_);
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Append("turn"); !status.ok()) return status;
  return (*file)->Sync();
}

}  // namespace lorad::sim
