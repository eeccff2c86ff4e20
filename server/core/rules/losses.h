// Which job ends its workers? A job that is in a group whose worker is lost may have caused it, or
// was only there. After the second loss without progress of its own the job is a suspect: its group
// may hold half as many suspects as the one that was lost, then half of those. A step that it has
// never done before clears it. Jobs without suspicion share groups with suspects as with others;
// but who was the only suspect when a worker was lost has its next group to itself, before its
// equals, until it is cleared. So among n jobs the one to blame is alone after 3 + log2(n) losses
// at most. Only a job that was alone fails, and not before it was alone, and has waited after it,
// so often that whoever else ends workers has had a minute to pass: losses in company may follow
// each other within seconds. A loss at what the job had done before, as it goes on from an older
// checkpoint, hardly speaks against it: it is counted apart, and of those it may have kRedoneFactor
// times as many.
#pragma once

#include <cstdint>

namespace lorad::server {

// For so long a worker that failed a job is not to try it again while another can (JobState::
// failed_on), and one that is gone may be back.
inline constexpr int64_t kForgivenUs = 600'000'000;

// The cause of the loss of a worker.
enum class Loss {
  kAnybodys,    // the worker's, or that of any job on it
  kWorkersLie,  // it said what does not fit: no job is to blame
  kItsEnd,      // it was told to end: nobody is to blame
};

// JobRecord::company_max after a loss: `losses` without progress, this one included;
// `company_max` as it was; `suspects` of the group that was lost, itself among them.
int32_t CompanyAfterLoss(int32_t losses, int32_t company_max, int32_t suspects);

// The half of so many, where at most `company_max` may be together (0: any number).
int32_t HalfOf(int32_t company_max, int32_t jobs);

// A suspect by so many losses.
bool IsSuspect(int32_t losses);

// JobRecord::alone after it: what happens next is its doing.
bool AloneAfterLoss(int32_t losses, int32_t suspects);

// Whether the job fails: it was alone, and that often. Of `losses`, this one included, `redone`
// were at what it had done before; `losses_alone` of the others were when it was alone, before this
// one.
inline constexpr int32_t kRedoneFactor = 4;
bool IsToBlame(int32_t losses, int32_t redone, int32_t losses_alone, int32_t losses_max,
               int64_t jobs_of_group);

}  // namespace lorad::server
