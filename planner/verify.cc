#include <deque>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/order.h"

namespace lorad::planner {
namespace {

using JobStep = std::pair<std::string, int64_t>;

// Walks one stage's list and keeps what each rule needs to know.
class StageVerifier {
 public:
  StageVerifier(const Window& window, size_t stage) : window_(window), stage_(stage) {
    for (const Microbatch& microbatch : window.microbatches) {
      by_number_[microbatch.number] = &microbatch;
      for (const Segment& segment : microbatch.segments) {
        if (segment.mode != SegmentMode::kTrain) continue;
        left_[{segment.job, segment.step}].insert(microbatch.number);
        jobs_steps_[segment.job].insert(segment.step);
      }
    }
  }

  absl::Status Run() {
    for (at_ = 0; at_ < operations().size(); ++at_) {
      if (absl::Status status = Visit(operations()[at_]); !status.ok()) return status;
    }
    for (const auto& [number, microbatch] : by_number_) {
      if (!forward_.contains(number)) return Wrong("microbatch ", number, " is never run");
      if (IsTrain(*microbatch) && !backward_.contains(number)) {
        return Wrong("F", number, " has no Backward");
      }
    }
    for (const auto& [batch, numbers] : left_) {
      if (!stepped_.contains(batch)) {
        return Wrong("batch ", batch.first, "/", batch.second, " has no Step");
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<Operation>& operations() const { return window_.stages[stage_]; }

  static bool IsTrain(const Microbatch& microbatch) {
    return microbatch.segments.empty() ||
           microbatch.segments.front().mode != SegmentMode::kEvaluate;
  }

  template <class... Parts>
  absl::Status Wrong(const Parts&... parts) const {
    return absl::InternalError(absl::StrCat(
        "stage ", stage_, ", operation ", at_,
        at_ < operations().size() ? " (" + ToText(operations()[at_]) + ")" : std::string(" (end)"),
        ": ", parts...));
  }

  absl::Status Visit(const Operation& operation) {
    switch (operation.kind) {
      case OperationKind::kForward:
      case OperationKind::kEvaluate:
        return Forward(operation);
      case OperationKind::kBackward:
        return Backward(operation);
      case OperationKind::kNormUp:
        return Norm(operation, &normed_);
      case OperationKind::kClipDown:
        return Norm(operation, &clipped_);
      case OperationKind::kStep:
        return Step(operation);
      case OperationKind::kSave:
        return Save(operation);
      case OperationKind::kLoadSlot:
        freed_.erase(operation.job);
        return used_.contains(operation.job) ? Wrong("the job is loaded already")
                                             : absl::OkStatus();
      case OperationKind::kFreeSlot:
        if (!freed_.insert(operation.job).second) return Wrong("the job is freed already");
        used_.erase(operation.job);
        return absl::OkStatus();
      case OperationKind::kRecv:
      case OperationKind::kSend:
      case OperationKind::kNoop:
        return absl::OkStatus();
    }
    return Wrong("unknown kind");
  }

  absl::Status Forward(const Operation& operation) {
    const auto found = by_number_.find(operation.microbatch);
    if (found == by_number_.end()) return Wrong("no such microbatch");
    const bool train = operation.kind == OperationKind::kForward;
    if (train != IsTrain(*found->second)) return Wrong("the microbatch is of the other kind");
    if (!forward_.insert(operation.microbatch).second) return Wrong("run twice");
    for (const Segment& segment : found->second->segments) {
      if (freed_.contains(segment.job)) return Wrong("job ", segment.job, " has no slot");
      used_.insert(segment.job);
      // What came before must be stepped, where this window is to step it at all.
      const auto steps = jobs_steps_.find(segment.job);
      if (steps == jobs_steps_.end()) continue;
      for (int64_t step : steps->second) {
        const bool before = train ? step < segment.step : step <= segment.step;
        if (before != stepped_.contains({segment.job, step})) {
          return Wrong(before ? "comes before Step " : "comes after Step ", segment.job, "/", step);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const Operation& operation) {
    if (!forward_.contains(operation.microbatch)) return Wrong("no Forward before it");
    if (!backward_.insert(operation.microbatch).second) return Wrong("run twice");
    const Microbatch& microbatch = *by_number_.at(operation.microbatch);
    if (!IsTrain(microbatch)) return Wrong("of a microbatch to evaluate");
    for (const Segment& segment : microbatch.segments) {
      if (segment.mode == SegmentMode::kTrain) {
        left_[{segment.job, segment.step}].erase(operation.microbatch);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Norm(const Operation& operation, std::set<JobStep>* done) {
    const JobStep batch(operation.job, operation.step);
    const auto left = left_.find(batch);
    if (left == left_.end()) return Wrong("no such batch");
    if (!left->second.empty()) return Wrong("B", *left->second.begin(), " is yet to come");
    if (done == &clipped_ && !normed_.contains(batch)) return Wrong("NORM_UP is yet to come");
    if (!done->insert(batch).second) return Wrong("run twice");
    return absl::OkStatus();
  }

  absl::Status Step(const Operation& operation) {
    const JobStep batch(operation.job, operation.step);
    if (!left_.contains(batch)) return Wrong("no such batch");
    if (!clipped_.contains(batch)) return Wrong("CLIP_DOWN is yet to come");
    if (!stepped_.insert(batch).second) return Wrong("run twice");
    return absl::OkStatus();
  }

  absl::Status Save(const Operation& operation) {
    const JobStep batch(operation.job, operation.step);
    if (freed_.contains(operation.job)) return Wrong("the job has no slot");
    if (!left_.contains(batch)) {  // stepped in an earlier window
      return used_.contains(operation.job) ? Wrong("the job has gone on") : absl::OkStatus();
    }
    const Operation* before = at_ == 0 ? nullptr : &operations()[at_ - 1];
    if (before == nullptr || before->kind != OperationKind::kStep || before->job != batch.first ||
        before->step != batch.second) {
      return Wrong("does not stand directly after its Step");
    }
    return absl::OkStatus();
  }

  const Window& window_;
  const size_t stage_;
  size_t at_ = 0;
  std::map<int64_t, const Microbatch*> by_number_;
  std::map<JobStep, std::set<int64_t>> left_;  // microbatches of a batch yet to run backward
  std::map<std::string, std::set<int64_t>> jobs_steps_;
  std::set<int64_t> forward_, backward_;
  std::set<JobStep> normed_, clipped_, stepped_;
  std::set<std::string> freed_, used_;
};

// Runs all lists side by side; a Send never blocks (the transport's streams buffer one operation
// ahead), a Recv waits for its Send, a ClipDown for every stage's NormUp.
absl::Status VerifyProgress(const Window& window) {
  const size_t stages = window.stages.size();
  std::vector<size_t> at(stages, 0);
  std::map<std::pair<size_t, size_t>, std::deque<Operation>> sent;
  std::map<JobStep, size_t> normed;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < stages; ++stage) {
      for (; at[stage] < window.stages[stage].size(); ++at[stage], moved = true) {
        const Operation& operation = window.stages[stage][at[stage]];
        const JobStep batch(operation.job, operation.step);
        if (operation.kind == OperationKind::kNormUp) ++normed[batch];
        if (operation.kind == OperationKind::kClipDown && normed[batch] < stages) break;
        const size_t peer = static_cast<size_t>(operation.peer);
        if (operation.kind == OperationKind::kSend) sent[{stage, peer}].push_back(operation);
        if (operation.kind != OperationKind::kRecv) continue;
        std::deque<Operation>& waiting = sent[{peer, stage}];
        if (waiting.empty()) break;
        if (waiting.front().microbatch != operation.microbatch ||
            waiting.front().gradient != operation.gradient) {
          return absl::InternalError(absl::StrCat("stage ", stage, " expects ", ToText(operation),
                                                  ", stage ", peer, " sends ",
                                                  ToText(waiting.front())));
        }
        waiting.pop_front();
      }
    }
  }
  for (size_t stage = 0; stage < stages; ++stage) {
    if (at[stage] == window.stages[stage].size()) continue;
    return absl::InternalError(absl::StrCat("stage ", stage, " waits for ever at operation ",
                                            at[stage], ": ",
                                            ToText(window.stages[stage][at[stage]])));
  }
  for (const auto& [edge, waiting] : sent) {
    if (waiting.empty()) continue;
    return absl::InternalError(absl::StrCat("stage ", edge.second, " never receives ",
                                            ToText(waiting.front()), " of stage ", edge.first));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyWindow(const Window& window) {
  if (window.stages.empty()) return absl::InternalError("a window without stages");
  for (size_t stage = 0; stage < window.stages.size(); ++stage) {
    if (absl::Status status = StageVerifier(window, stage).Run(); !status.ok()) return status;
  }
  return VerifyProgress(window);
}

}  // namespace lorad::planner
