// The content that a slot starts from, where a worker could not load it: the worker's word gives no
// checkpoint up and fails no job. We read it ourselves, and go by what we find.
#include <cassert>

#include "absl/strings/str_cat.h"
#include "server/core/rules/failures.h"
#include "server/core/state.h"

namespace lorad::server {
namespace {

constexpr char kSlotLoad[] = "SLOT_LOAD";
constexpr char kCheckpointUnreadable[] = "CHECKPOINT_UNREADABLE";

// With the back-off between them about a minute: a disk that fails for longer does not pass.
constexpr int kUnreadableMax = 7;

// Whether the worker's reason calls bytes bad that we have found good.
bool SaysItIsBad(const std::string& reason) {
  return reason == kCheckpointCorrupt || reason == kContentInvalid ||
         reason == "CHECKPOINT_INVALID" || reason == "ADAPTER_INVALID";
}

}  // namespace

void Core::State::LookAtContent(JobState& job, const std::string& worker, const std::string& reason,
                                const std::string& message) {
  const uint64_t number = turn_.NewNumber();
  const std::string content = ContentOf(job.job());
  looks_[number] = {job.name(), content, worker, reason, message};
  job.resumes = true;
  const std::string what =
      message.starts_with(reason) ? message : absl::StrCat(reason, ": ", message);
  jobs_.Transition(job, v1::Job::QUEUED,
                   absl::StrCat("worker '", worker, "' could not load it: ", what));
  job.reads_content = true;
  job.why = absl::StrCat(content, " is read, for a worker could not load it");
  turn_.Do(ReadContent{number, job.name(), content});
}

void Core::State::OnContentRead(const ContentRead& read) {
  auto node = looks_.extract(read.number);
  assert(!node.empty());
  const PendingLook& look = node.mapped();
  JobState* job = jobs_.Find(look.job);
  if (!job) return;  // deleted meanwhile
  job->reads_content = false;
  turn_.WantSchedule();
  // Cancelled meanwhile, or it goes on from a newer checkpoint.
  if (job->state() != v1::Job::QUEUED || ContentOf(job->job()) != look.content) return;
  const bool own = job->job().last_checkpoint_step() > 0;
  const std::string found(read.status.message());
  if (read.status.ok()) {
    const std::string said = absl::StrCat("worker '", look.worker, "' said of ", look.content,
                                          ", which is whole: ", look.message);
    if (!SaysItIsBad(look.reason)) return Postpone(*job, look.reason, look.message);
    if (WorkerState* worker = cluster_.Find(look.worker)) cluster_.RestAsLiar(*worker, said);
    return Postpone(*job, kSlotLoad, said);
  }
  if (absl::IsDataLoss(read.status) && own) return LoseCheckpoint(*job, kCheckpointCorrupt, found);
  if (!absl::IsInternal(read.status) || !own) {
    return TakeFailure(*job, ReasonOf(read.status, kSlotLoad), found);
  }
  // EIO of one file; what a whole disk does not give has another code.
  Postpone(*job, kSlotLoad, found);
  if (++job->passing->unreadable < kUnreadableMax) return;
  LoseCheckpoint(*job, kCheckpointUnreadable, found);
  job->passing->unreadable = 0;
}

}  // namespace lorad::server
