// Decisions as text (view.h).
#include <cassert>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/schedule/view.h"

namespace lorad::planner {
namespace {

std::string StagesText(const Decision& decision) {
  return absl::StrJoin(decision.stages, " | ", [](std::string* text, const StageView& stage) {
    absl::StrAppend(text, stage.worker, " ", stage.range.first_block, "-",
                    stage.range.end_block - 1);
  });
}

}  // namespace

// "form w1 base=m 1024/900: a b", "form w1 0-29 | w2 30-59 base=m 1024/900: a",
// "admit g1: a", "wait #1: a (no worker is connected)",
// "evict g1: a for b", "replace g1 -> g2: a for b",
// "replace g1 -> w1 base=m 1024/900: a (the jobs of both groups end ..)"
const char* ToText(Decision::Kind kind) {
  switch (kind) {
    case Decision::Kind::kAdmit:
      return "admit";
    case Decision::Kind::kFormGroup:
      return "form";
    case Decision::Kind::kReform:
      return "reform";
    case Decision::Kind::kDissolve:
      return "dissolve";
    case Decision::Kind::kEvict:
      return "evict";
    case Decision::Kind::kReplace:
      return "replace";
    case Decision::Kind::kWait:
      return "wait";
  }
  assert(false);
  return "";
}

std::string ToText(const Decision& decision) {
  std::string text = ToText(decision.kind);
  if (decision.place > 0) absl::StrAppend(&text, " #", decision.place);
  if (!decision.group.empty()) absl::StrAppend(&text, " ", decision.group);
  if (decision.kind == Decision::Kind::kReplace) absl::StrAppend(&text, " ->");
  if (!decision.to.empty()) absl::StrAppend(&text, " ", decision.to);
  if (!decision.worker.empty()) {
    absl::StrAppend(&text, " ", decision.stages.empty() ? decision.worker : StagesText(decision),
                    " base=", decision.base_model);
  }
  if (decision.shape.capacity_tokens > 0) {
    absl::StrAppend(&text, " ", decision.shape.capacity_tokens, "/",
                    decision.shape.longest_sequence);
    if (decision.shape.recomputation == Recomputation::kBlocks) {
      absl::StrAppend(&text, " recomputing blocks");
    }
  }
  if (!decision.jobs.empty()) absl::StrAppend(&text, ": ", absl::StrJoin(decision.jobs, " "));
  if (!decision.why_job.empty()) absl::StrAppend(&text, " for ", decision.why_job);
  if (!decision.why.empty()) absl::StrAppend(&text, " (", decision.why, ")");
  return text;
}

}  // namespace lorad::planner
