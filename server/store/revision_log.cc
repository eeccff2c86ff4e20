#include "server/store/revision_log.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {

absl::StatusOr<RevisionLog::Revisions> RevisionLog::Read(int64_t after, int64_t limit) {
  std::lock_guard lock(mutex_);
  return Following(after, limit);
}

absl::StatusOr<RevisionLog::Revisions> RevisionLog::Following(int64_t after, int64_t limit) const {
  if (shutdown_) {
    return Error(absl::StatusCode::kCancelled, "SHUTTING_DOWN", "the coordinator is being stopped");
  }
  if (after < gone_) {
    return Error(
        absl::StatusCode::kOutOfRange, "REVISION_GONE",
        absl::StrCat("what followed revision ", after, " is no longer kept (the oldest is ",
                     gone_ + 1, "): watch from 0 again"),
        {{"oldest_revision", absl::StrCat(gone_ + 1)}});
  }
  if (after > newest_) {
    return Error(absl::StatusCode::kOutOfRange, "REVISION_GONE",
                 absl::StrCat("revision ", after, " is yet to come (the newest is ", newest_,
                              "): watch from 0"));
  }
  Revisions revisions;
  auto next = std::ranges::upper_bound(
      kept_, after, {}, [](const std::shared_ptr<const Revision>& kept) { return kept->revision; });
  for (; next != kept_.end() && static_cast<int64_t>(revisions.size()) < limit; ++next) {
    revisions.push_back(*next);
  }
  return revisions;
}

void RevisionLog::Start(int64_t gone, int64_t newest, std::vector<Revision> kept) {
  std::lock_guard lock(mutex_);
  gone_ = gone;
  newest_ = newest;
  for (Revision& revision : kept) {
    kept_.push_back(std::make_shared<const Revision>(std::move(revision)));
  }
}

void RevisionLog::Append(Revision revision) {
  std::lock_guard lock(mutex_);
  assert(revision.revision > newest_);
  newest_ = revision.revision;
  kept_.push_back(std::make_shared<const Revision>(std::move(revision)));
  while (static_cast<int64_t>(kept_.size()) > revisions_max_) {
    gone_ = kept_.front()->revision;
    kept_.pop_front();
  }
  Tell();
}

void RevisionLog::Shutdown() {
  std::lock_guard lock(mutex_);
  shutdown_ = true;
  Tell();
}

void RevisionLog::Listen(std::function<void()> on_change) {
  std::lock_guard lock(mutex_);
  on_change_ = std::move(on_change);
}

// Under the lock, so that the listener is not called after Listen(nullptr) returned.
void RevisionLog::Tell() {
  if (on_change_) on_change_();
}

}  // namespace lorad::server
