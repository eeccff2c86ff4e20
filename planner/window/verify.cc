#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/window/order.h"

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
        pending_[segment.job].insert(segment.step);
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
      if (HasNext() && !sent_.contains({number, false})) {
        return Wrong("what F", number, " makes is not sent on");
      }
      if (HasPrevious() && IsTrain(*microbatch) && !sent_.contains({number, true})) {
        return Wrong("what B", number, " makes is not sent on");
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

  bool HasPrevious() const { return stage_ > 0; }
  bool HasNext() const { return stage_ + 1 < window_.stages.size(); }

  static bool IsTrain(const Microbatch& microbatch) {
    return microbatch.segments.empty() || Trains(microbatch.segments.front().mode);
  }

  static bool IsGenerate(const Microbatch& microbatch) {
    return !microbatch.segments.empty() &&
           microbatch.segments.front().mode == SegmentMode::kGenerate;
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
      case OperationKind::kGenerate:
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
        newest_step_.erase(operation.job);  // it begins at what it is loaded from
        return used_.contains(operation.job) ? Wrong("the job is loaded already")
                                             : absl::OkStatus();
      case OperationKind::kFreeSlot:
        if (!freed_.insert(operation.job).second) return Wrong("the job is freed already");
        used_.erase(operation.job);
        return absl::OkStatus();
      case OperationKind::kRecv:  // Execute sees that they meet
        received_.insert({operation.microbatch, operation.gradient});
        return absl::OkStatus();
      case OperationKind::kSend:
        sent_.insert({operation.microbatch, operation.gradient});
        return absl::OkStatus();
      case OperationKind::kNoop:
        return absl::OkStatus();
    }
    return Wrong("unknown kind");
  }

  absl::Status Forward(const Operation& operation) {
    const auto found = by_number_.find(operation.microbatch);
    if (found == by_number_.end()) return Wrong("no such microbatch");
    const bool train = operation.kind == OperationKind::kForward;
    const bool generates = operation.kind == OperationKind::kGenerate;
    if (train != IsTrain(*found->second) || generates != IsGenerate(*found->second)) {
      return Wrong("the microbatch is of another kind");
    }
    if (!forward_.insert(operation.microbatch).second) return Wrong("run twice");
    if (train) forwards_.push_back(operation.microbatch);
    if (HasPrevious() && !received_.contains({operation.microbatch, false})) {
      return Wrong("its activations are not received");
    }
    for (const Segment& segment : found->second->segments) {
      if (freed_.contains(segment.job)) return Wrong("job ", segment.job, " has no slot");
      used_.insert(segment.job);
      // The batch before must be stepped, where this window is to step it at all.
      const auto pending = pending_.find(segment.job);
      if (pending == pending_.end()) continue;
      const int64_t before = train ? segment.step - 1 : segment.step;  // the last to be stepped
      if (!pending->second.empty() && *pending->second.begin() <= before) {
        return Wrong("comes before Step ", segment.job, "/", *pending->second.begin());
      }
      const auto newest = newest_step_.find(segment.job);
      if (newest != newest_step_.end() && newest->second > before) {
        return Wrong("comes after Step ", segment.job, "/", newest->second);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const Operation& operation) {
    if (!forward_.contains(operation.microbatch)) return Wrong("no Forward before it");
    if (!backward_.insert(operation.microbatch).second) return Wrong("run twice");
    const Microbatch& microbatch = *by_number_.at(operation.microbatch);
    if (!IsTrain(microbatch)) return Wrong("of a microbatch that has no backward pass");
    if (forwards_.front() != operation.microbatch)
      return Wrong("B", forwards_.front(), " is first");
    forwards_.pop_front();
    if (HasNext() && !received_.contains({operation.microbatch, true})) {
      return Wrong("its gradient is not received");
    }
    for (const Segment& segment : microbatch.segments) {
      if (freed_.contains(segment.job)) return Wrong("job ", segment.job, " has no slot");
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
    if (freed_.contains(operation.job)) return Wrong("the job has no slot");
    if (!stepped_.insert(batch).second) return Wrong("run twice");
    pending_[batch.first].erase(batch.second);
    int64_t& newest = newest_step_.emplace(batch).first->second;
    newest = std::max(newest, batch.second);
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
  std::map<JobStep, std::set<int64_t>> left_;         // microbatches of a batch yet to run backward
  std::map<std::string, std::set<int64_t>> pending_;  // steps of a job yet to come
  std::map<std::string, int64_t> newest_step_;        // the last done, of each job
  std::set<int64_t> forward_, backward_;
  std::deque<int64_t> forwards_;  // to train on, whose Backward is yet to come
  std::set<std::pair<int64_t, bool>> received_, sent_;  // (microbatch, gradient)
  std::set<JobStep> normed_, clipped_, stepped_;
  std::set<std::string> freed_, used_;
};

void Append(const Window& window, Window* joined) {
  const auto append = [](const auto& from, auto* to) {
    to->insert(to->end(), from.begin(), from.end());
  };
  append(window.microbatches, &joined->microbatches);
  append(window.batches, &joined->batches);
  joined->stages.resize(std::max(joined->stages.size(), window.stages.size()));
  for (size_t stage = 0; stage < window.stages.size(); ++stage) {
    append(window.stages[stage], &joined->stages[stage]);
  }
}

// What is still to hold of them: the batches that end with them, which are stepped once. Those
// whose end a cut has dropped are not.
std::vector<Microbatch> MicrobatchesOf(const PlacesInFlight& places) {
  std::vector<Microbatch> microbatches;
  for (const Place& place : places) {
    if (place.kind == OperationKind::kNoop) continue;
    Microbatch& microbatch = microbatches.emplace_back(Microbatch{place.number, {}});
    if (place.kind != OperationKind::kForward) {
      const bool generates = place.kind == OperationKind::kGenerate;
      Segment& segment = microbatch.segments.emplace_back();
      segment.mode = generates ? SegmentMode::kGenerate : SegmentMode::kEvaluate;
    }
    for (const BatchEnd& end : place.ends) {
      Segment& segment = microbatch.segments.emplace_back();
      segment.job = end.job;
      segment.step = end.step;
    }
  }
  return microbatches;
}

}  // namespace

absl::Status VerifyWindow(const Window& window, const Buffers& buffers) {
  if (window.stages.empty()) return absl::InternalError("a window without stages");
  for (size_t stage = 0; stage < window.stages.size(); ++stage) {
    if (absl::Status status = StageVerifier(window, stage).Run(); !status.ok()) return status;
  }
  return Execute(window.stages, buffers, [](int, const Operation&) { return 0.0; }).status();
}

absl::Status VerifyWindows(const std::vector<Window>& windows, const Buffers& buffers) {
  Window joined;
  for (const Window& window : windows) Append(window, &joined);
  return VerifyWindow(joined, buffers);
}

absl::Status VerifyWindowAmong(const Window& window, int in_flight, const PlacesInFlight& before,
                               const PlacesInFlight& left, const Buffers& buffers) {
  if (before.empty() && left.empty()) return VerifyWindow(window, buffers);
  const int stages = static_cast<int>(window.stages.size());
  OrderInput drain;
  drain.stages = stages;
  drain.in_flight = in_flight;
  drain.before = left;
  auto drained = OrderOperations(drain);
  if (!drained.ok()) return drained.status();
  Window joined{MicrobatchesOf(before), {}, ListsThatLeft(stages, in_flight, before)};
  Append(window, &joined);
  Append({{}, {}, *std::move(drained)}, &joined);
  return VerifyWindow(joined, buffers);
}

}  // namespace lorad::planner
