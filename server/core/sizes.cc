// How much is kept in memory: for those who see to it that nothing grows with time.
#include <iterator>

#include "server/core/state.h"

namespace lorad::server {

Core::Sizes Core::State::SizesNow() const {
  Core::Sizes sizes;
  sizes.live_jobs = std::ssize(live_);
  sizes.whole_jobs = std::ssize(jobs_);
  sizes.ended_jobs_at_work = std::ssize(put_away_);
  sizes.request_ids = answers_.size();
  for (const auto& [name, job] : jobs_) {
    sizes.metric_rows += std::ssize(job->metrics);
    if (IsLive(job->state())) {
      sizes.steps_after_checkpoints +=
          job->record.furthest_step() - job->job().last_checkpoint_step();
    }
  }
  return sizes;
}

}  // namespace lorad::server
