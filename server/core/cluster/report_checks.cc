#include "server/core/cluster/report_checks.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/core/cluster/group_state.h"
#include "server/core/rules/failures.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "server/validation/names.h"

namespace lorad::server {
namespace {

namespace wire = worker::v1;

constexpr int64_t kMachineBytesMax = int64_t{1} << 50;
constexpr int kThreadsOfWorkerMax = 1 << 16;
constexpr int kReasonBytesMax = 63;
constexpr int kEndpointBytesMax = 1024;
// Beyond all that is computed or measured, and sums of it are still finite.
constexpr double kNumberMax = 1e100;
constexpr double kRoundingMax = 1e-6;               // of a log probability, above 0
constexpr double kLossMin = -1e-3;                  // a mean of -log p, by rounding
constexpr double kTimeMax = 1e10;                   // milliseconds or seconds
constexpr int64_t kMomentMaxUs = int64_t{1} << 53;  // all are doubles

bool Finite(double value) { return std::abs(value) <= kNumberMax; }

bool IsTime(double value) { return value >= 0 && value <= kTimeMax; }

bool IsMoment(int64_t us) { return us >= 0 && us <= kMomentMaxUs; }

bool IsSpan(const wire::MicrobatchDone::Transfer& transfer) {
  return IsMoment(transfer.begin_us()) && IsMoment(transfer.end_us()) &&
         transfer.begin_us() <= transfer.end_us();
}

bool Sane(int64_t bytes) { return bytes >= 0 && bytes <= kMachineBytesMax; }

bool IsReason(const std::string& reason) {
  return !reason.empty() && reason.size() <= kReasonBytesMax &&
         std::ranges::all_of(reason, [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
         });
}

// "NAME of job 'J'" for what is reported of one.
std::string Of(const char* name, const std::string& job) {
  return absl::StrCat(name, " of job '", Quotable(job, kNameBytesMax), "'");
}

// ---- one kind of report after the other ----

std::string Check(const wire::GroupFormed& formed, const GroupState& group,
                  const StageState& stage) {
  if (group.phase != GroupState::Phase::kForming || stage.formed) {
    return "GroupFormed, of a group that was formed";
  }
  const bool several = group.stages.size() > 1;
  const bool reachable =
      !formed.endpoint().empty() && CheckText(formed.endpoint(), kEndpointBytesMax).empty();
  if (several && !reachable) return "GroupFormed of a stage, without an endpoint that can be one";
  if (!Sane(formed.reserved_bytes()) || !Sane(formed.baseline_resident_bytes()) ||
      !IsTime(formed.load_seconds())) {
    return absl::StrCat("GroupFormed with ", formed.reserved_bytes(), " bytes in ",
                        formed.load_seconds(), " s");
  }
  return "";
}

std::string Check(const wire::Connected& connected, const GroupState& group,
                  const StageState& stage) {
  // One stage may have lost another before this one heard of it.
  const bool forms =
      group.phase == GroupState::Phase::kForming || group.phase == GroupState::Phase::kBroken;
  const bool asked =
      forms && group.stages.size() > 1 && std::ranges::all_of(group.stages, &StageState::formed);
  if (!asked || stage.connected) return "Connected, which was not asked for";
  return IsTime(connected.connect_seconds())
             ? ""
             : absl::StrCat("Connected in ", connected.connect_seconds(), " s");
}

// Nothing, where it is one that a worker may have.
std::string CheckReason(const std::string& what, const std::string& reason) {
  if (!IsReason(reason)) return what + " without a reason";
  return IsWorkers(reason) ? "" : absl::StrCat(what, " by ", reason, ", which no worker finds out");
}

std::string Check(const wire::GroupFailed& failed) {
  return CheckReason("GroupFailed", failed.reason());
}

std::string Check(const wire::SlotLoaded& loaded, const StageState& stage) {
  const JobOrders* orders = FindLoad(stage.orders, loaded.job());
  if (!orders) return Of("SlotLoaded", loaded.job()) + ", which was not asked for";
  if (loaded.step() != *orders->load_step || !Sane(loaded.bytes())) {
    return absl::StrCat(Of("SlotLoaded", loaded.job()), " at step ", loaded.step(), " with ",
                        loaded.bytes(), " bytes; step ", *orders->load_step, " was asked for");
  }
  return "";
}

std::string Check(const wire::SlotFailed& failed, const StageState& stage) {
  if (!FindLoad(stage.orders, failed.job())) {
    return Of("SlotFailed", failed.job()) + ", which was not asked for";
  }
  return CheckReason(Of("SlotFailed", failed.job()), failed.reason());
}

std::string Check(const wire::SlotFreed& freed, const GroupState& group, const StageState& stage) {
  const bool ordered =
      (group.members.contains(freed.job()) && stage.orders.freeing.contains(freed.job())) ||
      LoadIsUndone(stage.orders, freed.job());
  return ordered ? "" : Of("SlotFreed", freed.job()) + ", which was not asked for";
}

std::string Check(const wire::StepDone& done, const StageState& stage) {
  const std::string what = absl::StrCat(Of("StepDone", done.job()), " at step ", done.step());
  const StepOrder* order = FindStep(stage.orders, done.job());
  if (!order || order->batch.step() != done.step()) return what + ", which was not asked for";
  const wire::Batch& batch = order->batch;
  if (done.tokens() != batch.tokens() || done.trained_tokens() != batch.trained_tokens()) {
    return absl::StrCat(what, " of ", done.tokens(), " tokens, ", done.trained_tokens(),
                        " of them trained; its batch has ", batch.tokens(), " and ",
                        batch.trained_tokens());
  }
  if (done.learning_rate() != order->learning_rate) {
    return absl::StrCat(what, " with learning rate ", done.learning_rate(), "; asked for was ",
                        order->learning_rate);
  }
  if (!Finite(done.loss()) || done.loss() < kLossMin || !Finite(done.grad_norm()) ||
      done.grad_norm() < 0 || !IsTime(done.step_time_ms())) {
    return absl::StrCat(what, " with loss ", done.loss(), ", gradient norm ", done.grad_norm(),
                        " in ", done.step_time_ms(), " ms");
  }
  return "";
}

std::string Check(const wire::EvaluateDone& done, const GroupState& group,
                  const StageState& stage) {
  const std::string what = absl::StrCat(Of("EvaluateDone", done.job()), " at step ", done.step());
  if (done.sequence().empty() || done.loss_sum_size() != done.sequence_size() ||
      done.trained_tokens_size() != done.sequence_size()) {
    return absl::StrCat(what, " with ", done.sequence_size(), " sequences, ", done.loss_sum_size(),
                        " sums and ", done.trained_tokens_size(), " counts");
  }
  const JobOrders* orders = FindEvaluation(stage.orders, done.job(), done.step());
  std::set<int64_t> told;
  for (int i = 0; i < done.sequence_size(); ++i) {
    const int64_t sequence = done.sequence(i);
    if (!orders || !orders->sequences.contains(sequence) || !told.insert(sequence).second) {
      return absl::StrCat(what, ", sequence ", sequence, ", which was not asked for");
    }
    const double loss_min = kLossMin * static_cast<double>(done.trained_tokens(i));
    if (!Finite(done.loss_sum(i)) || done.trained_tokens(i) < 0 || done.loss_sum(i) < loss_min ||
        done.trained_tokens(i) > group.shape.longest_sequence) {
      return absl::StrCat(what, ", sequence ", sequence, ", with loss ", done.loss_sum(i), " over ",
                          done.trained_tokens(i), " tokens");
    }
  }
  return "";
}

std::string Check(const wire::NotFinite& report, const StageState& stage) {
  const std::string what = absl::StrCat(Of("NotFinite", report.job()), " at step ", report.step());
  const bool evaluates = report.what() == kValidationLoss;
  if (!evaluates && report.what() != "loss" && report.what() != "gradient norm") {
    return what + " of nothing that is computed";
  }
  const JobOrders* evaluation = FindEvaluation(stage.orders, report.job(), report.step());
  const StepOrder* step = FindStep(stage.orders, report.job());
  const bool asked =
      evaluates ? evaluation != nullptr : step != nullptr && step->batch.step() == report.step();
  if (!asked) return what + ", which was not asked for";
  const int64_t first = evaluates ? evaluation->evaluate_first : 0;
  const int64_t end = evaluates ? evaluation->evaluate_end : step->batch.sequences();
  const auto outside = [&](int64_t sequence) { return sequence < first || sequence >= end; };
  if (report.sequences_size() > end - first || std::ranges::any_of(report.sequences(), outside)) {
    return what + " in sequences that its batch does not have";
  }
  return "";
}

std::string Check(const wire::Generated& generated, const GroupState& group,
                  const StageState& stage) {
  const std::string what =
      absl::StrCat("Generated of answer '", Quotable(generated.generation(), kNameBytesMax),
                   "', token ", generated.number());
  if (!IsAsked(stage.orders, {generated.generation(), generated.number()})) {
    return what + ", which was not asked for";
  }
  const bool finite = generated.token() >= 0;
  if (generated.token() < -1 || generated.token() >= group.vocabulary_size ||
      (finite &&
       !(generated.log_probability() <= kRoundingMax && Finite(generated.log_probability())))) {
    return absl::StrCat(what, ": ", generated.token(), " with log probability ",
                        generated.log_probability());
  }
  return "";
}

std::string Check(const wire::MicrobatchDone& done, const GroupState& group,
                  const StageState& stage) {
  const std::string what = absl::StrCat("MicrobatchDone of microbatch ", done.microbatch());
  const auto* jobs = FindMicrobatch(stage.orders, done.microbatch());
  if (!jobs) return what + ", which was not asked for";
  if (done.tokens() < 0 || done.tokens() > group.shape.capacity_tokens ||
      done.squared_lengths() < 0 || done.squared_lengths() > done.tokens() * done.tokens() ||
      done.adapters() < 0 || done.adapters() > static_cast<int64_t>(jobs->size())) {
    return absl::StrCat(what, " with ", done.tokens(), " tokens, squares ", done.squared_lengths(),
                        ", ", done.adapters(), " adapters");
  }
  if (!IsTime(done.forward_ms()) || !IsTime(done.backward_ms())) {
    return absl::StrCat(what, " in ", done.forward_ms(), " and ", done.backward_ms(), " ms");
  }
  if (!IsMoment(done.forward_begin_us()) || !IsMoment(done.backward_begin_us()) ||
      !IsSpan(done.activations()) || !IsSpan(done.gradient())) {
    return what + " at moments that no clock gives";
  }
  return "";
}

std::string Check(const wire::WindowDone& done, const StageState& stage) {
  const std::string what = absl::StrCat("WindowDone of window ", done.window());
  const auto& windows = stage.orders.windows;
  if (windows.empty() || windows.front().number != done.window()) {
    return what + ", out of turn";
  }
  if (!IsTime(done.busy_ms()) || !IsTime(done.idle_ms()) || done.dropped_operations() < 0) {
    return absl::StrCat(what, ", busy for ", done.busy_ms(), " ms, idle for ", done.idle_ms(),
                        " ms, ", done.dropped_operations(), " operations dropped");
  }
  for (const auto& [job, orders] : windows.front().jobs) {
    if (!orders.answered()) return absl::StrCat(what, ", but nothing was said of job '", job, "'");
  }
  if (!windows.front().generates.empty() && !windows.front().generates_may_be_told) {
    return absl::StrCat(what, ", but nothing was said of answer '",
                        windows.front().generates.begin()->first.first, "'");
  }
  return "";
}

}  // namespace

std::string WhatIsWrong(const wire::Report& report, const GroupState& group,
                        const StageState& stage) {
  using Report = wire::Report;
  switch (report.content_case()) {
    case Report::kGroupFormed:
      return Check(report.group_formed(), group, stage);
    case Report::kConnected:
      return Check(report.connected(), group, stage);
    case Report::kGroupFailed:
      return Check(report.group_failed());
    case Report::kSlotLoaded:
      return Check(report.slot_loaded(), stage);
    case Report::kSlotFailed:
      return Check(report.slot_failed(), stage);
    case Report::kSlotFreed:
      return Check(report.slot_freed(), group, stage);
    case Report::kStepDone:
      return Check(report.step_done(), stage);
    case Report::kEvaluateDone:
      return Check(report.evaluate_done(), group, stage);
    case Report::kNotFinite:
      return Check(report.not_finite(), stage);
    case Report::kMicrobatchDone:
      return Check(report.microbatch_done(), group, stage);
    case Report::kWindowDone:
      return Check(report.window_done(), stage);
    case Report::kGenerated:
      return Check(report.generated(), group, stage);
    case Report::kSaved:        // the shard's own call says it, and is what counts
    case Report::kSaveDelayed:  // as much
      return "";
    case Report::CONTENT_NOT_SET:
      break;
  }
  return "a report that says nothing known";
}

// ---- what is not a report ----

std::string WhatIsWrong(const wire::CutAnswer& answer, const GroupState& group) {
  const bool asked = group.phase == GroupState::Phase::kCutting ||
                     group.phase == GroupState::Phase::kBroken;  // in the midst of a cut
  if (!asked || answer.cut() != group.cut) {
    return absl::StrCat("CutAnswer to cut ", answer.cut(), ", which was not asked for");
  }
  if (answer.first_not_enqueued() < 0 || answer.first_not_enqueued() > group.next_microbatch) {
    return absl::StrCat("CutAnswer from microbatch ", answer.first_not_enqueued(),
                        " on; there are ", group.next_microbatch - 1);
  }
  return "";
}

std::string WhatIsWrong(const wire::Heartbeat& heartbeat) {
  if (!IsMoment(heartbeat.clock_us())) return "Heartbeat at a moment that no clock gives";
  if (Sane(heartbeat.resident_bytes()) && Sane(heartbeat.peak_resident_bytes())) return "";
  return absl::StrCat("Heartbeat with ", heartbeat.resident_bytes(), " bytes, at most ",
                      heartbeat.peak_resident_bytes());
}

std::string WhatIsWrong(const wire::Hello& hello) {
  struct Text {
    const char* field;
    const std::string& value;
    int bytes_max;
  };
  if (const std::string wrong = CheckWorkerName(hello.worker()); !wrong.empty()) {
    return absl::StrCat("Hello.worker ", wrong);
  }
  const Text texts[] = {{"version", hello.version(), 128},
                        {"device", hello.device(), 64},
                        {"device_name", hello.device_name(), 512},
                        {"numerics_id", hello.numerics_id(), 512},
                        {"host", hello.host(), 256},
                        {"transport", hello.transport(), 64},
                        {"group", hello.group(), kNameBytesMax}};
  for (const Text& text : texts) {
    if (const std::string wrong = CheckText(text.value, text.bytes_max); !wrong.empty()) {
      return absl::StrCat("Hello.", text.field, " ", wrong);
    }
    if (Quotable(text.value, text.bytes_max) != text.value) {
      return absl::StrCat("Hello.", text.field, " must be UTF-8");
    }
  }
  if (hello.device().empty()) return "Hello without a device";
  if (!Sane(hello.memory_bytes()) || hello.memory_bytes() == 0) {
    return absl::StrCat("Hello.memory_bytes is ", hello.memory_bytes());
  }
  const auto count = [](int32_t value) { return value >= 0 && value <= kThreadsOfWorkerMax; };
  if (!count(hello.threads()) || !count(hello.multiprocessors()) || hello.value_bytes() < 0 ||
      hello.value_bytes() > 8 || hello.pid() < 0) {
    return absl::StrCat("Hello with ", hello.threads(), " threads, ", hello.multiprocessors(),
                        " multiprocessors, ", hello.value_bytes(), " bytes a value, pid ",
                        hello.pid());
  }
  return "";
}

bool IsSameProcess(const wire::Hello& hello, const wire::Hello& before) {
  return hello.pid() == before.pid() && hello.host() == before.host() &&
         hello.device() == before.device() && hello.memory_bytes() == before.memory_bytes() &&
         hello.numerics_id() == before.numerics_id() &&
         hello.value_bytes() == before.value_bytes() && hello.transport() == before.transport() &&
         hello.nccl() == before.nccl();
}

std::string WhyNotAdopted(const wire::Hello& hello, const GroupState& group) {
  if (hello.epoch() != group.epoch || hello.group() != group.name) {
    return hello.epoch() == 0 ? "holds nothing"
                              : absl::StrCat("holds another group, of epoch ", hello.epoch());
  }
  const auto stage = std::ranges::find(group.stages, hello.worker(), &StageState::worker);
  const auto stages = static_cast<int32_t>(group.stages.size());
  if (stage == group.stages.end() || hello.stage() != stage - group.stages.begin() ||
      hello.stages() != stages) {
    return absl::StrCat("holds stage ", hello.stage(), " of ", hello.stages(),
                        ", which is not its own");
  }
  if (hello.last_report() < stage->last_report) {
    return absl::StrCat("numbers its reports from ", hello.last_report(), " on; it has said ",
                        stage->last_report);
  }
  const auto& windows = stage->orders.windows;
  const int64_t sent = group.next_window - 1;
  const int64_t done = windows.empty() ? sent : windows.front().number - 1;
  if (hello.last_window() < done || hello.last_window() > sent) {
    return absl::StrCat("is behind window ", hello.last_window(), "; it has done ", done, " of ",
                        sent);
  }
  return "";
}

std::string WhatIsWrong(const wire::UploadShardRequest::Header& header, const Member& member,
                        int32_t stages, const std::string& numerics_id) {
  if (header.stage() < 0 || header.stage() >= stages || std::max(header.stages(), 1) != stages) {
    return absl::StrCat("stage ", header.stage(), " of ", header.stages(), "; its group has ",
                        stages);
  }
  if (!member.saves.contains(header.step())) {
    return absl::StrCat("no save of step ", header.step(), " was asked for");
  }
  if (header.numerics_id() != numerics_id) return "its numerics are not those of its worker";
  return "";
}

}  // namespace lorad::server
