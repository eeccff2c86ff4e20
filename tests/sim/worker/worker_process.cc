#include "tests/sim/worker/worker_process.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "server/core/events/overloaded.h"
#include "storage/files/errors.h"

namespace lorad::sim {
namespace {

constexpr int64_t kRestartUs = 50'000;
// What a Step takes of an adapter, as of so many tokens: measured on a CPU, and not quite what the
// planner takes it for.
constexpr double kTokensOfStep = 48;

worker::v1::Hello HelloOf(const Machine& machine) {
  worker::v1::Hello hello;
  hello.set_protocol_version(worker::kProtocolVersion);
  hello.set_worker(machine.worker);
  hello.set_device(machine.device);
  hello.set_memory_bytes(machine.memory_bytes);
  hello.set_threads(machine.threads);
  hello.set_multiprocessors(machine.multiprocessors);
  hello.set_value_bytes(machine.value_bytes);
  hello.set_numerics_id(machine.numerics_id);
  hello.set_outlives_coordinator(machine.outlives);
  return hello;
}

}  // namespace

WorkerProcess* FindConnection(const std::vector<std::unique_ptr<WorkerProcess>>& workers,
                              uint64_t connection) {
  for (const auto& process : workers) {
    if (connection != 0 && process->connection() == connection) return process.get();
  }
  return nullptr;
}

WorkerProcess::WorkerProcess(const Machine& machine, Clockwork& clock, CoordinatorSide& coordinator,
                             const WorkerScript& script, StageNet* net)
    : clock_(clock),
      coordinator_(coordinator),
      script_(script),
      net_(net),
      hello_(HelloOf(machine)),
      order_us_(machine.order_us),
      pass_ms_(machine.pass_ms),
      token_ms_(machine.token_ms),
      rank_ms_(machine.rank_ms),
      truthful_(machine.truthful) {}

// ---- its life ----

void WorkerProcess::Start() {
  REQUIRE_FALSE(core_);
  life_++;
  terminated_ = false;
  core_ = std::make_unique<worker::WorkerCore>(worker::CoreOptions{.hello = hello_});
  SimEngine::Hooks hooks;
  hooks.report = [this](worker::v1::Report report) {
    ApplyLater(0, worker::EngineReported{std::move(report)});
  };
  hooks.fetch = [this](const std::string& content) { return coordinator_.Fetch(content); };
  const auto take = [this](double ms) {
    if (truthful_) tokens_us_ += static_cast<int64_t>(1000 * ms);
  };
  hooks.stepped = [this, take](int64_t rank) {
    take(2 * kTokensOfStep * rank_ms_ * static_cast<double>(rank));  // as of both passes
  };
  hooks.pass_ms = [this, take](int64_t tokens, int64_t ranks) {
    const double of_tokens_ms =
        token_ms_ * static_cast<double>(tokens) + rank_ms_ * static_cast<double>(ranks);
    take(of_tokens_ms);
    return static_cast<double>(mischief_.slowness) * (pass_ms_ + of_tokens_ms);
  };
  hooks.net = net_;
  hooks.host.worker = hello_.worker();
  hooks.host.run = [this](std::function<void()> what) { WhenAwake(std::move(what)); };
  engine_ = std::make_unique<SimEngine>(std::move(hooks), script_);
  Apply(worker::Started{});
}

void WorkerProcess::Kill(bool restart) {
  if (!core_) return;
  hung_ = false;
  held_order_.reset();
  stopped_until_us_ = 0;
  backlog_.clear();
  EndStream(absl::UnavailableError("killed by signal 9"));
  life_++;
  core_.reset();
  engine_.reset();
  uploads_.clear();
  if (!restart) return;
  clock_.At(clock_.now_us() + kRestartUs, [this, life = life_] {
    if (life_ == life) Start();
  });
}

void WorkerProcess::Terminate() {
  if (!core_) return;
  WhenAwake([this] {
    terminated_ = true;
    Apply(worker::StopRequested{});
  });
}

std::function<void()> WorkerProcess::IfAlive(std::function<void()> what) {
  return [this, life = life_, what = std::move(what)] {
    if (life_ == life) WhenAwake(what);
  };
}

void WorkerProcess::WhenAwake(std::function<void()> what) {
  const bool awake = clock_.now_us() >= stopped_until_us_ && backlog_.empty();
  awake ? what() : backlog_.push_back(std::move(what));
}

void WorkerProcess::Stop(int64_t us) {
  if (!core_) return;
  if (stopped_until_us_ < clock_.now_us()) stopped_since_us_ = clock_.now_us();
  stopped_until_us_ = std::max(stopped_until_us_, clock_.now_us() + us);
  longest_stop_us_ = std::max(longest_stop_us_, stopped_until_us_ - stopped_since_us_);
  clock_.At(stopped_until_us_, [this, life = life_] {
    if (life_ == life) GoOn();
  });
}

void WorkerProcess::GoOn() {
  const int64_t life = life_;
  while (life_ == life && clock_.now_us() >= stopped_until_us_ && !backlog_.empty()) {
    const std::function<void()> next = std::move(backlog_.front());
    backlog_.pop_front();
    next();
  }
}

void WorkerProcess::Apply(decltype(worker::Event::content) content) {
  const int64_t life = life_;
  const double now_ms = static_cast<double>(clock_.now_us()) / 1000;
  for (worker::Effect& effect : core_->Apply({now_ms, std::move(content)})) {
    if (life_ == life) Do(std::move(effect));
  }
}

void WorkerProcess::ApplyLater(int64_t delay_us, decltype(worker::Event::content) content) {
  clock_.At(clock_.now_us() + delay_us,
            IfAlive([this, content = std::move(content)] { Apply(content); }));
}

void WorkerProcess::Do(worker::Effect effect) {
  std::visit(Overloaded{
                 [&](worker::Dial& dial) { Dial(dial); },
                 [&](worker::HangUp&) { EndStream(absl::CancelledError("hung up")); },
                 [&](worker::Say& say) { Say(std::move(say.message)); },
                 [&](worker::Upload& upload) { Upload(upload); },
                 [&](worker::GiveUpReceive&) { engine_->GiveUpReceive(); },
                 [&](worker::CancelCalls&) {
                   engine_->Interrupt();
                   for (const auto& [upload, tried] : uploads_) {
                     clock_.Later(IfAlive([this, upload = upload, number = tried.number] {
                       EndTry(upload, number, absl::CancelledError("given up"));
                     }));
                   }
                 },
                 [&](worker::ReadMemory&) {
                   ApplyLater(0, worker::MemoryRead{1000, script_.peak_resident_bytes});
                 },
                 [&](worker::SetTimer& timer) { SetTimer(timer.at_ms); },
                 [&](worker::Note&) {},
                 // Who was told to go comes with the next start of the coordinator, which may have
                 // been while its process was stopped.
                 [&](worker::End& end) {
                   const bool let_go = !terminated_ && coordinator_.life() == dialled_life_;
                   Kill(/*restart=*/!end.status.ok() || !let_go);
                 },
                 [&](auto& order) { CarryOut(std::move(order)); },
             },
             effect);
}

void WorkerProcess::SetTimer(double at_ms) {
  const auto fire = [this, number = ++timer_] {
    if (timer_ == number) Apply(worker::TimerFired{});
  };
  clock_.AlarmAt(static_cast<int64_t>(at_ms * 1000) + 1, IfAlive(fire));
}

void WorkerProcess::HoldUp(int64_t us) {
  up_free_us_ = std::max(up_free_us_, clock_.now_us()) + us;
}

// ---- the engine ----

void WorkerProcess::CarryOut(worker::Effect order) {
  if (hung_) {
    held_order_ = std::move(order);
    return;
  }
  int64_t staged_bytes = 0;
  if (const auto* execute = std::get_if<worker::Execute>(&order)) {
    const worker::v1::Operation& operation = *execute->operation;
    const bool steps = operation.kind() == worker::v1::Operation::STEP;
    const bool deadly = script_.deadly.contains(operation.job()) ||
                        operation.learning_rate() > script_.survived_rate_max;
    if (steps && deadly) return Kill();
    if (operation.kind() == worker::v1::Operation::SAVE) staged_bytes = SimEngine::kStagedBytes;
  }
  CheckUploads(order);
  engine_->CarryOut(order, [this, staged_bytes](const absl::StatusOr<bool>& done) {
    const worker::EngineDone answer{done, staged_bytes};
    // Behind the reports of this order, which lie on the agenda.
    const int64_t took_us = order_us_ + std::exchange(tokens_us_, 0);
    clock_.At(clock_.now_us(), IfAlive([this, answer, took_us] {
                ApplyLater(mischief_.slowness * took_us, answer);
              }));
  });
}

void WorkerProcess::CheckUploads(const worker::Effect& order) const {
  if (std::holds_alternative<worker::LeaveGroup>(order)) REQUIRE(uploads_.empty());
  const auto* execute = std::get_if<worker::Execute>(&order);
  if (execute == nullptr) return;
  using worker::v1::Operation;
  const Operation& operation = *execute->operation;
  if (operation.kind() != Operation::FREE_SLOT && operation.kind() != Operation::SAVE) return;
  for (const auto& [upload, tried] : uploads_) {
    if (tried.job == operation.job()) FAIL("it is uploaded: " << operation.ShortDebugString());
  }
}

void WorkerProcess::Hang(bool hung) {
  hung_ = hung;
  if (hung || !held_order_) return;
  WhenAwake([this] {
    if (!hung_ && held_order_) CarryOut(*std::exchange(held_order_, std::nullopt));
  });
}

void WorkerProcess::Lie(worker::v1::WorkerMessage message) {
  if (!core_) return;
  if (!message.has_report() || epoch() == 0) return Say(std::move(message));
  Apply(worker::EngineReported{message.report()});
}

// ---- the stream ----

void WorkerProcess::Dial(const worker::Dial& dial) {
  stream_ = dial.stream;
  dialled_life_ = coordinator_.life();
  connection_ = coordinator_.NewConnection();
  up_free_us_ = down_free_us_ = clock_.now_us();
  clock_.Later([this, connection = connection_, hello = dial.hello] {
    if (connection_ != connection) return;
    if (mischief_.distorts()) coordinator_.Mistrust(connection);
    if (!coordinator_.Post(server::WorkerConnected{connection, mischief_.Introduce(hello)})) {
      EndStream(absl::UnavailableError("nobody is there"));
    }
  });
}

void WorkerProcess::EndStream(const absl::Status& why) {
  const uint64_t connection = std::exchange(connection_, 0);
  if (connection == 0) return;
  silent_ = false;
  ApplyLater(clock_.Delay(), worker::StreamBroke{stream_, why});
  clock_.At(std::max(up_free_us_, clock_.now_us()) + clock_.Delay(),
            [this, connection, life = coordinator_.life(), why] {
              if (life != coordinator_.life()) return;
              coordinator_.Post(server::WorkerGone{connection, std::string(why.message())});
            });
}

void WorkerProcess::Say(worker::v1::WorkerMessage message) {
  if (silent_ || connection_ == 0) return;
  if (mischief_.CutsHere()) return EndStream(absl::UnavailableError("the network broke"));
  if (mischief_.distorts()) coordinator_.Mistrust(connection_);
  for (worker::v1::WorkerMessage& told : mischief_.Tell(std::move(message))) {
    Deliver(std::move(told));
  }
}

// What was on its way when the stream broke may still come.
void WorkerProcess::Deliver(worker::v1::WorkerMessage message) {
  up_free_us_ = std::max(up_free_us_, clock_.now_us() + clock_.Delay());
  clock_.At(up_free_us_, [this, connection = connection_, life = coordinator_.life(),
                          message = std::move(message)]() mutable {
    if (life != coordinator_.life()) return;
    if (coordinator_.Post(server::WorkerSaid{connection, std::move(message)})) return;
    if (connection_ == connection) EndStream(absl::UnavailableError("nobody listens"));
  });
}

void WorkerProcess::Send(worker::v1::CoordinatorMessage message) {
  if (mischief_.CutsHere()) return EndStream(absl::UnavailableError("the network broke"));
  down_free_us_ = std::max(down_free_us_, clock_.now_us() + clock_.Delay());
  clock_.At(down_free_us_, [this, connection = connection_, message = std::move(message)] {
    if (connection_ != connection) return;
    WhenAwake([this, stream = stream_, message] {
      Apply(worker::CoordinatorSaid{stream, message});
    });
  });
}

// ---- shards ----

void WorkerProcess::Upload(const worker::Upload& upload) {
  const int64_t tried = ++last_try_;
  uploads_[upload.upload] = {tried, upload.header.job()};
  const auto end = [this, life = life_, number = upload.upload, tried](const absl::Status& status) {
    if (life_ == life) EndTry(number, tried, status);
  };
  if (mischief_.hangs_uploads) return;
  if (mischief_.refused_uploads > 0) {
    mischief_.refused_uploads--;
    return clock_.Later([end] {
      end(storage::WithReason(absl::StatusCode::kFailedPrecondition, "CERTIFICATE_EXPIRED",
                              "the worker's certificate is over"));
    });
  }
  for (const auto& header : mischief_.Upload(upload.header)) {
    std::function<void()> arrive = [this, end, life = life_, header] {
      // The last bytes may be on their way when the worker dies.
      if (life_ != life && clock_.Chance(0.5)) return;
      coordinator_.TakeShard(header, end);
    };
    clock_.Later([this, job = header.job(), arrive = std::move(arrive)] {
      script_.shards_held.contains(job) ? held_shards_.push_back(arrive) : arrive();
    });
  }
  clock_.AlarmAt(clock_.now_us() + upload.timeout_ms * 1000,
                 [end] { end(absl::DeadlineExceededError("too late")); });
}

// Once for each try.
void WorkerProcess::EndTry(int64_t upload, int64_t tried, const absl::Status& status) {
  const auto found = uploads_.find(upload);
  if (found == uploads_.end() || found->second.number != tried) return;
  uploads_.erase(found);
  ApplyLater(0, worker::UploadDone{upload, status, "sha256"});
}

void WorkerProcess::ReleaseShards() {
  for (auto& arrive : std::exchange(held_shards_, {})) clock_.Later(std::move(arrive));
}

}  // namespace lorad::sim
