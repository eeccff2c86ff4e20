// What the daemon's log says of jobs, a line each: that they are created, start, wait and why, and
// end. Events (`lora events`) say more, and to the job's user.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/core/jobs/job_table.h"
#include "server/core/rules/job_states.h"

namespace lorad::server {
namespace {

std::string Titled(const v1::Job& job) {
  return job.display_name().empty()
             ? absl::StrCat("job ", job.name())
             : absl::StrCat("job ", job.name(), " (", job.display_name(), ")");
}

// Messages may quote what workers or rows have.
std::string OneLine(std::string text) {
  std::ranges::replace_if(text, absl::ascii_iscntrl, ' ');
  return text;
}

std::string StepText(const v1::Job& job) {
  return job.total_steps() > 0 ? absl::StrCat("step ", job.step(), " of ", job.total_steps())
                               : absl::StrCat("step ", job.step());
}

// Reasons of one kind differ in nothing but numbers, and names of jobs, groups and workers.
size_t KindOf(const std::string& why) {
  std::vector<absl::string_view> words;
  for (const absl::string_view word : absl::StrSplit(why, ' ')) {
    if (word.find_first_of("0123456789-'") == absl::string_view::npos) words.push_back(word);
  }
  return absl::HashOf(words);
}

}  // namespace

void JobTable::LogCreated(const v1::Job& job) {
  turn_.Info(absl::StrCat(Titled(job), ": created, of base model '", job.base_model(), "'"));
}

void JobTable::LogTransition(JobState& job, v1::Job::State from, const std::string& message) {
  const v1::Job::State to = job.state();
  const bool began = from == v1::Job::RUNNING || from == v1::Job::FINALIZING;
  const std::string& name = job.job().group();
  const GroupState* group = groups_.Find(name);
  std::string what;
  if (!IsLive(to) || to == v1::Job::PAUSED) {
    what = absl::StrCat(ToText(to), " at ", StepText(job.job()), ": ", message);
  } else if (from == v1::Job::PREPARING && IsPlaced(to) && to != v1::Job::PAUSING) {
    what = absl::StrCat("started on ", group ? GroupTable::WorkersText(*group) : "no worker", ": ",
                        message);
  } else if (began && to == v1::Job::QUEUED) {
    // Why a group has ended is said once, of it.
    what = absl::StrCat("waits again, at ", StepText(job.job()), ": ",
                        group ? message : absl::StrCat(name, " is no more"));
  } else {
    return;
  }
  job.logged_whys.clear();
  job.seen_why = 0;
  turn_.Info(OneLine(absl::StrCat(Titled(job.job()), ": ", what)));
}

bool JobTable::LogWaits(const std::vector<JobState*>& waiting) {
  constexpr int kLinesMax = 64;
  int lines = 0;
  for (JobState* job : waiting) {
    // Who stands behind many like it has a reason of its own once it stands before them.
    if (job->why.empty() || queue_.Beyond(*job) > 0) continue;
    const size_t seen = absl::HashOf(job->why);
    if (seen == job->seen_why) continue;
    const size_t kind = KindOf(job->why);
    if (std::ranges::count(job->logged_whys, kind) == 0) {
      if (lines++ == kLinesMax) return false;
      job->logged_whys.push_back(kind);
      turn_.Info(OneLine(absl::StrCat(Titled(job->job()), ": waits: ", job->why)));
    }
    job->seen_why = seen;
  }
  return true;
}

}  // namespace lorad::server
