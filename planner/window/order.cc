#include "planner/window/order.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"

namespace lorad::planner {
namespace {

using JobStep = std::pair<std::string, int64_t>;

std::string Of(const JobStep& batch) { return absl::StrCat(batch.first, "/", batch.second); }

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

// Whether `segment` may follow what the job has begun last, and that it has begun it.
bool Follows(const Segment& segment, int index, const std::map<JobStep, int>& last,
             std::map<std::string, int64_t>* newest) {
  const auto [it, first] = newest->emplace(segment.job, segment.step);
  const int64_t before = it->second;
  it->second = segment.step;
  if (first || segment.step == before) return true;
  const auto ended = last.find({segment.job, before});
  return segment.step == before + 1 && (ended == last.end() || ended->second < index);
}

// A Step in the turn of place p + A comes before the forwards of places > p + A on every stage, and
// before no earlier one on stage 0. Each microbatch at its earliest such place: no fewer Noops will
// do.
absl::StatusOr<Pipeline> PlaceMicrobatches(const OrderInput& input,
                                           const std::map<JobStep, int>& last, bool leaves) {
  Pipeline pipeline;
  pipeline.places = input.before;
  pipeline.first_new = pipeline.count();
  pipeline.ahead = ForwardsAhead(input.stages, input.in_flight, 0);
  std::map<JobStep, int64_t> ended_at = EndsBefore(input);
  PlaceFrees(input, ended_at, &pipeline);
  std::map<std::string, int64_t> newest;  // step begun last
  for (const auto& [batch, place] : ended_at) newest[batch.first] = batch.second;
  std::set<std::string> loaded;
  for (const auto& [job, step] : input.loads) loaded.insert(job);
  std::vector<std::vector<const BatchEnd*>> ends(input.microbatches.size());
  for (const BatchEnd& end : input.ends) {
    ends[static_cast<size_t>(last.at({end.job, end.step}))].push_back(&end);
  }
  int64_t next_number = 0;
  if (!input.before.empty()) next_number = input.before.back().number + 1;
  if (!input.microbatches.empty()) next_number = input.microbatches.back().number + 1;
  const auto fill_up_to = [&](int64_t place) {
    while (pipeline.count() < place)
      pipeline.places.push_back({.number = next_number++, .ends = {}});
  };
  for (size_t i = 0; i < input.microbatches.size(); ++i) {
    const Microbatch& microbatch = input.microbatches[i];
    const bool train = IsTrain(microbatch);
    int64_t place = pipeline.count();
    for (const Segment& segment : microbatch.segments) {
      const auto before = ended_at.find(
          {segment.job, segment.mode == SegmentMode::kTrain ? segment.step - 1 : segment.step});
      if (before != ended_at.end()) place = std::max(place, before->second + pipeline.ahead + 1);
      if (loaded.contains(segment.job)) place = std::max(place, pipeline.loads + 1);
      if (segment.mode != SegmentMode::kTrain) continue;
      const auto begun = newest.find(segment.job);
      const int64_t step_before = begun == newest.end() ? 0 : begun->second;
      if (!Follows(segment, static_cast<int>(i), last, &newest)) {
        return absl::InvalidArgumentError(
            absl::StrCat("microbatch ", microbatch.number, " holds batch ",
                         Of({segment.job, segment.step}), " after one of ", step_before));
      }
    }
    fill_up_to(place);
    Place& placed = pipeline.places.emplace_back();
    placed.number = microbatch.number;
    placed.kind = train ? OperationKind::kForward : OperationKind::kEvaluate;
    for (const BatchEnd* end : ends[i]) {
      ended_at[{end->job, end->step}] = place;
      placed.ends.push_back(*end);
    }
  }
  if (leaves) fill_up_to(pipeline.loads + 1);
  return pipeline;
}

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
  absl::StatusOr<Pipeline> pipeline = PlaceMicrobatches(input, *last, left != nullptr);
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

}  // namespace lorad::planner
