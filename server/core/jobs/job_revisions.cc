// Publishing: each change of a job has a revision, which the store and the watchers get.
//
// What is more than progress is a change: the store keeps it in a series of its own, from which
// watchers go on who come back. Of progress the newest of each job is stored, in one record.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "server/core/events/store_kinds.h"
#include "server/core/jobs/job_progress.h"
#include "server/core/jobs/job_table.h"

namespace lorad::server {
namespace {

// A turn trims no more revisions than this, so that it does not take long after a rest.
constexpr int64_t kTrimMax = 4096;
// Trimming for every single one would double the work of a turn.
constexpr int64_t kTrimMin = 32;

}  // namespace

uint64_t HashOfEtag(const v1::Job& job) {
  std::vector<std::pair<std::string, std::string>> labels(job.labels().begin(), job.labels().end());
  std::ranges::sort(labels);
  return absl::HashOf(static_cast<int>(job.state()), job.priority(), labels);
}

void JobTable::Publish(JobState& job) {
  touched_.erase(job.name());
  by_revision_.erase(job.job().revision());
  job.job().set_revision(++revision_);
  by_revision_[revision_] = job.record.order();
  const bool progress = !job.record_changed;
  // Who read the job before a step, a checkpoint or a new forecast of it may still change it.
  const uint64_t etag_of = HashOfEtag(job.job());
  if (std::exchange(job.etag_of, etag_of) != etag_of) job.job().set_etag(absl::StrCat(revision_));
  v1::WatchJobsResponse message;
  *message.mutable_job() = View(job);
  message.set_revision(revision_);
  std::string bytes = message.SerializeAsString();
  if (!progress) StoreChange(bytes);
  if (progress && revision_ - job.stored_revision < kWholeEvery) {
    StoreProgress(job, message.job());
  } else {
    StoreWhole(job);
  }
  turn_.Do(Announce{revision_, job.name(), std::move(bytes), progress});
}

void JobTable::StoreWhole(JobState& job) {
  job.record_changed = false;
  job.stored_revision = revision_;
  turn_.Put(storage::PutRecord(kJobKind, job.name(), job.record.SerializeAsString()));
  if (std::exchange(job.progress_stored, false)) {
    turn_.Put(storage::DeleteRecord(kProgressKind, job.name()));
  }
}

void JobTable::StoreProgress(JobState& job, const v1::Job& view) {
  job.progress_stored = true;
  turn_.Put(storage::PutRecord(kProgressKind, job.name(), ProgressOf(view).SerializeAsString()));
}

void JobTable::StoreChange(const std::string& bytes) {
  turn_.Put(storage::PutEntry(kRevisionSeries, "", revision_, bytes));
}

void JobTable::TellDeletion(const JobState& job) {
  v1::WatchJobsResponse message;
  *message.mutable_job() = job.job();
  message.set_revision(++revision_);
  message.set_deleted(true);
  std::string bytes = message.SerializeAsString();
  StoreChange(bytes);
  turn_.Do(Announce{revision_, job.name(), std::move(bytes)});
}

void JobTable::Settle() {
  const std::set<std::string> touched = touched_;
  for (const std::string& name : touched) {
    if (JobState* job = Find(name)) Publish(*job);
  }
  touched_.clear();
  PutEndedAway();
  DropOldChanges();
}

// The changes go with the record that says so: who reads changes first, and the record after them,
// knows whether it has missed any.
void JobTable::DropOldChanges() {
  ages_.Note(turn_.now_us(), revision_);
  const int64_t old =
      std::max(ages_.OldAt(turn_.now_us()), revision_ - options_.watch_revisions_max);
  if (old - trimmed_revision_ < kTrimMin) return;
  trimmed_revision_ = std::min(old, trimmed_revision_ + kTrimMax);
  turn_.Put(storage::TrimSeries(kRevisionSeries, "", trimmed_revision_));
  turn_.Put(storage::PutRecord(kMetaKind, kTrimmedKey, absl::StrCat(trimmed_revision_)));
}

}  // namespace lorad::server
