// The clients of the world of stories, its workers, and what must always hold in it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/events/data_dir.h"
#include "server/core/rules/job_states.h"
#include "server/store/store_reads.h"
#include "tests/sim/world/world.h"

namespace lorad::sim {

namespace {

using namespace server;  // NOLINT: the world is the server's, simulated

constexpr char kConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0, "tie_word_embeddings": true, "vocab_size": 256, "torch_dtype": "float32"
})";

}  // namespace

// ---- clients ----

uint64_t World::Ask(Request request, OnReply on_reply) {
  const uint64_t number = next_request_++;
  if (auto* create = std::get_if<CreateJob>(&request)) create->random = clock_.random()();
  replies_[number] = std::move(on_reply);
  Post(Requested{number, std::move(request)});
  return number;
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
  for (Effect& effect : core_->Apply(Event{Now(), Requested{0, std::move(request)}})) {
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
  request.set_page_size(10'000);
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

RegisterModel World::NewModel(const std::string& name, int stages) {
  RegisterModel request;
  request.model.set_name(name);
  request.model.set_path("/models/" + name);
  request.model.set_fingerprint("fp-" + name);
  request.model.set_stages(stages);
  request.config_json = kConfig;
  return request;
}

void World::AddModel(const std::string& name, int stages) {
  RequireOk(Call(NewModel(name, stages)).status());
}

void World::AddDataset(const std::string& name, int64_t rows) {
  CreateDataset request;
  request.dataset.set_name(name);
  request.dataset.set_rows(rows);
  request.dataset.set_sha256("sha-" + name);
  request.upload = NewUpload();
  RequireOk(Call(request).status());
}

std::string World::NewUpload() {
  const std::string upload = absl::StrCat("upload-", next_upload_++);
  uploads_.insert(upload);
  return upload;
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

// ---- workers ----

void World::StartWorkers() {
  for (const auto& worker : workers_) worker->Start();
}

uint64_t World::Connect(const worker::v1::Hello& hello) {
  const uint64_t connection = next_connection_++;
  Post(WorkerConnected{connection, hello});
  return connection;
}

void World::Say(uint64_t connection, const worker::v1::WorkerMessage& message) {
  Post(WorkerSaid{connection, message});
}

void World::UploadShard(worker::v1::UploadShardRequest::Header header, OnReply on_reply) {
  Ask(ShardUploaded{std::move(header), NewUpload()}, std::move(on_reply));
}

void World::TakeShard(const worker::v1::UploadShardRequest::Header& header, OnTaken on_taken) {
  if (!shard_refusal_.ok()) return on_taken(shard_refusal_);
  UploadShard(header, [on_taken = std::move(on_taken)](const absl::StatusOr<ReplyValue>& reply) {
    on_taken(reply.status());
  });
}

absl::StatusOr<int64_t> World::Fetch(const std::string& text) {
  absl::StatusOr<SlotContent> content = ParseSlotContent(text);
  RequireOk(content.status());
  INFO("slot content " << text);
  REQUIRE(disk_.contains(content->path));
  if (content->kind != SlotContent::Kind::kCheckpoint) return 0;
  return std::stoll(content->path.substr(content->path.rfind('/') + 1));
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
      REQUIRE(rows[i].loss() == TrainLoss(name, rows[i].step()));
    }
    if (job.state() != v1::Job::SUCCEEDED) continue;
    const bool finished = job.finish_step() > 0;
    const int64_t end = finished ? job.finish_step() : job.total_steps();
    REQUIRE(end <= job.total_steps());
    // One that was to finish may have lost its worker, and ends at a checkpoint before its last step.
    REQUIRE((finished ? std::ssize(rows) >= end : std::ssize(rows) == end));
    REQUIRE(job.step() == end);
    REQUIRE(job.last_checkpoint_step() == end);
    REQUIRE(disk_.contains(absl::StrCat("checkpoints/", name, "/", end)));
    int64_t tokens = 0;
    for (int64_t step = 0; step < end; ++step) tokens += rows[step].tokens();
    REQUIRE(job.tokens() == tokens);
    if (job.validation_dataset().empty() || finished) continue;
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
        sum += kTrainedTokens * ValidationLoss(name, evaluation.step(), i);
      }
      REQUIRE(evaluation.trained_tokens() == sequences * kTrainedTokens);
      REQUIRE(evaluation.validation_loss() == sum / (sequences * kTrainedTokens));
    }
  }
}

}  // namespace lorad::sim
