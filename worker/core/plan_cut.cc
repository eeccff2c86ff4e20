#include "worker/core/plan_cut.h"

#include <algorithm>

namespace lorad::worker {
namespace {

// How one cut goes through one window.
class Cut {
 public:
  Cut(const v1::Window& window, int64_t first_dropped, CutLosses* losses)
      : window_(window), first_dropped_(first_dropped), losses_(losses) {
    const std::optional<int64_t> first = FirstMicrobatch(window);
    begins_ = !first.has_value() || *first < first_dropped;
  }

  bool Keeps(const v1::Operation& operation) const {
    const bool intact = losses_->jobs.count(operation.job()) == 0;
    switch (operation.kind()) {
      case v1::Operation::RECV:
      case v1::Operation::SEND:
      case v1::Operation::FORWARD:
      case v1::Operation::BACKWARD:
      case v1::Operation::EVALUATE:
      case v1::Operation::GENERATE:
        return operation.microbatch() < first_dropped_;
      case v1::Operation::NORM_UP:
      case v1::Operation::CLIP_DOWN:
      case v1::Operation::STEP:
      case v1::Operation::SAVE:
      case v1::Operation::FREE_SLOT:
        return intact;
      case v1::Operation::LOAD_SLOT:
        return intact && begins_ && !losses_->room;
      default:
        return false;
    }
  }

  void Lose(const v1::Operation& operation) {
    if (!operation.job().empty()) losses_->jobs.insert(operation.job());
    if (operation.kind() == v1::Operation::FREE_SLOT) losses_->room = true;
    for (const v1::Microbatch& microbatch : window_.microbatches()) {
      if (!operation.job().empty() || microbatch.number() != operation.microbatch()) continue;
      for (const v1::Segment& segment : microbatch.segments()) {
        if (!segment.sampling().base()) losses_->jobs.insert(segment.job());
      }
    }
  }

 private:
  const v1::Window& window_;
  const int64_t first_dropped_;
  CutLosses* const losses_;
  bool begins_ = false;
};

}  // namespace

std::optional<int64_t> FirstMicrobatch(const v1::Window& window) {
  std::optional<int64_t> first;
  for (const v1::Microbatch& microbatch : window.microbatches()) {
    first = std::min(first.value_or(microbatch.number()), microbatch.number());
  }
  return first;
}

std::vector<bool> KeptAfterCut(const v1::Window& window, int64_t first_dropped,
                               const std::vector<bool>& before, CutLosses* losses) {
  Cut cut(window, first_dropped, losses);
  std::vector<bool> kept;
  for (int i = 0; i < window.operations_size(); ++i) {
    const bool was_kept = before.empty() || before[static_cast<size_t>(i)];
    kept.push_back(was_kept && cut.Keeps(window.operations(i)));
    if (was_kept && !kept.back()) cut.Lose(window.operations(i));
  }
  return kept;
}

}  // namespace lorad::worker
