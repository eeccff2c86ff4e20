#include "planner/window/order.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"

namespace lorad::planner {
namespace {

using JobStep = std::pair<std::string, int64_t>;

std::string Of(const JobStep& batch) { return absl::StrCat(batch.first, "/", batch.second); }

// The pass forward of a microbatch of such segments.
OperationKind KindOf(SegmentMode mode) {
  if (mode == SegmentMode::kGenerate) return OperationKind::kGenerate;
  return Trains(mode) ? OperationKind::kForward : OperationKind::kEvaluate;
}

const char* Mixed(const Microbatch& microbatch) {
  const bool generates = std::ranges::any_of(microbatch.segments, [](const Segment& segment) {
    return segment.mode == SegmentMode::kGenerate;
  });
  return generates ? "to generate behind and others" : "to train on and to evaluate";
}

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
      if (KindOf(segment.mode) != KindOf(microbatch.segments.front().mode)) {
        return absl::InvalidArgumentError(
            absl::StrCat("microbatch ", last, " holds segments ", Mixed(microbatch)));
      }
      if (steps.emplace(segment.job, segment.step).first->second != segment.step) {
        return absl::InvalidArgumentError(
            absl::StrCat("microbatch ", last, " holds two batches of job ", segment.job));
      }
    }
  }
  return absl::OkStatus();
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

// The pipeline of one window. Everything happens in turns: in turn q every stage runs the Forward of
// place q, the Backward of place q - A(s), and the Steps of place q - A, A = A(0). So an order that
// runs on is one sequence of turns, cut anywhere.
struct Pipeline {
  std::vector<Place> places;  // those that were there before first
  int64_t first_new = 0;
  int64_t ahead = 0;  // A
  // The turn behind whose Steps each job is freed, and all slots are loaded; below first_new: at the
  // front.
  std::vector<std::pair<std::string, int64_t>> frees;
  int64_t loads = -1;

  int64_t count() const { return static_cast<int64_t>(places.size()); }
};

// The place of a batch's end, of those that are in flight before.
std::map<JobStep, int64_t> EndsBefore(const OrderInput& input) {
  std::map<JobStep, int64_t> ended_at;
  for (size_t i = 0; i < input.before.size(); ++i) {
    for (const BatchEnd& end : input.before[i].ends) {
      ended_at[{end.job, end.step}] = static_cast<int64_t>(i);
    }
  }
  return ended_at;
}

void PlaceFrees(const OrderInput& input, const std::map<JobStep, int64_t>& ended_at,
                Pipeline* pipeline) {
  for (const std::string& job : input.frees) {
    int64_t turn = -1;
    for (const auto& [batch, place] : ended_at) {
      if (batch.first == job) turn = std::max(turn, place + pipeline->ahead);
    }
    pipeline->frees.emplace_back(job, turn);
    pipeline->loads = std::max(pipeline->loads, turn);
  }
}

// Gives every microbatch its place. A Step in the turn of place p + A comes before the forwards of
// places > p + A on every stage, and before no earlier one on stage 0: so each microbatch at its
// earliest such place, for no fewer Noops will do.
class Placer {
 public:
  Placer(const OrderInput& input, const std::map<JobStep, int>& last)
      : input_(input), last_(last), ends_(input.microbatches.size()), ended_at_(EndsBefore(input)) {
    pipeline_.places = input.before;
    pipeline_.first_new = pipeline_.count();
    pipeline_.ahead = ForwardsAhead(input.stages, input.in_flight, 0);
    PlaceFrees(input, ended_at_, &pipeline_);
    for (const auto& [batch, place] : ended_at_) newest_[batch.first] = batch.second;
    for (const auto& [job, step] : input.loads) {
      loaded_.insert(job);
      newest_.erase(job);  // it begins at what it is loaded from
    }
    for (const BatchEnd& end : input.ends) {
      ends_[static_cast<size_t>(last.at({end.job, end.step}))].push_back(&end);
    }
    if (!input.before.empty()) next_number_ = input.before.back().number + 1;
    if (!input.microbatches.empty()) next_number_ = input.microbatches.back().number + 1;
  }

  absl::StatusOr<Pipeline> Run(bool leaves) {
    for (size_t i = 0; i < input_.microbatches.size(); ++i) {
      if (absl::Status status = Add(i); !status.ok()) return status;
    }
    if (leaves) FillUpTo(pipeline_.loads + 1);
    return std::move(pipeline_);
  }

 private:
  absl::Status Add(size_t index) {
    const Microbatch& microbatch = input_.microbatches[index];
    int64_t place = pipeline_.count();
    for (const Segment& segment : microbatch.segments) {
      place = std::max(place, Earliest(segment));
      if (segment.mode != SegmentMode::kTrain) continue;
      if (absl::Status status = Begin(microbatch, segment, index); !status.ok()) return status;
    }
    FillUpTo(place);
    Place& placed = pipeline_.places.emplace_back();
    placed.number = microbatch.number;
    placed.tokens = Tokens(microbatch);
    placed.kind = KindOf(microbatch.segments.front().mode);
    for (const BatchEnd* end : ends_[index]) {
      ended_at_[{end->job, end->step}] = place;
      placed.ends.push_back(*end);
    }
    return absl::OkStatus();
  }

  // Behind the Step that it needs, and the load of its slot.
  int64_t Earliest(const Segment& segment) const {
    const bool trains = segment.mode == SegmentMode::kTrain;
    const auto needs = ended_at_.find({segment.job, trains ? segment.step - 1 : segment.step});
    const int64_t stepped = needs == ended_at_.end() ? 0 : needs->second + pipeline_.ahead + 1;
    return std::max(stepped, loaded_.contains(segment.job) ? pipeline_.loads + 1 : 0);
  }

  // A job's batches follow one another, each whole before the next.
  absl::Status Begin(const Microbatch& microbatch, const Segment& segment, size_t index) {
    const auto [it, first] = newest_.emplace(segment.job, segment.step);
    const int64_t before = std::exchange(it->second, segment.step);
    if (first || segment.step == before) return absl::OkStatus();
    const auto last = last_.find({segment.job, before});
    const bool ended = last == last_.end() || last->second < static_cast<int>(index);
    if (segment.step == before + 1 && ended) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("microbatch ", microbatch.number,
                                                   " holds batch ", Of({segment.job, segment.step}),
                                                   " after one of ", before));
  }

  void FillUpTo(int64_t place) {
    while (pipeline_.count() < place) pipeline_.places.push_back({.number = next_number_++});
  }

  const OrderInput& input_;
  const std::map<JobStep, int>& last_;              // index of each batch's last microbatch
  std::vector<std::vector<const BatchEnd*>> ends_;  // by index of that
  Pipeline pipeline_;
  std::map<JobStep, int64_t> ended_at_;    // place of its last microbatch
  std::map<std::string, int64_t> newest_;  // step begun last
  std::set<std::string> loaded_;
  int64_t next_number_ = 0;
};

// Appends operations of one stage.
class StageWriter {
 public:
  StageWriter(int stage, int stages, std::vector<Operation>* out)
      : stage_(stage), stages_(stages), out_(out) {}

  void Forward(const Place& place) {
    if (place.kind == OperationKind::kNoop) {
      Put({.kind = OperationKind::kNoop, .microbatch = place.number});
      return;
    }
    if (stage_ > 0) Transfer(OperationKind::kRecv, place, stage_ - 1, false);
    Put({.kind = place.kind, .microbatch = place.number});
    if (stage_ + 1 < stages_) Transfer(OperationKind::kSend, place, stage_ + 1, false);
  }

  void Backward(const Place& place) {
    if (place.kind != OperationKind::kForward) return;
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

// Frees, then loads, behind a turn; -1: at the front.
void WriteBorder(const OrderInput& input, const Pipeline& pipeline, int64_t turn,
                 StageWriter* write) {
  for (const auto& [job, behind] : pipeline.frees) {
    if (behind == turn) write->Put({.kind = OperationKind::kFreeSlot, .job = job});
  }
  for (const auto& [job, step] : input.loads) {
    if (pipeline.loads != turn) break;
    write->Put({.kind = OperationKind::kLoadSlot, .job = job, .step = step});
  }
}

std::vector<Operation> WriteStage(const OrderInput& input, const Pipeline& pipeline, int64_t turns,
                                  int stage) {
  std::vector<Operation> operations;
  operations.reserve(6 * pipeline.places.size() + 4 * input.ends.size() + input.frees.size() +
                     input.loads.size() + input.saves.size());
  StageWriter write(stage, input.stages, &operations);
  const int64_t ahead = ForwardsAhead(input.stages, input.in_flight, stage);
  const auto at = [&](int64_t place) -> const Place* {
    return place >= 0 && place < pipeline.count() ? &pipeline.places[static_cast<size_t>(place)]
                                                  : nullptr;
  };
  WriteBorder(input, pipeline, -1, &write);
  for (const auto& [job, step] : input.saves) {
    write.Put({.kind = OperationKind::kSave, .job = job, .step = step});
  }
  for (int64_t turn = pipeline.first_new; turn < turns; ++turn) {
    if (const Place* place = at(turn)) write.Forward(*place);
    if (const Place* place = at(turn - ahead)) {
      write.Backward(*place);
      for (const BatchEnd& end : place->ends) write.Norm(end);
    }
    if (const Place* place = at(turn - pipeline.ahead)) {
      for (const BatchEnd& end : place->ends) write.Step(end);
    }
    WriteBorder(input, pipeline, turn, &write);
  }
  return operations;
}

// Saves of steps that are in flight belong behind these.
OrderInput WithSavesInFlight(OrderInput input) {
  for (Place& place : input.before) {
    for (BatchEnd& end : place.ends) {
      end.save = std::erase(input.saves, std::pair(end.job, end.step)) > 0 || end.save;
    }
  }
  return input;
}

}  // namespace

int ForwardsAhead(int stages, int in_flight, int stage) {
  const int bound = in_flight == 0 ? stages : in_flight;
  return bound > stages ? bound - 1 - stage : std::min(stages - 1 - stage, bound - 1);
}

absl::StatusOr<std::vector<std::vector<Operation>>> OrderOperations(const OrderInput& given,
                                                                    PlacesInFlight* left) {
  if (given.stages < 1) {
    return absl::InvalidArgumentError(absl::StrCat(given.stages, " stages"));
  }
  if (given.in_flight < 0) {
    return absl::InvalidArgumentError(absl::StrCat(given.in_flight, " microbatches in flight"));
  }
  if (absl::Status status = CheckMicrobatches(given); !status.ok()) return status;
  const OrderInput input = WithSavesInFlight(given);
  absl::StatusOr<std::map<JobStep, int>> last = LastMicrobatches(input);
  if (!last.ok()) return last.status();
  absl::StatusOr<Pipeline> pipeline = Placer(input, *last).Run(left != nullptr);
  if (!pipeline.ok()) return pipeline.status();
  const int64_t turns = pipeline->count() + (left == nullptr ? pipeline->ahead : 0);
  std::vector<std::vector<Operation>> stages;
  stages.reserve(static_cast<size_t>(input.stages));
  for (int stage = 0; stage < input.stages; ++stage) {
    stages.push_back(WriteStage(input, *pipeline, turns, stage));
  }
  if (left != nullptr) {
    const int64_t kept = std::min(pipeline->ahead, pipeline->count());
    left->assign(pipeline->places.end() - kept, pipeline->places.end());
  }
  return stages;
}

std::vector<std::vector<Operation>> ListsThatLeft(int stages, int in_flight,
                                                  const PlacesInFlight& places) {
  OrderInput input;
  input.stages = stages;
  input.in_flight = in_flight;
  Pipeline pipeline;
  pipeline.places = places;
  pipeline.ahead = ForwardsAhead(stages, in_flight, 0);
  std::vector<std::vector<Operation>> lists;
  lists.reserve(static_cast<size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) {
    lists.push_back(WriteStage(input, pipeline, pipeline.count(), stage));
  }
  return lists;
}

}  // namespace lorad::planner
