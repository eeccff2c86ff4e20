#include "worker/link/credentials.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::worker {

absl::StatusOr<std::unique_ptr<Credentials>> Credentials::Load(storage::Files& files,
                                                               const std::string& path,
                                                               absl::Time now) {
  absl::StatusOr<storage::WorkerBundle> bundle = storage::ReadBundle(files, path);
  if (!bundle.ok()) return bundle.status();
  if (absl::Status status = storage::CheckBundle(*bundle, now); !status.ok()) {
    return storage::At(path, status);
  }
  return std::unique_ptr<Credentials>(new Credentials(files, path, *std::move(bundle)));
}

storage::WorkerBundle Credentials::bundle() const {
  std::lock_guard lock(mutex_);
  return bundle_;
}

int64_t Credentials::renewals() const {
  std::lock_guard lock(mutex_);
  return renewals_;
}

absl::Status Credentials::Renew(const std::string& key, const std::string& certificate) {
  absl::StatusOr<storage::WorkerBundle> renewed =
      storage::WorkerBundle::Of(key, certificate, bundle().authority);
  if (!renewed.ok()) return renewed.status();
  if (renewed->worker != worker_) {
    return storage::Refuse("BUNDLE_DAMAGED", absl::StrCat("the renewed certificate is of worker '",
                                                          renewed->worker, "'"));
  }
  {
    std::lock_guard lock(mutex_);
    bundle_ = *renewed;
    renewals_ += 1;
  }
  return storage::WriteBundle(files_, path_, *renewed, true);
}

}  // namespace lorad::worker
