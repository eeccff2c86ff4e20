// Control streams, their time-outs, and what the cluster looks like.
#include <algorithm>
#include <cassert>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/core/catalog/model_shape.h"
#include "server/core/cluster/report_checks.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

constexpr int kProtocolVersion = 1;
constexpr char kMpi[] = "mpi";  // Hello.transport
constexpr int64_t kWorkerRetryMs = 5000;
// A stage that has lost another knows it before we know which worker is gone.
constexpr int64_t kBrokenUs = 2'000'000;
// Of a parameter in a checkpoint: itself and two moments, float32.
constexpr int64_t kSavedBytes = 12;

// "it" where it is one, else the workers whose stages are `late`, and of what they `do`.
std::string Late(const GroupState& group, const std::function<bool(const StageState&)>& late,
                 const char* does, const char* do_all) {
  if (group.stages.size() == 1) return absl::StrCat("it ", does);
  std::vector<std::string> workers;
  for (const StageState& stage : group.stages) {
    if (late(stage)) workers.push_back(stage.worker);
  }
  return absl::StrCat(absl::StrJoin(workers, ", "), " ", workers.size() == 1 ? does : do_all);
}

// A save that is being written here, or is known not to get through, is waited for, lest what was
// trained since the last one is lost.
bool IsHeldUp(const JobState& job) { return job.commits > 0 || job.unwritten_step > 0; }

// Why a group counts as lost that does all else, but for too long has not brought a checkpoint that
// its job waits for, however often it was told to; empty: it does not.
std::string WhyUnsaved(const CoreOptions& options, const JobTable& jobs,
                       const planner::ModelShape& shape, const GroupState& group, int64_t now_us) {
  for (const auto& [name, member] : group.members) {
    const JobState* job = jobs.FindWhole(name);
    if (member.saves.empty() || !job || IsHeldUp(*job)) continue;
    const bool ends = job->state() == v1::Job::FINALIZING;
    if (!member.departing && !ends && group.phase != GroupState::Phase::kSaving) continue;
    const int64_t since_us = member.departing ? member.departs_us : 0;
    const int64_t bytes = kSavedBytes * planner::AdapterParameters(shape, member.adapter);
    const Asked asked{PatienceToSave(options, bytes),
                      absl::StrCat("it does not save job '", name, "' as it was told to")};
    std::string why = WhyImpatient(asked, now_us - std::max(since_us, member.saves_us));
    if (!why.empty()) return why;
  }
  return "";
}

}  // namespace

void Core::State::OnConnected(const WorkerConnected& connected) {
  const worker::v1::Hello& hello = connected.hello;
  // It ends.
  const auto refuse = [&](const std::string& reason, const std::string& message) {
    turn_.Do(Disconnect{connected.connection,
                        Error(absl::StatusCode::kFailedPrecondition, reason, message)});
  };
  // It tries again.
  const auto put_off = [&](const std::string& reason, const std::string& message) {
    turn_.Do(Disconnect{connected.connection, Unavailable(reason, message, kWorkerRetryMs)});
  };
  if (const std::string wrong = WhatIsWrong(hello); !wrong.empty()) {
    return refuse("HELLO_INVALID", wrong);
  }
  if (hello.protocol_version() != kProtocolVersion) {
    return refuse("PROTOCOL_VERSION",
                  absl::StrCat("worker '", hello.worker(), "' speaks version ",
                               hello.protocol_version(), " of the protocol, this lorad ",
                               kProtocolVersion, ": install the same version of both"));
  }
  if (hello.transport() == kMpi && !options_.mpi) {
    turn_.Warn(absl::StrCat("worker '", hello.worker(),
                            "' is refused: it reaches other stages over ",
                            "MPI, and this lorad has no ompi-server (--transport)"));
    return refuse(
        "NO_MPI_SERVER",
        absl::StrCat("worker '", hello.worker(),
                     "' reaches other stages over MPI, and this lorad has no ompi-server: "
                     "start `lorad serve --transport mpi`, or the worker with --transport "
                     "sockets"));
  }
  if (stopping_) return put_off("SHUTTING_DOWN", "the coordinator is being stopped");
  if (const std::string why = cluster_.WhyTaken(hello); !why.empty()) {
    turn_.Do(Disconnect{connected.connection,
                        Unavailable("WORKER_NAME_TAKEN", why, options_.heartbeat_ms)});
    return;
  }
  WorkerState* known = cluster_.Find(hello.worker());
  if (!known && !cluster_.MakeRoom()) {
    return put_off("TOO_MANY_WORKERS", absl::StrCat("there are ", kWorkersMax, " workers"));
  }
  if (known && known->connection != 0) {
    CloseWorker(*known, "another worker of its name has connected while it was silent");
  }
  GroupState* group = known ? FindReturning(*known, hello) : nullptr;
  if (!group) {
    if (hello.epoch() > 0) {
      turn_.Info(absl::StrCat("worker '", hello.worker(), "' comes with ", hello.group(),
                              ", epoch ", hello.epoch(), ", which is over: it lets go of it"));
    }
    return cluster_.Connect(connected.connection, hello);
  }
  StageState& stage = group->StageOn(hello.worker());
  cluster_.Connect(connected.connection, hello, WelcomeBack(*group, stage));
  OnReturned(*group, stage);
}

void Core::State::OnSaid(const WorkerSaid& said) {
  WorkerState* worker = cluster_.FindConnection(said.connection);
  if (!worker) return;  // it was closed; what it said before does not count
  if (cluster_.IsSilent(*worker)) turn_.WantSchedule();
  worker->heard_us = turn_.now_us();
  GroupState* group = groups_.Find(worker->group);
  StageState* stage = group ? &group->StageOn(worker->hello.worker()) : nullptr;
  if (group && group->silent == worker->hello.worker()) {
    group->silent.clear();
    ForgetPace(*group);
  }
  std::string wrong;
  switch (said.message.content_case()) {
    case worker::v1::WorkerMessage::kReport:
      if (group && said.message.report().epoch() == group->epoch) {
        OnReport(*group, *stage, said.message.report());
      }
      break;
    case worker::v1::WorkerMessage::kCutAnswer:
      if (group && said.message.cut_answer().epoch() == group->epoch) {
        wrong = stage == &group->first() ? WhatIsWrong(said.message.cut_answer(), *group)
                                         : "CutAnswer of a stage that was not asked";
        const bool cuts = group->phase == GroupState::Phase::kCutting;  // else it is broken
        if (wrong.empty() && cuts) OnCutAnswer(*group, said.message.cut_answer());
      }
      break;
    case worker::v1::WorkerMessage::kHeartbeat:
      wrong = WhatIsWrong(said.message.heartbeat());
      if (wrong.empty()) cluster_.OnHeartbeat(*worker, said.message.heartbeat());
      break;
    case worker::v1::WorkerMessage::kLeaving:
      OnLeaving(*worker);
      break;
    default:
      wrong = "what only the first message may be, or nothing known";
  }
  if (!wrong.empty()) CloseLiar(*worker, wrong);
}

void Core::State::OnGone(const WorkerGone& gone) {
  WorkerState* worker = cluster_.FindConnection(gone.connection);
  if (!worker) return;
  // Its stream may have been ended on its behalf: by the kernel of a host that is gone, say.
  const std::string why =
      cluster_.IsSilent(*worker)
          ? absl::StrCat("its control stream ended after it had said nothing for ",
                         (turn_.now_us() - worker->heard_us) / 1'000'000, " s")
      : worker->leaving ? "it was told to end"
                        : gone.reason;
  LoseWorker(*worker, why, Loss::kAnybodys);
}

void Core::State::OnLeaving(WorkerState& worker) {
  if (std::exchange(worker.leaving, true)) return;
  turn_.Info(absl::StrCat("worker '", worker.hello.worker(), "' was told to end"));
  turn_.WantSchedule();
  GroupState* group = groups_.Find(worker.group);
  if (!group) return LetGo(worker, "it was told to end, and has no jobs");
  Drain(*group);
  // Whoever told it has its own patience: of the windows at hand no step more is begun.
  BeginCut(*group, GroupState::Then::kGoOn, "");
}

void Core::State::LetGo(WorkerState& worker, const std::string& why) {
  if (worker.connection == 0) return;
  worker::v1::CoordinatorMessage message;
  message.mutable_shutdown()->set_reason(why);
  turn_.Do(Send{worker.connection, std::move(message)});
  cluster_.End(worker);
}

void Core::State::CloseWorker(WorkerState& worker, const std::string& why, Loss loss) {
  turn_.Do(Disconnect{worker.connection, Error(absl::StatusCode::kAborted, "WORKER_CLOSED", why)});
  LoseWorker(worker, why, loss);
}

void Core::State::CloseLiar(WorkerState& worker, const std::string& what) {
  cluster_.RestAsLiar(worker, what);
  CloseWorker(worker, absl::StrCat("it said what does not fit: ", what), Loss::kWorkersLie);
}

void Core::State::LoseWorker(WorkerState& worker, const std::string& why, Loss loss) {
  GroupState* group = groups_.Find(worker.group);
  const bool in_order = stopping_ || (worker.leaving && !group);
  turn_.Do(Note{in_order ? Note::Level::kInfo : Note::Level::kWarning,
                absl::StrCat("worker '", worker.hello.worker(), "' is gone: ", why)});
  if (worker.leaving && loss == Loss::kAnybodys) loss = Loss::kItsEnd;
  cluster_.Lose(worker);
  if (group) LoseGroup(*group, why, loss);
}

// ---- time ----

void Core::State::RenewLeases(int64_t late_us) {
  turn_.Warn(absl::StrFormat("the coordinator stood still for %.1f s: leases of workers start over",
                             static_cast<double>(late_us) / 1e6));
  cluster_.RenewLeases();
  groups_.RenewPatience();
  // What was done meanwhile is said at once, and then nothing for as long.
  for (const std::string& name : groups_.names()) ForgetPace(*groups_.Find(name));
}

std::optional<Asked> Core::State::AskedOf(const GroupState& group) {
  using Phase = GroupState::Phase;
  const planner::ModelShape& shape = *catalog_.Model(group.base_model).shape;
  if (group.returning()) return std::nullopt;  // it waits for so long (EndReturns)
  if (group.phase == Phase::kForming) {
    const bool formed = std::ranges::all_of(group.stages, &StageState::formed);
    const auto late = [&](const StageState& stage) {
      return formed ? !stage.connected : !stage.formed;
    };
    return Asked{PatienceToForm(options_, planner::BytesOfGroup(shape, group.shape).weights),
                 absl::StrCat(Late(group, late, "does not", "do not"),
                              formed ? " connect with the others of " : " form ", group.name)};
  }
  if (group.windows_at_hand() == 0 && group.phase != Phase::kCutting) {
    const bool saves = std::ranges::any_of(
        group.members, [](const auto& entry) { return !entry.second.saves.empty(); });
    if (saves) return Asked{};  // what gets lost is asked for again
    return std::nullopt;
  }
  // Of several stages any waits for the others, so the oldest window of all says how long.
  const SentWindow* oldest = nullptr;
  for (const StageState& stage : group.stages) {
    if (stage.orders.windows.empty()) continue;
    const SentWindow& front = stage.orders.windows.front();
    if (!oldest || front.number < oldest->number) oldest = &front;
  }
  const WindowWork work = oldest ? WorkOf(*oldest) : WindowWork();
  const planner::TimeModel assumed(planner::PriorOf(WorkOf(shape, group.shape.device)));
  double slowness = 0;
  for (const StageState& stage : group.stages) {
    slowness = std::max(slowness, WorkerOf(stage).slowness);
  }
  const Patience patience =
      PatienceFor(options_, work,
                  cluster_.fits().TimesOf(group.base_model, shape, &WorkerOf(group.first()),
                                          group.shape.capacity_tokens),
                  slowness, assumed);
  if (!oldest) return Asked{patience, absl::StrCat("it does not answer a cut of ", group.name)};
  const auto late = [&](const StageState& stage) {
    return !stage.orders.windows.empty() && stage.orders.windows.front().number == oldest->number;
  };
  return Asked{patience, absl::StrCat(Late(group, late, "reports", "report"), " nothing of window ",
                                      oldest->number, " of ", group.name)};
}

std::string Core::State::WhyStuck(const GroupState& group) {
  std::string why = WhyImpatient(AskedOf(group), turn_.now_us() - group.heard_us);
  if (!why.empty() || !turn_.room().ok()) return why;
  return WhyUnsaved(options_, jobs_, *catalog_.Model(group.base_model).shape, group,
                    turn_.now_us());
}

void Core::State::OnTimer(const TimerFired& fired) {
  if (fired.timer == kRestEnds) turn_.WantSchedule();
  if (fired.timer == kPostponedEnds) TryPostponed();
  if (fired.timer == kTick) Tick();
  if (fired.timer == kGenerationsUnread) generations_.EndUnread();
  if (fired.timer == kDropAgain) DropAgain();
  if (fired.timer == kForecastDue) forecasts_.timer_us = 0;
  if (fired.timer == kReturnEnds) {
    EndReturns(absl::StrCat("not all of its workers came back within ", options_.lease_ms, " ms"));
  }
}

void Core::State::Tick() {
  const int64_t late_us = cluster_.TakeTick();
  if (late_us > cluster_.TickUs()) RenewLeases(late_us);
  bool any = false;
  for (WorkerState* worker : cluster_.Connected()) {
    GroupState* group = groups_.Find(worker->group);
    if (group && group->silent.empty() && cluster_.IsSilent(*worker)) {
      group->silent = worker->hello.worker();
      ForgetPace(*group);
    }
    const std::optional<Asked> asked = group ? AskedOf(*group) : std::nullopt;
    const int64_t quiet_us = group ? turn_.now_us() - group->heard_us : 0;
    if (IsOverdue(options_, asked, quiet_us)) {
      worker->doubtful_until_us = turn_.now_us() + kDoubtLeases * options_.lease_ms * kMillisecond;
    }
    std::string why;
    if (group && group->stages.size() == 1) why = WhyStuck(*group);
    if (turn_.now_us() - worker->heard_us > options_.lease_ms * kMillisecond) {
      why = absl::StrCat("it was silent for ", options_.lease_ms / 1000, " s");
    }
    if (why.empty()) {
      any = true;
    } else {
      CloseWorker(*worker, why);
    }
  }
  LoseStuckGroups();
  std::vector<std::string> idle;
  for (const auto& [name, group] : groups_.all()) {
    if (group.phase == GroupState::Phase::kRunning && group.members.empty() &&
        group.idle_since_us > 0 &&
        turn_.now_us() - group.idle_since_us > options_.group_idle_ms * kMillisecond) {
      idle.push_back(name);
    }
  }
  for (const std::string& name : idle) Dissolve(*groups_.Find(name), "it had no job for a while");
  cluster_.ForgetLost();
  jobs_.ForgiveWorkers();
  cluster_.CompareSpeeds();
  cluster_.fits().Put();
  turn_
      .WantSchedule();  // a job that has waited, or run, for long enough may have a place, or lose it
  if (any) cluster_.SetTick();
}

// Which of several stages holds up the others cannot be told from here: they all let go.
void Core::State::LoseStuckGroups() {
  for (const std::string& name : groups_.names()) {
    GroupState& group = *groups_.Find(name);
    if (group.stages.size() == 1) continue;
    if (group.phase == GroupState::Phase::kBroken) {
      if (turn_.now_us() - group.broken_us > kBrokenUs) EndBroken(group);
    } else if (const std::string why = WhyStuck(group); !why.empty()) {
      turn_.Warn(absl::StrCat(name, " is lost: ", why));
      LoseGroup(group, why, Loss::kAnybodys);
    }
  }
}

// ---- stop ----

void Core::State::On(uint64_t request, const StopRequested&) {
  stops_.push_back(request);
  if (std::exchange(stopping_, true)) return;
  generations_.Fail([](const Guest&) { return true; },
                    Unavailable("SHUTTING_DOWN", "the coordinator is being stopped", 5000));
  EndReturns("it is being stopped");  // no worker is taken on any more
  for (const std::string& name : groups_.names()) {
    BeginCut(*groups_.Find(name), GroupState::Then::kStop, "the coordinator is being stopped");
  }
}

void Core::State::FinishStop() {
  if (stops_.empty() || !groups_.empty() || !commits_.empty()) return;
  for (WorkerState* worker : cluster_.Connected()) {
    LetGo(*worker, "the coordinator is being stopped");
  }
  cluster_.fits().Put();  // what was learned since the last tick
  for (const uint64_t request : std::exchange(stops_, {})) turn_.Answer(request, std::monostate());
}

}  // namespace lorad::server
