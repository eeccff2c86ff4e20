#include "planner/window/types.h"

#include <cassert>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lorad::planner {
namespace {

const char* Name(SegmentMode mode) {
  switch (mode) {
    case SegmentMode::kTrain:
      return "train";
    case SegmentMode::kEvaluate:
      return "evaluate";
    case SegmentMode::kReference:
      return "reference";
    case SegmentMode::kGenerate:
      return "generate";
  }
  assert(false);
  return "";
}

}  // namespace

int64_t Tokens(const Microbatch& microbatch) {
  int64_t tokens = 0;
  for (const Segment& segment : microbatch.segments) tokens += segment.tokens;
  return tokens;
}

int64_t Adapters(const Microbatch& microbatch) {
  std::set<std::string> jobs;
  for (const Segment& segment : microbatch.segments) {
    if (segment.mode != SegmentMode::kReference) jobs.insert(segment.job);
  }
  return static_cast<int64_t>(jobs.size());
}

std::string ToText(const Operation& operation) {
  const std::string of_job = absl::StrCat(" ", operation.job, "/", operation.step);
  const char* what = operation.gradient ? "B" : "F";
  switch (operation.kind) {
    case OperationKind::kRecv:
      return absl::StrCat("RECV ", what, operation.microbatch, "<", operation.peer);
    case OperationKind::kSend:
      return absl::StrCat("SEND ", what, operation.microbatch, ">", operation.peer);
    case OperationKind::kForward:
      return absl::StrCat("F", operation.microbatch);
    case OperationKind::kBackward:
      return absl::StrCat("B", operation.microbatch);
    case OperationKind::kEvaluate:
      return absl::StrCat("E", operation.microbatch);
    case OperationKind::kNormUp:
      return "NORM_UP" + of_job;
    case OperationKind::kClipDown:
      return "CLIP_DOWN" + of_job;
    case OperationKind::kStep:
      return absl::StrCat("STEP", of_job, " lr=", operation.learning_rate);
    case OperationKind::kSave:
      return "SAVE" + of_job;
    case OperationKind::kLoadSlot:
      return "LOAD" + of_job;
    case OperationKind::kFreeSlot:
      return absl::StrCat("FREE ", operation.job);
    case OperationKind::kNoop:
      return absl::StrCat("NOOP ", operation.microbatch);
    case OperationKind::kGenerate:
      return absl::StrCat("G", operation.microbatch);
  }
  assert(false);
  return "";
}

std::string ToText(const std::vector<Operation>& operations) {
  return absl::StrJoin(operations, "; ", [](std::string* out, const Operation& operation) {
    out->append(ToText(operation));
  });
}

std::string ToText(const Microbatch& microbatch) {
  std::string text = absl::StrCat(microbatch.number, ":");
  const SegmentMode* mode = nullptr;
  for (const Segment& segment : microbatch.segments) {
    if (mode == nullptr || *mode != segment.mode) {
      absl::StrAppend(&text, mode == nullptr ? " " : ", ", Name(segment.mode));
    }
    mode = &segment.mode;
    absl::StrAppend(&text, " ", segment.job, "/", segment.step, "#", segment.sequence, "[",
                    segment.tokens, "]");
    if (segment.first_position != 0) absl::StrAppend(&text, "@", segment.first_position);
  }
  return text;
}

std::string ToText(const Batch& batch) {
  return absl::StrCat(batch.job, "/", batch.step, ": ", batch.sequences, " sequences, ",
                      batch.trained_tokens, " of ", batch.tokens, " tokens trained");
}

std::string ToText(const Window& window) {
  std::string text;
  for (const Batch& batch : window.batches) absl::StrAppend(&text, "batch ", ToText(batch), "\n");
  for (const Microbatch& microbatch : window.microbatches) {
    absl::StrAppend(&text, "microbatch ", ToText(microbatch), "\n");
  }
  for (size_t stage = 0; stage < window.stages.size(); ++stage) {
    absl::StrAppend(&text, "stage ", stage, ": ", ToText(window.stages[stage]), "\n");
  }
  return text;
}

}  // namespace lorad::planner
