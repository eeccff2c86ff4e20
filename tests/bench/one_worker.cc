#include "tests/bench/one_worker.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "server/core/events/overloaded.h"

namespace lorad::bench {
namespace {

using namespace server;  // NOLINT: the core is the server's

constexpr int64_t kEventUs = 1000;
constexpr int64_t kBatchTokens = 4096;
constexpr int64_t kTrainedTokens = 2000;
constexpr int64_t kMicrobatchTokens = 1024;  // one of its batch is told of
constexpr char kConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_hidden_layers": 30,
  "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
  "rope_theta": 100000.0, "tie_word_embeddings": true, "vocab_size": 49152,
  "torch_dtype": "bfloat16"
})";

}  // namespace

v1::Job TypicalJob() {
  v1::Job job;
  job.set_display_name("gsm8k, rank 16");
  job.set_base_model("smollm2-135m");
  job.set_training_dataset("gsm8k-train");
  job.set_validation_dataset("gsm8k-test");
  v1::AdapterConfig& adapter = *job.mutable_adapter();
  adapter.set_rank(16);
  adapter.set_alpha(32);
  adapter.set_dropout(0.1);
  for (const char* module :
       {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) {
    adapter.add_target_modules(module);
  }
  adapter.set_use_rslora(false);
  adapter.set_seed(1);
  v1::TrainingConfig& training = *job.mutable_training();
  training.set_epochs(1);
  training.set_batch_size(8);
  training.set_max_length(512);
  training.set_overflow(v1::TrainingConfig::TRUNCATE);
  training.set_learning_rate(2e-4);
  training.set_schedule(v1::TrainingConfig::CONSTANT);
  training.set_beta1(0.9);
  training.set_beta2(0.999);
  training.set_eps(1e-8);
  training.set_max_grad_norm(1);
  training.set_shuffle(true);
  training.set_seed(0);
  training.set_checkpoint_every_steps(0);
  return job;
}

StoredState HouseOf(const v1::Job& job) {
  StoredState house;
  records::ModelRecord model;
  model.mutable_model()->set_name(job.base_model());
  model.mutable_model()->set_path("/models/" + job.base_model());
  model.mutable_model()->set_fingerprint("0123456789abcdef");
  model.set_config_json(kConfig);
  house.models.emplace_back(job.base_model(), model.SerializeAsString());
  for (const std::string& name : {job.training_dataset(), job.validation_dataset()}) {
    records::DatasetRecord dataset;
    dataset.mutable_dataset()->set_name(name);
    dataset.mutable_dataset()->set_rows(1000);
    dataset.mutable_dataset()->set_sha256("sha256 of " + name);
    dataset.set_path("datasets/" + name + "-1-1.jsonl");
    house.datasets.emplace_back(name, dataset.SerializeAsString());
  }
  return house;
}

OneWorker::OneWorker(int64_t steps, Persist persist, const CoreOptions& options)
    : persist_(std::move(persist)), revisions_(options.watch_memory_max) {
  v1::Job job = TypicalJob();
  job.clear_validation_dataset();
  job.mutable_training()->set_max_steps(static_cast<int32_t>(steps));
  std::vector<Effect> effects;
  auto core = Core::Create(options, HouseOf(TypicalJob()), {now_us_, now_us_}, &effects);
  assert(core.ok());
  core_ = *std::move(core);
  CreateJob create;
  create.job = std::move(job);
  Apply(Requested{1, std::move(create)});
  job_ = std::get<v1::Job>(replies_.back()).name();
  Connect();
  RunUntil(0);
}

void OneWorker::Connect() {
  worker::v1::Hello hello;
  hello.set_protocol_version(1);
  hello.set_worker("worker-0");
  hello.set_device("cpu");
  hello.set_memory_bytes(int64_t{32} << 30);
  hello.set_threads(2);
  hello.set_numerics_id("0123456789abcdef");
  Apply(WorkerConnected{++connection_, std::move(hello)});
}

void OneWorker::ComeAndGo() {
  ++guests_;
  CreateJob create;
  create.job = TypicalJob();
  create.job.clear_validation_dataset();
  // Rows cut elsewhere are rows to be checked: the job goes before they are.
  create.job.mutable_training()->set_max_length(static_cast<int32_t>(512 + guests_ % 100'000));
  create.request_id = {absl::StrCat("guest-", guests_), "a job"};
  create.random = guests_;
  Apply(Requested{3, std::move(create)});
  const std::string name = std::get<v1::Job>(replies_.back()).name();
  v1::CancelJobRequest cancel;
  cancel.set_name(name);
  Apply(Requested{4, std::move(cancel)});
  v1::DeleteJobRequest remove;
  remove.set_name(name);
  Apply(Requested{5, std::move(remove)});
}

void OneWorker::LoseWorker(double loss_offset) {
  loss_offset_ = loss_offset;
  events_.clear();
  plans_.clear();
  reports_ = step_ = 0;
  Apply(WorkerGone{connection_, "killed by signal 9"});
  Connect();
  RunUntil(0);
}

v1::Job OneWorker::Job() {
  v1::GetJobRequest get;
  get.set_name(job_);
  Apply(Requested{2, std::move(get)});
  return std::get<v1::Job>(replies_.back());
}

void OneWorker::RunUntil(int64_t step) {
  while (step_ < step || (step == 0 && Job().state() != v1::Job::RUNNING)) Next();
}

void OneWorker::Next() {
  assert(!events_.empty());
  auto event = std::move(events_.front());
  events_.pop_front();
  if (const auto* said = std::get_if<WorkerSaid>(&event); said && said->message.has_report()) {
    step_ = std::max(step_, said->message.report().step_done().step());
  }
  Apply(std::move(event));
}

void OneWorker::Apply(decltype(Event::content) content) {
  now_us_ += kEventUs;
  ++applied_;
  replies_.clear();
  for (const Effect& effect : core_->Apply({{now_us_, now_us_}, std::move(content)})) Do(effect);
}

void OneWorker::Do(const Effect& effect) {
  std::visit(Overloaded{
                 [&](const server::Persist& persist) { persist_(persist.mutations); },
                 [&](const Reply& reply) {
                   assert(reply.status.ok());
                   replies_.push_back(reply.value);
                 },
                 [&](const Announce& announce) {
                   revisions_.Append(
                       {announce.revision, announce.job, announce.message, announce.progress});
                 },
                 [&](const CheckRows& check) {
                   records::RowsSummary rows;
                   rows.set_rows(check.source.rows);
                   rows.set_tokens(check.source.rows * 512);
                   rows.set_trained_tokens(check.source.rows * 300);
                   rows.set_longest_tokens(512);
                   rows.set_squared_lengths(static_cast<double>(check.source.rows) * 512 * 512);
                   events_.push_back(RowsChecked{check.key, rows});
                 },
                 [&](const server::Plan& plan) { Plan(plan); },
                 [&](const Send& send) {
                   if (send.message.has_form_group()) {
                     epoch_ = send.message.form_group().epoch();
                     worker::v1::Report formed;
                     formed.mutable_group_formed()->set_reserved_bytes(1 << 30);
                     Report(std::move(formed));
                   } else if (send.message.has_window()) {
                     Execute(send.message.window());
                   }
                 },
                 [](const auto&) {},
             },
             effect);
}

void OneWorker::Plan(const server::Plan& plan) {
  worker::v1::Window window;
  window.set_epoch(plan.input.epoch);
  window.set_number(plan.input.window);
  for (const LoadUnit& load : plan.input.loads) {
    worker::v1::Operation& operation = *window.add_operations();
    operation.set_kind(worker::v1::Operation::LOAD_SLOT);
    operation.set_job(load.slot.job());
    operation.set_step(load.step);
  }
  for (const TrainUnit& unit : plan.input.trains) {
    worker::v1::Batch& batch = *window.add_batches();
    batch.set_job(unit.job);
    batch.set_step(unit.step);
    batch.set_sequences(unit.batch_size);
    batch.set_trained_tokens(kTrainedTokens);
    batch.set_tokens(kBatchTokens);
    worker::v1::Operation& operation = *window.add_operations();
    operation.set_kind(worker::v1::Operation::STEP);
    operation.set_job(unit.job);
    operation.set_step(unit.step);
    operation.set_learning_rate(unit.learning_rate);
  }
  if (!plan.input.trains.empty()) {
    worker::v1::Microbatch& microbatch = *window.add_microbatches();
    microbatch.set_number(plan.input.first_microbatch);
    for (const TrainUnit& unit : plan.input.trains) microbatch.add_segments()->set_job(unit.job);
  }
  plans_[plan.input.window] = plan.input;
  const int64_t next = plan.input.first_microbatch + window.microbatches_size();
  StageWindows windows{{std::move(window)}, {}, next};
  events_.push_back(Planned{plan.number, std::move(windows), {1, 1, {"greedy met the bound"}}});
}

void OneWorker::Execute(const worker::v1::Window& window) {
  const PlanInput plan = std::move(plans_.extract(window.number()).mapped());
  for (const LoadUnit& load : plan.loads) {
    worker::v1::Report loaded;
    loaded.mutable_slot_loaded()->set_job(load.slot.job());
    loaded.mutable_slot_loaded()->set_step(load.step);
    Report(std::move(loaded));
  }
  for (const TrainUnit& unit : plan.trains) {
    worker::v1::Report microbatch;
    microbatch.mutable_microbatch_done()->set_microbatch(plan.first_microbatch);
    microbatch.mutable_microbatch_done()->set_tokens(kMicrobatchTokens);
    microbatch.mutable_microbatch_done()->set_adapters(1);
    microbatch.mutable_microbatch_done()->set_squared_lengths(kMicrobatchTokens * 512);
    microbatch.mutable_microbatch_done()->set_forward_ms(20);
    microbatch.mutable_microbatch_done()->set_backward_ms(40);
    Report(std::move(microbatch));
    worker::v1::Report report;
    worker::v1::StepDone& done = *report.mutable_step_done();
    done.set_job(unit.job);
    done.set_step(unit.step);
    done.set_loss(loss_offset_ + 1.5 + 1.0 / static_cast<double>(unit.step + 1));
    done.set_grad_norm(0.7 + 1.0 / static_cast<double>(unit.step + 3));
    done.set_learning_rate(unit.learning_rate);
    done.set_trained_tokens(kTrainedTokens);
    done.set_tokens(kBatchTokens);
    done.set_step_time_ms(60.25);
    Report(std::move(report));
  }
  worker::v1::Report done;
  done.mutable_window_done()->set_window(window.number());
  Report(std::move(done));
}

void OneWorker::Report(worker::v1::Report report) {
  report.set_epoch(epoch_);
  report.set_number(++reports_);
  worker::v1::WorkerMessage message;
  *message.mutable_report() = std::move(report);
  events_.push_back(WorkerSaid{connection_, std::move(message)});
}

}  // namespace lorad::bench
