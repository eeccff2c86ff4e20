#include "server/store/model_parts.h"

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr size_t kModelsKept = 16;

}  // namespace

std::shared_ptr<const ModelParts> KnownModelParts::Find(const std::string& fingerprint) const {
  std::lock_guard lock(mutex_);
  for (const auto& [of, parts] : kept_) {
    if (of == fingerprint) return parts;
  }
  return nullptr;
}

void KnownModelParts::Keep(const std::string& fingerprint, ModelParts parts) {
  std::lock_guard lock(mutex_);
  if (kept_.size() == kModelsKept) kept_.pop_front();
  kept_.emplace_back(fingerprint, std::make_shared<const ModelParts>(std::move(parts)));
}

absl::StatusOr<std::unique_ptr<ModelPartsReader>> ModelPartsReader::Open(
    const std::string& path, const std::string& fingerprint, KnownModelParts& known) {
  absl::StatusOr<storage::ModelDirectory> directory =
      storage::ModelDirectory::OpenRegistered(path, fingerprint);
  if (!directory.ok()) return directory.status();
  return std::unique_ptr<ModelPartsReader>(new ModelPartsReader(*std::move(directory), known));
}

ModelPartsReader::ModelPartsReader(storage::ModelDirectory directory, KnownModelParts& known)
    : directory_(std::move(directory)),
      known_(known),
      names_(directory_.Parts()),
      found_(known.Find(directory_.fingerprint())) {}

absl::StatusOr<bool> ModelPartsReader::Next(worker::v1::ModelPart* part) {
  if (next_ == names_.size()) {
    if (found_ != nullptr) return false;
    if (absl::Status status = directory_.CheckUnchanged(); !status.ok()) return status;
    known_.Keep(directory_.fingerprint(), std::move(read_));
    return false;
  }
  if (found_ != nullptr) {
    *part = (*found_)[next_++];
    return true;
  }
  absl::StatusOr<std::string> sha256 = directory_.PartSha256(names_[next_]);
  if (!sha256.ok()) return sha256.status();
  part->set_name(names_[next_++]);
  part->set_sha256(*std::move(sha256));
  read_.push_back(*part);
  return true;
}

}  // namespace lorad::server
