#include "server/store/revision_log.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

// The changes among these. Older versions stored progress beside them: something newer is told of
// its job.
absl::StatusOr<RevisionLog::Revisions> Changes(std::vector<storage::Entry> entries) {
  RevisionLog::Revisions changes;
  records::RevisionRecord record;  // one for all: its strings keep their room
  for (storage::Entry& entry : entries) {
    if (!record.ParseFromString(entry.value))
      return StoreCorrupt(absl::StrCat(kRevisionSeries, " ", entry.number));
    if (record.progress_only()) continue;
    changes.push_back(std::make_shared<const RevisionLog::Revision>(
        RevisionLog::Revision{entry.number, record.job().name(), std::move(entry.value)}));
  }
  return changes;
}

// Up to which they are gone from the store.
absl::StatusOr<int64_t> Trimmed(storage::JobStore& store) {
  absl::StatusOr<std::optional<std::string>> text = store.GetRecord(kMetaKind, kTrimmedKey);
  if (!text.ok()) return text.status();
  int64_t trimmed = 0;
  if (*text && !absl::SimpleAtoi(**text, &trimmed)) return StoreCorrupt(kTrimmedKey);
  return trimmed;
}

}  // namespace

absl::Status RevisionLog::CheckOpen() const {
  if (!shutdown_) return absl::OkStatus();
  return Error(absl::StatusCode::kCancelled, "SHUTTING_DOWN", "the coordinator is being stopped");
}

absl::StatusOr<RevisionLog::Found> RevisionLog::Read(int64_t after, int64_t limit) {
  std::lock_guard lock(mutex_);
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (after > newest_) {
    return Error(absl::StatusCode::kOutOfRange, "REVISION_GONE",
                 absl::StrCat("revision ", after, " is yet to come (the newest is ", newest_,
                              "): watch from 0"));
  }
  Found found;
  found.up_to = newest_;
  if (after < in_store_) {
    found.up_to = after;
    found.in_store = true;
    return found;
  }
  Revisions changes;
  auto next = std::ranges::upper_bound(
      changes_, after, {},
      [](const std::shared_ptr<const Revision>& kept) { return kept->revision; });
  for (; next != changes_.end() && static_cast<int64_t>(changes.size()) < limit; ++next) {
    changes.push_back(*next);
  }
  if (next != changes_.end()) found.up_to = changes.back()->revision;
  Merge(std::move(changes), after, limit, &found);
  return found;
}

absl::StatusOr<RevisionLog::Found> RevisionLog::ReadStored(int64_t after, int64_t limit) {
  Beginning beginning;
  Found found;
  {
    std::lock_guard lock(mutex_);
    if (absl::Status status = CheckOpen(); !status.ok()) return status;
    beginning = beginning_;
    found.up_to = std::max(after, in_store_);
  }
  if (beginning.changes == nullptr) return absl::InternalError("there is no store");
  absl::StatusOr<std::vector<storage::Entry>> entries =
      beginning.changes->ReadSeries(kRevisionSeries, "", after, limit);
  if (!entries.ok()) return entries.status();
  // In this order: changes are trimmed in one transaction with the record that says so.
  const absl::StatusOr<int64_t> trimmed = Trimmed(*beginning.changes);
  if (!trimmed.ok()) return trimmed.status();
  const int64_t gone = std::max(beginning.gone, *trimmed);
  if (after < gone) {
    return Error(
        absl::StatusCode::kOutOfRange, "REVISION_GONE",
        absl::StrCat("what followed revision ", after, " is no longer kept (the oldest is ",
                     gone + 1, "): watch from 0 again"),
        {{"oldest_revision", absl::StrCat(gone + 1)}});
  }
  if (static_cast<int64_t>(entries->size()) == limit) {
    found.up_to = std::min(found.up_to, entries->back().number);
  }
  std::erase_if(*entries, [&](const auto& entry) { return entry.number > found.up_to; });
  absl::StatusOr<Revisions> changes = Changes(*std::move(entries));
  if (!changes.ok()) return changes.status();
  std::lock_guard lock(mutex_);
  Merge(*std::move(changes), after, limit, &found);
  return found;
}

void RevisionLog::Merge(Revisions changes, int64_t after, int64_t limit, Found* found) const {
  const auto older = [](const auto& a, const auto& b) { return a->revision < b->revision; };
  Revisions& all = found->revisions;
  all = std::move(changes);
  int64_t more = limit + 1;  // than can be taken: whether there are more is seen
  for (auto next = progress_.upper_bound(after);
       next != progress_.end() && next->first <= found->up_to && more-- > 0; ++next) {
    all.push_back(next->second);
  }
  std::ranges::sort(all, older);
  if (static_cast<int64_t>(all.size()) <= limit) return;
  all.resize(limit);
  found->up_to = all.back()->revision;
}

absl::Status RevisionLog::CheckStore(const std::string& store) const {
  const std::string ours = this->store();
  if (store.empty() || ours.empty() || store == ours) return absl::OkStatus();
  return Error(absl::StatusCode::kOutOfRange, "OTHER_STORE",
               absl::StrCat("the revision is of the store '", Quotable(store, 64),
                            "', and this daemon's is '", ours,
                            "': watch again without resume_from_revision and resume_from_store"),
               {{"store", ours}});
}

std::string RevisionLog::store() const {
  std::lock_guard lock(mutex_);
  return beginning_.store;
}

int64_t RevisionLog::newest() const {
  std::lock_guard lock(mutex_);
  return newest_;
}

void RevisionLog::Start(Beginning beginning) {
  std::lock_guard lock(mutex_);
  newest_ = in_store_ = beginning.newest;
  beginning_ = std::move(beginning);
}

void RevisionLog::Append(Revision revision) {
  std::lock_guard lock(mutex_);
  assert(revision.revision > newest_);
  newest_ = revision.revision;
  if (const auto older = progress_of_.find(revision.job); older != progress_of_.end()) {
    progress_.erase(older->second);
    progress_of_.erase(older);
  }
  auto kept = std::make_shared<const Revision>(std::move(revision));
  if (kept->progress) {
    progress_of_[kept->job] = kept->revision;
    progress_[kept->revision] = std::move(kept);
  } else {
    changes_.push_back(std::move(kept));
  }
  while (static_cast<int64_t>(changes_.size()) > memory_max_) {
    in_store_ = changes_.front()->revision;
    changes_.pop_front();
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
