#include "tests/sim/worker/lies.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace lorad::sim {
namespace {

using namespace worker::v1;  // NOLINT: a list of what its messages must not be

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kFar = int64_t{1} << 60;
constexpr char kNobody[] = "job-nobody";

// The part of a message that is of that type; null where it is another message.
Hello* Part(WorkerMessage& m, Hello*) { return m.has_hello() ? m.mutable_hello() : nullptr; }
Heartbeat* Part(WorkerMessage& m, Heartbeat*) {
  return m.has_heartbeat() ? m.mutable_heartbeat() : nullptr;
}
CutAnswer* Part(WorkerMessage& m, CutAnswer*) {
  return m.has_cut_answer() ? m.mutable_cut_answer() : nullptr;
}
Report* Part(WorkerMessage& m, Report*) { return m.has_report() ? m.mutable_report() : nullptr; }
GroupFormed* Part(WorkerMessage& m, GroupFormed*) {
  return m.report().has_group_formed() ? m.mutable_report()->mutable_group_formed() : nullptr;
}
SlotLoaded* Part(WorkerMessage& m, SlotLoaded*) {
  return m.report().has_slot_loaded() ? m.mutable_report()->mutable_slot_loaded() : nullptr;
}
SlotFreed* Part(WorkerMessage& m, SlotFreed*) {
  return m.report().has_slot_freed() ? m.mutable_report()->mutable_slot_freed() : nullptr;
}
StepDone* Part(WorkerMessage& m, StepDone*) {
  return m.report().has_step_done() ? m.mutable_report()->mutable_step_done() : nullptr;
}
EvaluateDone* Part(WorkerMessage& m, EvaluateDone*) {
  return m.report().has_evaluate_done() ? m.mutable_report()->mutable_evaluate_done() : nullptr;
}
MicrobatchDone* Part(WorkerMessage& m, MicrobatchDone*) {
  return m.report().has_microbatch_done() ? m.mutable_report()->mutable_microbatch_done() : nullptr;
}
Generated* Part(WorkerMessage& m, Generated*) {
  return m.report().has_generated() ? m.mutable_report()->mutable_generated() : nullptr;
}
WindowDone* Part(WorkerMessage& m, WindowDone*) {
  return m.report().has_window_done() ? m.mutable_report()->mutable_window_done() : nullptr;
}

struct Lie {
  const char* name;
  std::function<bool(WorkerMessage&)> falsify;  // false: it is not of such a message
};

// A message of that part, with something in it changed.
template <class Of>
Lie With(const char* name, void (*change)(Of&)) {
  return {name, [change](WorkerMessage& message) {
            Of* part = Part(message, static_cast<Of*>(nullptr));
            if (part) change(*part);
            return part != nullptr;
          }};
}

// Another message, in place of one of that part.
template <class Of>
Lie Instead(const char* name, void (*say)(const Of&, WorkerMessage&)) {
  return {name, [say](WorkerMessage& message) {
            WorkerMessage truth = message;
            const Of* part = Part(truth, static_cast<Of*>(nullptr));
            if (part) say(*part, message);
            return part != nullptr;
          }};
}

const std::vector<Lie>& Lies() {
  static const auto* const lies = new std::vector<Lie>{
      With<Hello>("a hello without a name", [](Hello& m) { m.clear_worker(); }),
      With<Hello>("a hello of another protocol", [](Hello& m) { m.set_protocol_version(7); }),
      With<Hello>("a hello with less than no memory", [](Hello& m) { m.set_memory_bytes(-1); }),
      With<Hello>("a hello without memory", [](Hello& m) { m.clear_memory_bytes(); }),
      With<Hello>("a hello of no device", [](Hello& m) { m.clear_device(); }),
      With<Hello>("a hello with too many threads", [](Hello& m) { m.set_threads(1 << 30); }),

      With<Heartbeat>("a heartbeat of less than nothing",
                      [](Heartbeat& m) { m.set_resident_bytes(-5); }),
      With<Heartbeat>("a heartbeat of all the memory there is",
                      [](Heartbeat& m) { m.set_peak_resident_bytes(kFar); }),
      Instead<Heartbeat>("a message without content",
                         [](const Heartbeat&, WorkerMessage& m) { m.Clear(); }),
      Instead<Heartbeat>("a second hello",
                         [](const Heartbeat&, WorkerMessage& m) {
                           m.mutable_hello()->set_worker("worker-0");
                           m.mutable_hello()->set_protocol_version(1);
                         }),
      Instead<MicrobatchDone>("the answer to no cut",
                              [](const MicrobatchDone&, WorkerMessage& m) {
                                const int64_t epoch = m.report().epoch();
                                m.mutable_cut_answer()->set_epoch(epoch);
                                m.mutable_cut_answer()->set_cut(kFar);
                              }),

      With<CutAnswer>("a cut behind all microbatches",
                      [](CutAnswer& m) { m.set_first_not_enqueued(kFar); }),
      With<CutAnswer>("a cut before all microbatches",
                      [](CutAnswer& m) { m.set_first_not_enqueued(-1); }),
      With<CutAnswer>("the answer to another cut", [](CutAnswer& m) { m.set_cut(m.cut() + 1); }),

      With<Report>("a report that skips some", [](Report& m) { m.set_number(m.number() + 5); }),
      With<Report>("a report of the end of time", [](Report& m) { m.set_number(kFar); }),
      With<Report>("a report without content", [](Report& m) { m.clear_content(); }),

      With<GroupFormed>("a group of less than no bytes",
                        [](GroupFormed& m) { m.set_reserved_bytes(-1); }),
      With<GroupFormed>("a group formed before it was begun",
                        [](GroupFormed& m) { m.set_load_seconds(-1); }),
      Instead<GroupFormed>(
          "a group that failed for no reason",
          [](const GroupFormed&, WorkerMessage& m) { m.mutable_report()->mutable_group_failed(); }),
      Instead<SlotLoaded>(
          "a group formed twice",
          [](const SlotLoaded&, WorkerMessage& m) { m.mutable_report()->mutable_group_formed(); }),

      With<SlotLoaded>("a slot of nobody", [](SlotLoaded& m) { m.set_job(kNobody); }),
      With<SlotLoaded>("a slot at another step", [](SlotLoaded& m) { m.set_step(m.step() + 7); }),
      With<SlotLoaded>("a slot of less than no bytes", [](SlotLoaded& m) { m.set_bytes(-1); }),
      Instead<SlotLoaded>("a slot that failed for no reason",
                          [](const SlotLoaded& truth, WorkerMessage& m) {
                            m.mutable_report()->mutable_slot_failed()->set_job(truth.job());
                          }),
      With<SlotFreed>("nobody's slot is free", [](SlotFreed& m) { m.set_job(kNobody); }),
      Instead<SlotLoaded>("a slot is free that is wanted",
                          [](const SlotLoaded& truth, WorkerMessage& m) {
                            m.mutable_report()->mutable_slot_freed()->set_job(truth.job());
                          }),

      With<StepDone>("a step of nobody", [](StepDone& m) { m.set_job(kNobody); }),
      With<StepDone>("a step too far", [](StepDone& m) { m.set_step(m.step() + 1); }),
      With<StepDone>("a step again", [](StepDone& m) { m.set_step(m.step() - 1); }),
      With<StepDone>("a loss that is no number", [](StepDone& m) { m.set_loss(kNan); }),
      With<StepDone>("a loss without bounds", [](StepDone& m) { m.set_loss(kInfinity); }),
      With<StepDone>("a loss below nothing", [](StepDone& m) { m.set_loss(-5); }),
      With<StepDone>("a norm below nothing", [](StepDone& m) { m.set_grad_norm(-1); }),
      With<StepDone>("a step of other tokens", [](StepDone& m) { m.set_tokens(m.tokens() + 1); }),
      With<StepDone>("a step of no tokens", [](StepDone& m) { m.clear_trained_tokens(); }),
      With<StepDone>("another learning rate",
                     [](StepDone& m) { m.set_learning_rate(m.learning_rate() * 2 + 1); }),
      With<StepDone>("a step that takes for ever",
                     [](StepDone& m) { m.set_step_time_ms(kInfinity); }),
      Instead<StepDone>("what is not finite is nothing that is computed",
                        [](const StepDone& truth, WorkerMessage& m) {
                          NotFinite& said = *m.mutable_report()->mutable_not_finite();
                          said.set_job(truth.job());
                          said.set_step(truth.step());
                          said.set_what("mood");
                        }),
      Instead<StepDone>("a window that is done before its steps",
                        [](const StepDone&, WorkerMessage& m) {
                          m.mutable_report()->mutable_window_done()->set_window(1);
                        }),

      With<EvaluateDone>("sequences without sums", [](EvaluateDone& m) { m.clear_loss_sum(); }),
      With<EvaluateDone>("an evaluation of nothing", [](EvaluateDone& m) { m.clear_sequence(); }),
      With<EvaluateDone>("a sum that is no number",
                         [](EvaluateDone& m) { m.set_loss_sum(0, kNan); }),
      With<EvaluateDone>("a sum below nothing", [](EvaluateDone& m) { m.set_loss_sum(0, -1e9); }),
      With<EvaluateDone>("a sequence that is not there",
                         [](EvaluateDone& m) { m.set_sequence(0, kFar); }),
      With<EvaluateDone>("more tokens than a sequence has",
                         [](EvaluateDone& m) { m.set_trained_tokens(0, kFar); }),
      With<EvaluateDone>("an evaluation of another step",
                         [](EvaluateDone& m) { m.set_step(m.step() + 1); }),

      With<MicrobatchDone>("a time that is no number",
                           [](MicrobatchDone& m) { m.set_forward_ms(kNan); }),
      With<MicrobatchDone>("a time below nothing",
                           [](MicrobatchDone& m) { m.set_backward_ms(-1); }),
      With<MicrobatchDone>("a microbatch that nobody asked for",
                           [](MicrobatchDone& m) { m.set_microbatch(m.microbatch() + 1000); }),
      With<MicrobatchDone>("a microbatch of less than no tokens",
                           [](MicrobatchDone& m) { m.set_tokens(-1); }),
      With<MicrobatchDone>("a microbatch of more adapters than there are",
                           [](MicrobatchDone& m) { m.set_adapters(1 << 30); }),

      With<Generated>("a token of nobody's answer",
                      [](Generated& m) { m.set_generation(kNobody); }),
      With<Generated>("a token too far", [](Generated& m) { m.set_number(m.number() + 1); }),
      With<Generated>("a token that no vocabulary has", [](Generated& m) { m.set_token(1 << 30); }),
      With<Generated>("a token below nothing", [](Generated& m) { m.set_token(-7); }),
      With<Generated>("more likely than certain", [](Generated& m) { m.set_log_probability(1); }),
      With<Generated>("a likelihood that is no number",
                      [](Generated& m) { m.set_log_probability(kNan); }),

      With<WindowDone>("a window out of turn", [](WindowDone& m) { m.set_window(m.window() + 1); }),
      With<WindowDone>("a window busy before it began", [](WindowDone& m) { m.set_busy_ms(-1); }),
      With<WindowDone>("a window that drops less than nothing",
                       [](WindowDone& m) { m.set_dropped_operations(-1); }),
  };
  return *lies;
}

using Header = UploadShardRequest::Header;

struct ShardLie {
  const char* name;
  void (*falsify)(Header&);
};

constexpr ShardLie kShardLies[] = {
    {"a shard of nobody", [](Header& m) { m.set_job(kNobody); }},
    {"a shard of a step that nobody saves", [](Header& m) { m.set_step(m.step() + 1); }},
    {"a shard of the past", [](Header& m) { m.set_epoch(m.epoch() - 1); }},
    {"a shard of the future", [](Header& m) { m.set_epoch(m.epoch() + 1); }},
    {"a shard of another stage", [](Header& m) { m.set_stage(1); }},
    {"one shard of many", [](Header& m) { m.set_stages(3); }},
    {"a shard of other numerics", [](Header& m) { m.set_numerics_id("guessed"); }},
};

}  // namespace

int CountLies() { return static_cast<int>(Lies().size()); }

const char* NameOfLie(int lie) { return Lies().at(lie).name; }

std::optional<WorkerMessage> Falsify(int lie, const WorkerMessage& truth) {
  WorkerMessage told = truth;
  if (!Lies().at(lie).falsify(told)) return std::nullopt;
  return told;
}

int CountShardLies() { return static_cast<int>(std::size(kShardLies)); }

const char* NameOfShardLie(int lie) { return kShardLies[lie].name; }

Header FalsifyShard(int lie, const Header& truth) {
  Header told = truth;
  kShardLies[lie].falsify(told);
  return told;
}

}  // namespace lorad::sim
