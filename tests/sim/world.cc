#include "tests/sim/world.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "server/core/job_states.h"
#include "server/startup.h"

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: the world is the server's, simulated

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

World::World(const WorldOptions& options) : options_(options), random_(options.seed) {
  workers_.resize(options.workers);
  Start();
}

World::~World() = default;

void World::RequireOk(const absl::Status& status) {
  INFO(status.ToString());
  REQUIRE(status.ok());
}

// ---- time ----

int64_t World::Delay() {
  return options_.delay_us_max == 0 ? 0 : static_cast<int64_t>(random_() % options_.delay_us_max);
}

bool World::Chance(double share) {
  return share > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < share;
}

void World::At(int64_t at_us, std::function<void()> what) {
  agenda_.emplace(std::max(at_us, now_us_), std::move(what));
}

bool World::Step() {
  if (agenda_.empty()) return false;
  const auto next = agenda_.begin();
  now_us_ = std::max(now_us_, next->first);
  const std::function<void()> what = std::move(next->second);
  agenda_.erase(next);
  what();
  return true;
}

void World::RunUntil(const std::function<bool()>& done, int64_t steps_max) {
  for (int64_t step = 0; !done(); ++step) {
    if (step == steps_max || agenda_.empty()) FAIL("it does not come to an end:\n" << Describe());
    Step();
  }
}

void World::Settle() {
  while (static_cast<int>(agenda_.size()) > timers_) Step();
}

void World::Sleep(int64_t us) {
  const int64_t until = now_us_ + us;
  while (!agenda_.empty() && agenda_.begin()->first <= until) Step();
  now_us_ = until;
}

void World::RunUntilState(const std::string& job, v1::Job::State state) {
  RunUntil([&] {
    const v1::Job::State now = StateOf(job);
    INFO(job << " is " << ToText(now) << ", awaited " << ToText(state) << "; "
             << Job(job).error().message());
    REQUIRE((now == state || IsLive(now)));
    return now == state;
  });
}

// ---- the coordinator ----

void World::Start() {
  life_++;
  inbox_.clear();
  checks_.clear();
  turn_due_ = false;
  std::vector<RevisionLog::Revision> revisions;
  absl::StatusOr<StoredState> stored = ReadStore(store_, &revisions);
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
  crashes_++;
  core_.reset();
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    workers_[i].connection = 0;
    workers_[i].life++;
    workers_[i].worker.reset();
  }
  // Clients see their calls break.
  auto replies = std::exchange(replies_, {});
  Start();
  for (auto& [request, on_reply] : replies) on_reply(absl::UnavailableError("the stream broke"));
  ConnectWorkers();
}

void World::Post(decltype(Event::content) content) {
  inbox_.push_back(std::move(content));
  if (std::exchange(turn_due_, true)) return;
  Later([this, life = life_] {
    if (life == life_) Turn();
  });
}

void World::Turn() {
  turn_due_ = false;
  turns_++;
  std::vector<Effect> effects;
  for (auto& content : std::exchange(inbox_, {})) {
    for (Effect& effect : core_->Apply(Event{Now(), std::move(content)})) {
      effects.push_back(std::move(effect));
    }
  }
  Carry(std::move(effects));
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
    Later([this, life, content = std::move(content)] {
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
                   for (WorkerSlot& slot : workers_) {
                     if (slot.connection != send.connection) continue;
                     slot.down_free_us = std::max(slot.down_free_us, now_us_ + Delay());
                     At(slot.down_free_us, [this, &slot, connection = send.connection,
                                            message = std::move(send.message)] {
                       if (slot.connection != connection) return;
                       slot.worker->Hear(message);
                       const int i = static_cast<int>(&slot - workers_.data());
                       if (slot.worker->shut_down()) {
                         KillWorker(i, /*restart=*/false);
                       } else {
                         WakeWorker(i);
                       }
                     });
                     return;
                   }
                 },
                 [&](Disconnect& disconnect) {
                   closed_[disconnect.connection] = disconnect.reason;
                   for (size_t i = 0; i < workers_.size(); ++i) {
                     if (workers_[i].connection == disconnect.connection) {
                       KillWorker(static_cast<int>(i));
                     }
                   }
                 },
                 [&](Announce& announce) {
                   v1::WatchJobsResponse message;
                   REQUIRE(message.ParseFromString(announce.message));
                   REQUIRE(message.revision() == announce.revision);
                   announced_.push_back(std::move(message));
                 },
                 [&](CheckRows& check) { CheckRowsLater(check); },
                 [&](CancelRows& cancel) { CancelCheck(cancel.key); },
                 [&](Plan& plan) {
                   plans_.push_back(plan.input);
                   std::vector<UnitFailure> failures = DropUnits(plan.input);
                   absl::StatusOr<worker::v1::Window> window = PlanWindow(plan.input);
                   if (!plan_failure_.ok()) window = plan_failure_;
                   const std::string path = plan.hurry ? "cancelled" : "greedy met the bound";
                   const Planned planned{
                       plan.number, std::move(window), {1, 1, {path}}, std::move(failures)};
                   if (plan.hurry || options_.plan_us == 0) return post_later(planned);
                   unhurried_[plan.number] = [post_later, planned] { post_later(planned); };
                   At(now_us_ + options_.plan_us, [this, life, number = plan.number] {
                     if (life == life_) EndPlan(number);
                   });
                 },
                 [&](Hurry& hurry) {
                   hurries_++;
                   EndPlan(hurry.number);
                 },
                 [&](MoveUpload& move) {
                   Later([this, life, move, post_later] {
                     if (life != life_) return;
                     REQUIRE(uploads_.erase(move.upload) == 1);
                     disk_.insert(move.path);
                     post_later(UploadMoved{move.number, absl::OkStatus()});
                   });
                 },
                 [&](WriteCheckpoint& write) {
                   Later([this, life, write, post_later] {
                     if (life != life_) return;
                     REQUIRE(uploads_.erase(write.upload) == 1);
                     if (!save_failure_.ok()) {
                       return post_later(CheckpointWritten{write.number, save_failure_});
                     }
                     disk_.insert(write.path);
                     v1::Checkpoint checkpoint;
                     checkpoint.set_job(write.job);
                     checkpoint.set_step(write.step);
                     post_later(CheckpointWritten{write.number, checkpoint});
                   });
                 },
                 [&](RemovePath& remove) {
                   uploads_.erase(remove.path);
                   std::erase_if(disk_, [&](const std::string& path) {
                     return path == remove.path || path.starts_with(remove.path + "/");
                   });
                 },
                 [&](SetTimer& timer) {
                   timers_++;
                   At(timer.at_us, [this, life, timer] {
                     timers_--;
                     if (life == life_) Post(TimerFired{timer.timer});
                   });
                 },
             },
             effect);
}

}  // namespace lorad::sim
