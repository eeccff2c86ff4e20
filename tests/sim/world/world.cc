#include "tests/sim/world/world.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/events/overloaded.h"
#include "server/core/rules/job_states.h"
#include "server/store/startup.h"

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: the world is the server's, simulated

}  // namespace

World::World(const WorldOptions& options)
    : options_(options), clock_(options.seed, options.delay_us_max) {
  for (int i = 0; i < options.workers; ++i) {
    Machine machine{absl::StrCat("worker-", i)};
    if (options.gpu_memory_bytes > 0) {
      machine = {machine.worker, "cuda:0", options.gpu_memory_bytes, 2, 132, 2};
    }
    machine.outlives = options.workers_outlive;
    machine.token_ms = options.token_ms;
    machine.rank_ms = options.rank_ms;
    machine.truthful = options.truthful;
    workers_.push_back(std::make_unique<WorkerProcess>(machine, clock_, *this, script_));
  }
  Start();
}

World::~World() = default;

void World::RequireOk(const absl::Status& status) {
  if (!status.ok()) FAIL(status.ToString());
}

// ---- time ----

void World::RunUntil(const std::function<bool()>& done, int64_t steps_max) {
  int64_t step = 0;
  while (!done()) {
    // What a story waits for comes in turns.
    for (const int64_t before = turns_; turns_ == before; ++step) {
      if (step == steps_max || !clock_.RunNext()) {
        FAIL("it does not come to an end:\n" << Describe());
      }
    }
  }
}

void World::Settle() {
  while (!clock_.quiet()) clock_.RunNext();
}

void World::RunUntilState(const std::string& job, v1::Job::State state) {
  RunUntil([&] {
    const v1::Job now = Job(job);
    if (now.state() != state && !IsLive(now.state())) {
      FAIL(job << " is " << ToText(now.state()) << ", awaited " << ToText(state) << "; "
               << now.error().message());
    }
    return now.state() == state;
  });
}

// ---- the coordinator ----

void World::Start() {
  life_++;
  inbox_.clear();
  checks_.clear();
  turn_due_ = false;
  absl::StatusOr<StoredState> stored = ReadStore(store_);
  RequireOk(stored.status());
  std::vector<Effect> effects;
  auto core = Core::Create(options_.core, *std::move(stored), Now(), &effects);
  RequireOk(core.status());
  core_ = *std::move(core);
  // What no record names is removed, as the driver does.
  const std::vector<std::string> paths = core_->PathsInUse();
  const std::set<std::string> in_use(paths.begin(), paths.end());
  for (const std::string& path : in_use) {
    INFO("a record names " << path);
    REQUIRE(disk_.contains(path));
  }
  disk_ = in_use;
  uploads_.clear();
  Carry(std::move(effects));
}

void World::CrashCoordinator() {
  core_.reset();
  for (const auto& worker : workers_) {
    if (options_.workers_outlive) {
      worker->EndStream(absl::UnavailableError("the coordinator was killed"));
    } else {
      worker->Kill(/*restart=*/false);
    }
  }
  // Clients see their calls break.
  auto replies = std::exchange(replies_, {});
  Start();
  for (auto& [request, on_reply] : replies) on_reply(absl::UnavailableError("the stream broke"));
  if (!options_.workers_outlive) StartWorkers();
}

bool World::Post(decltype(Event::content) content) {
  inbox_.push_back(std::move(content));
  if (std::exchange(turn_due_, true)) return true;
  clock_.Later([this, life = life_] {
    if (life == life_) Turn();
  });
  return true;
}

void World::Turn() {
  turn_due_ = false;
  turns_++;
  std::vector<Effect> effects;
  for (auto& content : std::exchange(inbox_, {})) {
    for (Effect& effect : core_->Apply(Event{Now(), std::move(content)})) {
      effects.push_back(std::move(effect));
    }
    CheckTables();
  }
  Carry(std::move(effects));
}

// After every event; where there are many jobs, after some.
void World::CheckTables() {
  if (turns_ % (1 + core_->SizesNow().whole_jobs / 64) != 0) return;
  RequireOk(core_->CheckInvariants());
}

void World::Carry(std::vector<Effect> effects) {
  std::vector<storage::Mutation> mutations;
  for (Effect& effect : effects) {
    if (auto* persist = std::get_if<Persist>(&effect)) {
      mutations.insert(mutations.end(), persist->mutations.begin(), persist->mutations.end());
    }
  }
  RequireOk(store_.Apply(mutations));
  const int64_t life = life_;
  for (Effect& effect : effects) {
    if (life != life_) return;  // a reply made the client kill it
    Do(std::move(effect));
  }
}

void World::EndPlan(uint64_t number) {
  if (auto end = unhurried_.extract(number)) end.mapped()();
}

void World::Do(Effect effect) {
  const int64_t life = life_;
  const auto post_later = [this, life](auto content) {
    clock_.Later([this, life, content = std::move(content)] {
      if (life == life_) Post(content);
    });
  };
  std::visit(Overloaded{
                 [](Persist&) {},
                 [&](Note& note) { notes_.push_back(std::move(note.message)); },
                 [&](Reply& reply) {
                   auto node = replies_.extract(reply.request);
                   if (node.empty()) return;
                   if (reply.status.ok()) {
                     node.mapped()(std::move(reply.value));
                   } else {
                     node.mapped()(reply.status);
                   }
                 },
                 [&](Send& send) {
                   WorkerProcess* const to = FindConnection(workers_, send.connection);
                   if (to) to->Send(std::move(send.message));
                 },
                 [&](Disconnect& disconnect) {
                   closed_[disconnect.connection] = disconnect.reason;
                   WorkerProcess* const to = FindConnection(workers_, disconnect.connection);
                   if (to) to->EndStream(disconnect.reason);
                 },
                 [&](Announce& announce) {
                   v1::WatchJobsResponse message;
                   REQUIRE(message.ParseFromString(announce.message));
                   REQUIRE(message.revision() == announce.revision);
                   announced_.push_back(std::move(message));
                 },
                 [&](CheckRows& check) { CheckRowsLater(check); },
                 [&](CancelRows& cancel) { CancelCheck(cancel.key); },
                 [](CloseRows&) {},  // its solver keeps nothing at hand
                 [&](Plan& plan) {
                   plans_.push_back(plan.input);
                   std::vector<UnitFailure> failures = DropUnits(plan.input);
                   absl::StatusOr<StageWindows> window = PlanWindow(plan.input);
                   if (!plan_failure_.ok()) window = plan_failure_;
                   const std::string path = plan.hurry ? "cancelled" : "greedy met the bound";
                   const Planned planned{plan.number,
                                         std::move(window),
                                         {1, 1, {path}},
                                         std::move(failures),
                                         LinesOf(plan.input)};
                   if (plan.hurry || options_.plan_us == 0) return post_later(planned);
                   unhurried_[plan.number] = [post_later, planned] { post_later(planned); };
                   clock_.At(now_us() + options_.plan_us, [this, life, number = plan.number] {
                     if (life == life_) EndPlan(number);
                   });
                 },
                 [&](Hurry& hurry) {
                   hurries_++;
                   EndPlan(hurry.number);
                 },
                 [&](MoveUpload& move) {
                   clock_.Later([this, life, move, post_later] {
                     if (life != life_) return;
                     REQUIRE(uploads_.erase(move.upload) == 1);
                     disk_.insert(move.path);
                     post_later(UploadMoved{move.number, absl::OkStatus()});
                   });
                 },
                 [&](WriteCheckpoint& write) {
                   clock_.Later([this, life, write, post_later] {
                     if (life != life_) return;
                     for (const std::string& upload : write.uploads) {
                       REQUIRE(uploads_.erase(upload) == 1);
                     }
                     if (!save_failure_.ok()) {
                       return post_later(CheckpointWritten{write.number, save_failure_});
                     }
                     disk_.insert(write.path);
                     v1::Checkpoint checkpoint;
                     checkpoint.set_job(write.job);
                     checkpoint.set_step(write.step);
                     checkpoint.add_files()->set_size_bytes(kCheckpointBytes);
                     post_later(CheckpointWritten{write.number, checkpoint});
                   });
                 },
                 [&](ReadContent& read) {
                   post_later(ContentRead{read.number, content_failures_[read.content]});
                 },
                 [&](RemovePath& remove) {
                   uploads_.erase(remove.path);
                   std::erase_if(disk_, [&](const std::string& path) {
                     return path == remove.path || path.starts_with(remove.path + "/");
                   });
                 },
                 [&](SetTimer& timer) {
                   clock_.AlarmAt(timer.at_us, [this, life, timer] {
                     if (life == life_) Post(TimerFired{timer.timer});
                   });
                 },
             },
             effect);
}

}  // namespace lorad::sim
