#include "worker/core/plan_cut.h"

namespace lorad::worker {
namespace {

void AddJobsOf(const v1::Window& window, int64_t microbatch, std::set<std::string>* jobs) {
  for (const v1::Microbatch& candidate : window.microbatches()) {
    if (candidate.number() != microbatch) continue;
    for (const v1::Segment& segment : candidate.segments()) jobs->insert(segment.job());
  }
}

}  // namespace

std::vector<bool> KeptAfterCut(const v1::Window& window, int next, int64_t first_dropped,
                               std::set<std::string>* cut_jobs) {
  std::vector<bool> kept;
  for (int i = next; i < window.operations_size(); ++i) {
    const v1::Operation& operation = window.operations(i);
    bool keep = false;
    switch (operation.kind()) {
      case v1::Operation::RECV:
      case v1::Operation::SEND:
      case v1::Operation::FORWARD:
      case v1::Operation::BACKWARD:
      case v1::Operation::EVALUATE:
        keep = operation.microbatch() < first_dropped;
        if (!keep) AddJobsOf(window, operation.microbatch(), cut_jobs);
        break;
      case v1::Operation::NORM_UP:
      case v1::Operation::CLIP_DOWN:
      case v1::Operation::STEP:
      case v1::Operation::SAVE:
      case v1::Operation::FREE_SLOT:
        keep = cut_jobs->count(operation.job()) == 0;
        if (!keep) cut_jobs->insert(operation.job());
        break;
      case v1::Operation::LOAD_SLOT:
        cut_jobs->insert(operation.job());
        break;
      default:
        break;
    }
    kept.push_back(keep);
  }
  return kept;
}

}  // namespace lorad::worker
