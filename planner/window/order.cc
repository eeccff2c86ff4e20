#include "planner/window/order.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"

namespace lorad::planner {
namespace {

using JobStep = std::pair<std::string, int64_t>;

std::string Of(const JobStep& batch) { return absl::StrCat(batch.first, "/", batch.second); }

// A place in the pipeline: a microbatch, or a Noop (index -1).
struct Place {
  int index = -1;
  int64_t number = 0;
};

// Consecutive microbatches of one kind: run through the pipeline and drained before the next run.
struct Run {
  bool train = true;
  std::vector<Place> places;
};

absl::Status CheckMicrobatches(const OrderInput& input) {
  int64_t last = -1;
  for (const Microbatch& microbatch : input.microbatches) {
    if (microbatch.number <= last) {
      return absl::InvalidArgumentError(
          absl::StrCat("microbatch ", microbatch.number, " follows ", last));
    }
    last = microbatch.number;
    if (microbatch.segments.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("microbatch ", last, " is empty"));
    }
    std::map<std::string, int64_t> steps;
    for (const Segment& segment : microbatch.segments) {
      if ((segment.mode == SegmentMode::kEvaluate) !=
          (microbatch.segments.front().mode == SegmentMode::kEvaluate)) {
        return absl::InvalidArgumentError(
            absl::StrCat("microbatch ", last, " holds segments to train on and to evaluate"));
      }
      if (steps.emplace(segment.job, segment.step).first->second != segment.step) {
        return absl::InvalidArgumentError(
            absl::StrCat("microbatch ", last, " holds two batches of job ", segment.job));
      }
    }
  }
  return absl::OkStatus();
}

bool IsTrain(const Microbatch& microbatch) {
  return microbatch.segments.front().mode != SegmentMode::kEvaluate;
}

// The index of the last microbatch of every batch.
absl::StatusOr<std::map<JobStep, int>> LastMicrobatches(const OrderInput& input) {
  std::map<JobStep, int> last;
  for (size_t i = 0; i < input.microbatches.size(); ++i) {
    for (const Segment& segment : input.microbatches[i].segments) {
      if (segment.mode == SegmentMode::kTrain) {
        last[{segment.job, segment.step}] = static_cast<int>(i);
      }
    }
  }
  std::set<JobStep> ends;
  for (const BatchEnd& end : input.ends) {
    const JobStep batch(end.job, end.step);
    if (!last.contains(batch) || !ends.insert(batch).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch ", Of(batch), " ends but has no microbatch, or ends twice"));
    }
  }
  for (const auto& [batch, index] : last) {
    if (!ends.contains(batch)) {
      return absl::InvalidArgumentError(absl::StrCat("batch ", Of(batch), " has no end"));
    }
  }
  return last;
}

// Stage 0 is A = A(0) microbatches ahead of its backwards: a Step after the backward of place p
// comes before the forwards of places > p + A on every stage, and before no earlier one on stage 0.
// Each microbatch at its earliest such place: no fewer Noops will do.
absl::StatusOr<std::vector<Run>> PlaceMicrobatches(const OrderInput& input,
                                                   const std::map<JobStep, int>& last) {
  const int ahead = ForwardsAhead(input.stages, input.in_flight, 0);
  std::vector<Run> runs;
  std::map<std::string, std::pair<int64_t, size_t>> newest;  // job -> (step, run) begun last
  std::map<JobStep, int64_t> ended_at;                       // place in the newest train run
  int64_t next_number = input.microbatches.empty() ? 0 : input.microbatches.back().number + 1;
  for (size_t i = 0; i < input.microbatches.size(); ++i) {
    const Microbatch& microbatch = input.microbatches[i];
    const bool train = IsTrain(microbatch);
    if (runs.empty() || runs.back().train != train) {
      runs.push_back(Run{train, {}});
      ended_at.clear();
    }
    Run& run = runs.back();
    int64_t place = static_cast<int64_t>(run.places.size());
    for (const Segment& segment : microbatch.segments) {
      if (segment.mode != SegmentMode::kTrain) continue;
      const auto before = ended_at.find({segment.job, segment.step - 1});
      if (before != ended_at.end()) place = std::max(place, before->second + ahead + 1);
      const auto [it, first] = newest.emplace(segment.job, std::pair(segment.step, runs.size()));
      const bool follows = segment.step == it->second.first ||
                           (segment.step == it->second.first + 1 &&
                            last.at({segment.job, segment.step - 1}) < static_cast<int>(i));
      if (!first && !follows) {
        return absl::InvalidArgumentError(
            absl::StrCat("microbatch ", microbatch.number, " holds batch ",
                         Of({segment.job, segment.step}), " after one of ", it->second.first));
      }
      it->second.first = segment.step;
    }
    while (static_cast<int64_t>(run.places.size()) < place) {
      run.places.push_back(Place{-1, next_number++});
    }
    run.places.push_back(Place{static_cast<int>(i), microbatch.number});
    for (const Segment& segment : microbatch.segments) {
      if (segment.mode == SegmentMode::kTrain &&
          last.at({segment.job, segment.step}) == static_cast<int>(i)) {
        ended_at[{segment.job, segment.step}] = place;
      }
    }
  }
  return runs;
}

// Appends operations of one stage.
class StageWriter {
 public:
  StageWriter(int stage, int stages, std::vector<Operation>* out)
      : stage_(stage), stages_(stages), out_(out) {}

  void Forward(const Place& place, OperationKind kind) {
    if (place.index < 0) {
      Put({.kind = OperationKind::kNoop, .microbatch = place.number});
      return;
    }
    if (stage_ > 0) Transfer(OperationKind::kRecv, place, stage_ - 1, false);
    Put({.kind = kind, .microbatch = place.number});
    if (stage_ + 1 < stages_) Transfer(OperationKind::kSend, place, stage_ + 1, false);
  }

  void Backward(const Place& place) {
    if (place.index < 0) return;
    if (stage_ + 1 < stages_) Transfer(OperationKind::kRecv, place, stage_ + 1, true);
    Put({.kind = OperationKind::kBackward, .microbatch = place.number});
    if (stage_ > 0) Transfer(OperationKind::kSend, place, stage_ - 1, true);
  }

  void Norm(const BatchEnd& end) {
    Put({.kind = OperationKind::kNormUp, .job = end.job, .step = end.step});
  }

  void Step(const BatchEnd& end) {
    Put({.kind = OperationKind::kClipDown, .job = end.job, .step = end.step});
    Put({.kind = OperationKind::kStep,
         .job = end.job,
         .step = end.step,
         .learning_rate = end.learning_rate});
    if (end.save) Put({.kind = OperationKind::kSave, .job = end.job, .step = end.step});
  }

  void Put(Operation operation) { out_->push_back(std::move(operation)); }

 private:
  void Transfer(OperationKind kind, const Place& place, int peer, bool gradient) {
    Put({.kind = kind, .microbatch = place.number, .peer = peer, .gradient = gradient});
  }

  const int stage_, stages_;
  std::vector<Operation>* out_;
};

// One forward, one backward, and the batches' ends.
void WriteTrainRun(const OrderInput& input, const Run& run,
                   const std::map<int, std::vector<const BatchEnd*>>& ends, int stage,
                   StageWriter* write) {
  const auto ends_of = [&](const Place& place) -> std::vector<const BatchEnd*> {
    const auto found = ends.find(place.index);
    return found == ends.end() ? std::vector<const BatchEnd*>() : found->second;
  };
  const size_t ahead = static_cast<size_t>(ForwardsAhead(input.stages, input.in_flight, stage));
  const size_t delay = static_cast<size_t>(ForwardsAhead(input.stages, input.in_flight, 0)) - ahead;
  const size_t count = run.places.size();
  for (size_t i = 0; i < std::min(ahead, count); ++i) {
    write->Forward(run.places[i], OperationKind::kForward);
  }
  for (size_t i = 0; i < count + delay; ++i) {
    if (i + ahead < count) write->Forward(run.places[i + ahead], OperationKind::kForward);
    if (i < count) {
      write->Backward(run.places[i]);
      for (const BatchEnd* end : ends_of(run.places[i])) write->Norm(*end);
    }
    if (i < delay) continue;
    for (const BatchEnd* end : ends_of(run.places[i - delay])) write->Step(*end);
  }
}

std::vector<Operation> WriteStage(const OrderInput& input, const std::vector<Run>& runs,
                                  const std::map<JobStep, int>& last, int stage) {
  std::vector<Operation> operations;
  size_t places = 0;
  for (const Run& run : runs) places += run.places.size();
  operations.reserve(6 * places + 4 * input.ends.size() + input.frees.size() + input.loads.size() +
                     input.saves.size());
  StageWriter write(stage, input.stages, &operations);
  for (const std::string& job : input.frees) {
    write.Put({.kind = OperationKind::kFreeSlot, .job = job});
  }
  for (const auto& [job, step] : input.loads) {
    write.Put({.kind = OperationKind::kLoadSlot, .job = job, .step = step});
  }
  for (const auto& [job, step] : input.saves) {
    write.Put({.kind = OperationKind::kSave, .job = job, .step = step});
  }
  std::map<int, std::vector<const BatchEnd*>> ends;  // by index of their last microbatch
  for (const BatchEnd& end : input.ends) ends[last.at({end.job, end.step})].push_back(&end);
  for (const Run& run : runs) {
    if (run.train) {
      WriteTrainRun(input, run, ends, stage, &write);
      continue;
    }
    for (const Place& place : run.places) write.Forward(place, OperationKind::kEvaluate);
  }
  return operations;
}

}  // namespace

int ForwardsAhead(int stages, int in_flight, int stage) {
  const int bound = in_flight == 0 ? stages : in_flight;
  return bound > stages ? bound - 1 - stage : std::min(stages - 1 - stage, bound - 1);
}

absl::StatusOr<std::vector<std::vector<Operation>>> OrderOperations(const OrderInput& input) {
  if (input.stages < 1) {
    return absl::InvalidArgumentError(absl::StrCat(input.stages, " stages"));
  }
  if (input.in_flight < 0) {
    return absl::InvalidArgumentError(absl::StrCat(input.in_flight, " microbatches in flight"));
  }
  if (absl::Status status = CheckMicrobatches(input); !status.ok()) return status;
  absl::StatusOr<std::map<JobStep, int>> last = LastMicrobatches(input);
  if (!last.ok()) return last.status();
  absl::StatusOr<std::vector<Run>> runs = PlaceMicrobatches(input, *last);
  if (!runs.ok()) return runs.status();
  std::vector<std::vector<Operation>> stages;
  stages.reserve(static_cast<size_t>(input.stages));
  for (int stage = 0; stage < input.stages; ++stage) {
    stages.push_back(WriteStage(input, *runs, *last, stage));
  }
  return stages;
}

}  // namespace lorad::planner
