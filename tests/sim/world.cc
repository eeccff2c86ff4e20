#include "tests/sim/world.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/job_states.h"
#include "server/core/store_kinds.h"
#include "server/data_dir.h"
#include "server/startup.h"
#include "server/store_reads.h"

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: the world is the server's, simulated

constexpr int64_t kOperationUs = 1000;
constexpr int64_t kRestartUs = 50'000;
constexpr double kRepeatLater = 5000;

constexpr char kConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0, "tie_word_embeddings": true, "vocab_size": 256, "torch_dtype": "float32"
})";

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
  turn_due_ = false;
  std::vector<RevisionLog::Revision> revisions;
  absl::StatusOr<StoredState> stored = ReadStore(store_, &revisions);
  RequireOk(stored.status());
  std::vector<Effect> effects;
  auto core = Core::Create(options_.core, *stored, now_us_, &effects);
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
    for (Effect& effect : core_->Apply(Event{now_us_, std::move(content)})) {
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
                 [](Note&) {},
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
                 [&](CheckRows& check) {
                   records::RowsSummary rows;
                   rows.set_rows(check.source.rows);
                   rows.set_tokens(check.source.rows * 20);
                   rows.set_trained_tokens(check.source.rows * kTrainedTokens);
                   const auto longest = longest_.find(check.source.dataset);
                   rows.set_longest_tokens(longest == longest_.end() ? 40 : longest->second);
                   if (auto bad = bad_lines_.find(check.source.dataset); bad != bad_lines_.end()) {
                     rows.set_error_count(1);
                     rows.set_error_line(bad->second);
                     rows.set_error_reason("no trained token");
                   }
                   post_later(RowsChecked{check.key, rows});
                 },
                 [&](Plan& plan) {
                   plans_.push_back(plan.input);
                   absl::StatusOr<worker::v1::Window> window = PlanWindow(plan.input);
                   if (!plan_failure_.ok()) window = plan_failure_;
                   const std::string path = plan.hurry ? "cancelled" : "greedy met the bound";
                   const Planned planned{plan.number, std::move(window), {1, 1, {path}}};
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

// ---- workers ----

void World::ConnectWorkers() {
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) StartWorker(i);
}

void World::StartWorker(int i) {
  WorkerSlot& slot = workers_[i];
  slot.life++;
  slot.silent = false;
  slot.stepping = false;
  slot.connection = next_connection_++;
  slot.up_free_us = slot.down_free_us = now_us_;
  SimWorker::Hooks hooks;
  hooks.say = [this, i](worker::v1::WorkerMessage message) { Say(i, std::move(message)); };
  hooks.upload = [this, i](worker::v1::UploadShardRequest::Header header) {
    Upload(i, std::move(header));
  };
  hooks.fetch = [this](const std::string& text) -> int64_t {
    if (text.empty()) return 0;
    absl::StatusOr<SlotContent> content = ParseSlotContent(text);
    RequireOk(content.status());
    INFO("slot content " << text);
    REQUIRE(disk_.contains(content->path));
    if (content->kind != SlotContent::Kind::kCheckpoint) return 0;
    return std::stoll(content->path.substr(content->path.rfind('/') + 1));
  };
  hooks.is_bad = [this](const std::string& job, int64_t step) {
    const auto bad = bad_steps_.find(job);
    return bad != bad_steps_.end() && bad->second == step;
  };
  slot.worker = std::make_unique<SimWorker>(absl::StrCat("worker-", i), std::move(hooks));
  Post(WorkerConnected{slot.connection, slot.worker->Hello()});
  Heartbeat(i, slot.life);
}

void World::Heartbeat(int i, int64_t life) {
  timers_++;
  At(now_us_ + options_.core.heartbeat_ms * 1000, [this, i, life] {
    timers_--;
    if (workers_[i].life != life || workers_[i].connection == 0) return;
    worker::v1::WorkerMessage message;
    message.mutable_heartbeat()->set_epoch(1);
    Say(i, std::move(message));
    Heartbeat(i, life);
  });
}

void World::KillWorker(int i, bool restart) {
  WorkerSlot& slot = workers_[i];
  if (slot.connection == 0) return;
  const uint64_t connection = std::exchange(slot.connection, 0);
  slot.life++;
  Later([this, connection, life = life_] {
    if (life == life_) Post(WorkerGone{connection, "killed by signal 9"});
  });
  if (!restart) return;
  At(now_us_ + kRestartUs, [this, i, life = slot.life] {
    if (workers_[i].life == life) StartWorker(i);
  });
}

void World::SilenceWorker(int i) { workers_[i].silent = true; }

void World::WakeWorker(int i) {
  WorkerSlot& slot = workers_[i];
  if (std::exchange(slot.stepping, true)) return;
  At(now_us_ + kOperationUs, [this, i, life = slot.life] { WorkerStep(i, life); });
}

void World::WorkerStep(int i, int64_t life) {
  WorkerSlot& slot = workers_[i];
  if (slot.life != life || slot.connection == 0) return;
  slot.stepping = false;
  if (slot.worker->Step()) WakeWorker(i);
}

void World::Say(int i, worker::v1::WorkerMessage message) {
  WorkerSlot& slot = workers_[i];
  if (slot.silent) return;
  const bool repeat = message.has_report() && Chance(options_.repeat_share);
  slot.up_free_us = std::max(slot.up_free_us, now_us_ + Delay());
  const auto deliver = [this, i, connection = slot.connection, message, life = life_] {
    if (life == life_ && workers_[i].connection == connection) {
      Post(WorkerSaid{connection, message});
    }
  };
  At(slot.up_free_us, deliver);
  if (repeat) At(slot.up_free_us + static_cast<int64_t>(kRepeatLater), deliver);
}

void World::Upload(int i, worker::v1::UploadShardRequest::Header header) {
  // The call outlives its worker now and then: the last bytes were on their way.
  Later([this, i, header, worker_life = workers_[i].life, life = life_] {
    if (life != life_) return;
    if (workers_[i].life != worker_life && Chance(0.5)) return;
    const std::string upload = absl::StrCat("upload-", next_upload_++);
    uploads_.insert(upload);
    Ask(ShardUploaded{header, upload}, [](absl::StatusOr<ReplyValue>) {});
  });
}

// ---- planning, in small ----

int64_t World::RowLength(const std::string& dataset, int64_t row) const {
  const auto longest = longest_.find(dataset);
  return 1 + row * 7 % (longest == longest_.end() ? 40 : longest->second);
}

absl::StatusOr<worker::v1::Window> World::PlanWindow(const PlanInput& input) {
  using worker::v1::Operation;
  worker::v1::Window window;
  window.set_epoch(input.epoch);
  window.set_number(input.window);
  int64_t next = input.first_microbatch;
  const auto add = [&](Operation::Kind kind, const std::string& job, int64_t step) -> Operation& {
    Operation& operation = *window.add_operations();
    operation.set_kind(kind);
    operation.set_job(job);
    operation.set_step(step);
    return operation;
  };
  for (const std::string& job : input.frees) add(Operation::FREE_SLOT, job, 0);
  for (const LoadUnit& load : input.loads) {
    Operation& operation = add(Operation::LOAD_SLOT, load.slot.job(), load.step);
    *operation.mutable_slot() = load.slot;
    operation.set_content(load.content);
  }
  for (const SaveUnit& save : input.saves) add(Operation::SAVE, save.job, save.step);

  worker::v1::Microbatch* open = nullptr;
  int64_t room = 0;
  const auto put = [&](const std::string& job, worker::v1::Segment::Mode mode, int64_t step,
                       int64_t sequence, int64_t tokens) {
    REQUIRE(tokens <= input.capacity_tokens);
    if (!open || tokens > room) {
      open = window.add_microbatches();
      open->set_number(next++);
      room = std::min<int64_t>(input.capacity_tokens, 400);
    }
    room -= tokens;
    worker::v1::Segment& segment = *open->add_segments();
    segment.set_job(job);
    segment.set_mode(mode);
    segment.set_step(step);
    segment.set_sequence(sequence);
  };
  for (const TrainUnit& unit : input.trains) {
    const int64_t of_epoch = (unit.source.rows + unit.batch_size - 1) / unit.batch_size;
    const int64_t begin = (unit.step - 1) % of_epoch * unit.batch_size;
    const int64_t end = std::min<int64_t>(begin + unit.batch_size, unit.source.rows);
    worker::v1::Batch& batch = *window.add_batches();
    batch.set_job(unit.job);
    batch.set_step(unit.step);
    batch.set_sequences(end - begin);
    batch.set_trained_tokens((end - begin) * kTrainedTokens);
    batch.set_tokens((end - begin) * 20);
    for (int64_t row = begin; row < end; ++row) {
      put(unit.job, worker::v1::Segment::TRAIN, unit.step, row - begin,
          RowLength(unit.source.dataset, row));
    }
  }
  for (const auto& microbatch : window.microbatches()) {
    add(Operation::FORWARD, "", 0).set_microbatch(microbatch.number());
    add(Operation::BACKWARD, "", 0).set_microbatch(microbatch.number());
  }
  for (const TrainUnit& unit : input.trains) {
    add(Operation::STEP, unit.job, unit.step).set_learning_rate(unit.learning_rate);
    if (unit.save) add(Operation::SAVE, unit.job, unit.step);
  }
  open = nullptr;
  const int trained = window.microbatches_size();
  for (const EvaluateUnit& unit : input.evaluates) {
    for (int64_t i = 0; i < unit.sequences; ++i) {
      const int64_t row = unit.first_sequence + i;
      REQUIRE(row < unit.source.rows);
      put(unit.job, worker::v1::Segment::EVALUATE, unit.step, row,
          RowLength(unit.source.dataset, row));
    }
  }
  for (int i = trained; i < window.microbatches_size(); ++i) {
    add(Operation::EVALUATE, "", 0).set_microbatch(window.microbatches(i).number());
  }
  return window;
}

// ---- clients ----

void World::Ask(Request request, OnReply on_reply) {
  const uint64_t number = next_request_++;
  if (auto* create = std::get_if<CreateJob>(&request)) create->random = random_();
  replies_[number] = std::move(on_reply);
  Post(Requested{number, std::move(request)});
}

absl::StatusOr<ReplyValue> World::Call(Request request) {
  std::optional<absl::StatusOr<ReplyValue>> value;
  Ask(std::move(request), [&](absl::StatusOr<ReplyValue> reply) { value = std::move(reply); });
  RunUntil([&] { return value.has_value(); });
  return *std::move(value);
}

// Straight from the core, so that looking takes no time.
ReplyValue World::Look(Request request) {
  std::optional<ReplyValue> value;
  std::vector<Effect> others;
  for (Effect& effect : core_->Apply(Event{now_us_, Requested{0, std::move(request)}})) {
    if (auto* reply = std::get_if<Reply>(&effect); reply && reply->request == 0) {
      RequireOk(reply->status);
      value = std::move(reply->value);
    } else {
      others.push_back(std::move(effect));  // of the time that has passed
    }
  }
  Carry(std::move(others));
  REQUIRE(value);
  return *std::move(value);
}

v1::Job World::Job(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  return std::get<v1::Job>(Look(request));
}

std::string World::Describe() {
  std::string text;
  const JobSnapshot all = std::get<JobSnapshot>(Look(SnapshotJobs{}));
  for (const v1::Job& job : all.jobs) {
    absl::StrAppend(&text, job.ShortDebugString(), "\n");
    const std::vector<v1::Event> events = Events(job.name());
    for (size_t i = events.size() - std::min<size_t>(events.size(), 4); i < events.size(); ++i) {
      absl::StrAppend(&text, "    ", events[i].reason(), " ", events[i].message(), "\n");
    }
  }
  text += std::get<v1::ClusterStatus>(Look(v1::GetClusterRequest())).DebugString();
  text += std::get<v1::ListWorkersResponse>(Look(v1::ListWorkersRequest())).DebugString();
  return text;
}

std::vector<v1::Event> World::Events(const std::string& name) {
  v1::ListEventsRequest request;
  request.set_job(name);
  request.set_page_size(1000);
  auto response = ReadEvents(store_, request);
  RequireOk(response.status());
  return {response->events().begin(), response->events().end()};
}

std::vector<v1::StepMetrics> World::Metrics(const std::string& name) {
  v1::GetMetricsRequest request;
  request.set_job(name);
  auto response = ReadMetrics(store_, request);
  RequireOk(response.status());
  return {response->steps().begin(), response->steps().end()};
}

std::vector<v1::EvaluationMetrics> World::Evaluations(const std::string& name) {
  v1::GetMetricsRequest request;
  request.set_job(name);
  request.set_series(v1::GetMetricsRequest::EVALUATION);
  request.set_after_step(-1);
  auto response = ReadMetrics(store_, request);
  RequireOk(response.status());
  return {response->evaluations().begin(), response->evaluations().end()};
}

void World::AddModel(const std::string& name) {
  RegisterModel request;
  request.model.set_name(name);
  request.model.set_path("/models/" + name);
  request.model.set_fingerprint("fp-" + name);
  request.config_json = kConfig;
  RequireOk(Call(request).status());
}

void World::AddDataset(const std::string& name, int64_t rows) {
  CreateDataset request;
  request.dataset.set_name(name);
  request.dataset.set_rows(rows);
  request.dataset.set_sha256("sha-" + name);
  request.upload = absl::StrCat("upload-", next_upload_++);
  uploads_.insert(request.upload);
  RequireOk(Call(request).status());
}

v1::Job World::NewJob() {
  v1::Job job;
  job.set_base_model("m");
  job.set_training_dataset("train");
  v1::AdapterConfig& adapter = *job.mutable_adapter();
  adapter.set_rank(8);
  adapter.set_alpha(16);
  adapter.add_target_modules("q_proj");
  v1::TrainingConfig& training = *job.mutable_training();
  training.set_epochs(2);
  training.set_batch_size(4);
  training.set_max_length(1024);
  training.set_learning_rate(1e-3);
  training.set_schedule(v1::TrainingConfig::CONSTANT);
  training.set_checkpoint_every_steps(2);
  return job;
}

std::string World::Submit(const v1::Job& job, const std::string& request_id) {
  CreateJob request;
  request.job = job;
  request.request_id = {request_id, job.SerializeAsString()};
  return Get<v1::Job>(request).name();
}

// ---- what must hold ----

void World::CheckInvariants() {
  // Recovery loses nothing that the store holds: what it names is there (Start checks it), now as
  // after a crash.
  for (const std::string& path : core_->PathsInUse()) {
    INFO("a record names " << path);
    REQUIRE(disk_.contains(path));
  }
  int64_t revision = 0;
  for (const v1::WatchJobsResponse& message : announced_) {
    REQUIRE(message.revision() > revision);
    revision = message.revision();
  }
  const JobSnapshot all = Get<JobSnapshot>(SnapshotJobs{});
  for (const v1::Job& job : all.jobs) {
    const std::string& name = job.name();
    INFO("job " << name << " " << ToText(job.state()) << " " << job.error().message());
    v1::Job::State state = v1::Job::VALIDATING;
    for (const v1::Event& event : Events(name)) {
      REQUIRE(event.reason() != "NUMERICS_MISMATCH");
      if (event.reason() != "STATE_CHANGED") continue;
      REQUIRE(event.from_state() == state);
      REQUIRE(IsLegal(event.from_state(), event.to_state()));
      state = event.to_state();
    }
    REQUIRE(state == job.state());
    const std::vector<v1::StepMetrics> rows = Metrics(name);
    for (size_t i = 0; i < rows.size(); ++i) {
      REQUIRE(rows[i].step() == static_cast<int64_t>(i) + 1);
      REQUIRE(rows[i].loss() == LossOf(name, rows[i].step()));
    }
    if (job.state() != v1::Job::SUCCEEDED) continue;
    REQUIRE(static_cast<int64_t>(rows.size()) == job.total_steps());
    REQUIRE(job.step() == job.total_steps());
    REQUIRE(job.last_checkpoint_step() == job.total_steps());
    REQUIRE(disk_.contains(absl::StrCat("checkpoints/", name, "/", job.total_steps())));
    int64_t tokens = 0;
    for (const v1::StepMetrics& row : rows) tokens += row.tokens();
    REQUIRE(job.tokens() == tokens);
    if (job.validation_dataset().empty()) continue;
    const std::vector<v1::EvaluationMetrics> evaluations = Evaluations(name);
    REQUIRE(evaluations.front().step() == 0);
    REQUIRE(evaluations.back().step() == job.total_steps());
    REQUIRE(job.validation_loss() == evaluations.back().validation_loss());
    REQUIRE(job.initial_validation_loss() == evaluations.front().validation_loss());
    v1::GetDatasetRequest request;
    request.set_name(job.validation_dataset());
    const int64_t sequences = Get<v1::Dataset>(request).rows();
    for (const v1::EvaluationMetrics& evaluation : evaluations) {
      double sum = 0;
      for (int64_t i = 0; i < sequences; ++i) {
        sum += kTrainedTokens * EvaluationLossOf(name, evaluation.step(), i);
      }
      REQUIRE(evaluation.trained_tokens() == sequences * kTrainedTokens);
      REQUIRE(evaluation.validation_loss() == sum / (sequences * kTrainedTokens));
    }
  }
}

}  // namespace lorad::sim
