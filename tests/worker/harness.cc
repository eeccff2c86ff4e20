#include "tests/worker/harness.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>

#include "kernels/cpu/cpu_backend.h"
#include "tests/worker/late_backend.h"
#include "tests/worker/stages.h"
#include "worker/engine/engine.h"
#include "worker/host/process.h"
#include "worker/transport/device_listener.h"
#include "worker/transport/in_process.h"

namespace lorad::worker {
namespace {

void Require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Of a stage of this process. Its transport lies ready.
class InProcessListener : public StageListener {
 public:
  explicit InProcessListener(std::vector<std::unique_ptr<Transport>>* transports)
      : transports_(*transports) {}
  const std::string& endpoint() const override { return endpoint_; }
  absl::StatusOr<std::unique_ptr<Transport>> Join(const StageIdentity& me,
                                                  const std::vector<std::string>&) override {
    return std::move(transports_.at(static_cast<size_t>(me.stage)));
  }
  void Interrupt() override {}

 private:
  std::vector<std::unique_ptr<Transport>>& transports_;
  const std::string endpoint_ = "here";
};

}  // namespace

// ---- windows ----

v1::Operation Op(v1::Operation::Kind kind, int64_t microbatch) {
  v1::Operation operation;
  operation.set_kind(kind);
  operation.set_microbatch(microbatch);
  return operation;
}

v1::Operation Op(v1::Operation::Kind kind, const std::string& job, int64_t step) {
  v1::Operation operation;
  operation.set_kind(kind);
  operation.set_job(job);
  operation.set_step(step);
  return operation;
}

v1::Segment SegmentOf(const TestJob& job, const TestRow& row, int64_t sequence, int64_t step,
                      v1::Segment::Mode mode) {
  v1::Segment segment;
  segment.set_job(job.name());
  segment.set_mode(mode);
  segment.set_step(step);
  segment.set_sequence(sequence);
  segment.mutable_input_ids()->Add(row.ids.begin(), row.ids.end());
  segment.mutable_labels()->Add(row.labels.begin(), row.labels.end());
  return segment;
}

namespace {

int64_t TrainedTokens(const TestRow& row) {
  return static_cast<int64_t>(std::count_if(row.labels.begin() + 1, row.labels.end(),
                                            [](int32_t label) { return label != -100; }));
}

// First-fit in the given order.
std::vector<v1::Microbatch> Pack(const std::vector<v1::Segment>& segments, int64_t capacity) {
  std::vector<v1::Microbatch> bins;
  std::vector<int64_t> used;
  for (const v1::Segment& segment : segments) {
    size_t bin = 0;
    while (bin < bins.size() && used[bin] + segment.input_ids_size() > capacity) ++bin;
    if (bin == bins.size()) {
      bins.emplace_back();
      used.push_back(0);
    }
    *bins[bin].add_segments() = segment;
    used[bin] += segment.input_ids_size();
  }
  return bins;
}

}  // namespace

// ---- Harness ----

Harness::Harness(Options options)
    : workers([&] {
        std::vector<std::unique_ptr<Worker>> made(options.cuts.size() + 1);
        for (std::unique_ptr<Worker>& worker : made) worker = std::make_unique<Worker>();
        return made;
      }()),
      link(workers.front()->link),
      driver(workers.front()->driver),
      options_(std::move(options)) {
  for (std::unique_ptr<Worker>& worker : workers) Start(worker.get());
}

void Harness::Start(Worker* worker) {
  worker->backend =
      options_.make_backend ? options_.make_backend() : kernels::MakeCpuBackend(options_.threads);
  if (options_.late) worker->backend = MakeLateBackend(std::move(worker->backend));
  worker->copies = options_.make_copies ? options_.make_copies() : worker->backend->MakeCopies();
  kernels::Backend* backend = worker->backend.get();
  EngineOptions engine{.memory_bytes = options_.memory_bytes, .numerics_id = NumericsId(*backend)};
  if (options_.model_files) engine.model_files = options_.model_files;
  const OpenListener open_listener = [this,
                                      worker]() -> absl::StatusOr<std::unique_ptr<StageListener>> {
    std::unique_ptr<StageListener> listener = std::make_unique<InProcessListener>(&transports_);
    if (options_.open_listener) {
      auto opened = options_.open_listener();
      if (!opened.ok()) return opened.status();
      listener = *std::move(opened);
    }
    if (worker->copies == nullptr) return listener;
    return std::make_unique<DeviceListener>(std::move(listener),
                                            DeviceWay{.copies = worker->copies.get(),
                                                      .choice = options_.transport,
                                                      .host = "host",
                                                      .nccl = options_.nccl});
  };
  CoreOptions core;
  core.hello.set_numerics_id(engine.numerics_id);
  worker->driver =
      std::make_unique<Driver>(std::move(core), MakeEngineMaker(backend, engine, SteadyClock()),
                               open_listener, &worker->link, &bulk, SteadyClock());
  v1::CoordinatorMessage welcome;
  welcome.mutable_welcome();
  worker->link.Tell(std::move(welcome));
}

void Harness::Tell(const v1::CoordinatorMessage& message) {
  for (std::unique_ptr<Worker>& worker : workers) worker->link.Tell(message);
}

void Harness::WaitIdle() {
  for (std::unique_ptr<Worker>& worker : workers) worker->driver->WaitIdle();
}

void Harness::Order(v1::FormGroup order) {
  v1::CoordinatorMessage message;
  *message.mutable_form_group() = std::move(order);
  link.Tell(std::move(message));
}

void Harness::Submit(v1::Window window) {
  if (workers.size() == 1) {
    v1::CoordinatorMessage message;
    *message.mutable_window() = std::move(window);
    return link.Tell(std::move(message));
  }
  const auto stages = static_cast<int>(workers.size());
  const planner::PlacesInFlight before = std::exchange(left, {});
  std::vector<v1::Window> windows = WindowsOfStages(
      window, stages, options_.in_flight, before, options_.runs_on && !draining_ ? &left : nullptr);
  for (size_t stage = 0; stage < workers.size(); ++stage) {
    v1::CoordinatorMessage message;
    *message.mutable_window() = std::move(windows[stage]);
    workers[stage]->link.Tell(std::move(message));
  }
}

void Harness::Drain() {
  if (left.empty()) return;
  draining_ = true;
  Run(NewWindow());
  draining_ = false;
}

v1::CutAnswer Harness::Cut(int64_t cut) {
  v1::CoordinatorMessage message;
  message.mutable_cut()->set_epoch(epoch_);
  message.mutable_cut()->set_cut(cut);
  link.Tell(std::move(message));
  const std::vector<v1::CutAnswer> answers = link.TakeCutAnswers();
  Require(answers.size() == 1, "not one answer to a cut");
  return answers[0];
}

void Harness::CutAt(int64_t cut, int64_t first_dropped) {
  v1::CoordinatorMessage message;
  message.mutable_cut_at()->set_epoch(epoch_);
  message.mutable_cut_at()->set_cut(cut);
  message.mutable_cut_at()->set_first_dropped(first_dropped);
  Tell(message);
}

void Harness::Dissolve(int64_t epoch) {
  v1::CoordinatorMessage message;
  message.mutable_dissolve_group()->set_epoch(epoch);
  Tell(message);
}

v1::FormGroup Harness::FormOrder(size_t stage) const {
  v1::FormGroup order;
  order.set_group("test");
  order.set_epoch(epoch_);
  order.set_model_path(options_.model_path);
  order.set_stages(static_cast<int32_t>(workers.size()));
  order.set_stage(static_cast<int32_t>(stage));
  order.set_capacity_tokens(options_.capacity_tokens);
  order.set_recomputation(options_.recomputation);
  order.set_longest_sequence(options_.longest_sequence);
  if (workers.size() == 1) return order;
  if (stage > 0) order.set_first_block(options_.cuts[stage - 1]);
  order.set_end_block(stage < options_.cuts.size() ? options_.cuts[stage]
                                                   : BlocksOf(options_.model_path));
  order.set_microbatches_in_flight(options_.in_flight);
  if (stage < options_.budgets.size()) order.set_budget_bytes(options_.budgets[stage]);
  return order;
}

void Harness::Form() {
  const std::vector<std::string> endpoints = FormStages();
  if (workers.size() > 1) ConnectStages(endpoints);
}

std::vector<std::string> Harness::FormStages() {
  ++epoch_;
  next_window_ = 1;
  for (size_t stage = 0; stage < workers.size(); ++stage) {
    v1::CoordinatorMessage message;
    *message.mutable_form_group() = FormOrder(stage);
    workers[stage]->link.Tell(std::move(message));
  }
  WaitIdle();
  std::vector<std::string> endpoints;
  for (const v1::Report& report : TakeReports()) {
    Require(!report.has_group_failed(), report.ShortDebugString());
    if (report.has_group_formed()) endpoints.push_back(report.group_formed().endpoint());
  }
  Require(endpoints.size() == workers.size(), "not every stage has a GroupFormed");
  return endpoints;
}

void Harness::ConnectStages(const std::vector<std::string>& endpoints) {
  const auto stages = static_cast<int>(workers.size());
  if (!options_.open_listener) {
    transports_ = options_.join ? options_.join(stages) : JoinInProcess(stages, {});
  }
  v1::CoordinatorMessage message;
  message.mutable_connect()->set_epoch(epoch_);
  message.mutable_connect()->mutable_endpoints()->Add(endpoints.begin(), endpoints.end());
  Tell(message);
  WaitIdle();
  size_t connected = 0;
  for (const v1::Report& report : TakeReports()) {
    Require(!report.has_group_failed(), report.ShortDebugString());
    if (report.has_connected()) ++connected;
  }
  Require(connected == workers.size(), "not every stage is Connected");
}

v1::Window Harness::NewWindow() {
  v1::Window window;
  window.set_epoch(epoch_);
  window.set_number(next_window_++);
  return window;
}

v1::SlotLoaded Harness::Load(const TestJob& job) {
  v1::Window window = NewWindow();
  v1::Operation& operation = *window.add_operations();
  operation = Op(v1::Operation::LOAD_SLOT, job.name(), job.step);
  *operation.mutable_slot() = job.spec;
  operation.set_content(job.content);
  for (const v1::Report& report : Run(std::move(window))) {
    if (report.has_slot_loaded()) return report.slot_loaded();
  }
  return {};
}

void Harness::Free(const TestJob& job) {
  v1::Window window = NewWindow();
  *window.add_operations() = Op(v1::Operation::FREE_SLOT, job.name(), job.step);
  Run(std::move(window));
}

void Harness::AddSteps(const std::vector<TestJob*>& jobs, bool save, std::mt19937_64* random,
                       v1::Window* window) {
  std::vector<v1::Segment> segments;
  for (TestJob* job : jobs) {
    v1::Batch& batch = *window->add_batches();
    batch.set_job(job->name());
    batch.set_step(job->step + 1);
    batch.set_sequences(job->batch);
    for (int64_t i = 0; i < job->batch; ++i) {
      const TestRow& row = job->rows.at((job->step * job->batch + i) % job->rows.size());
      segments.push_back(SegmentOf(*job, row, i, job->step + 1, v1::Segment::TRAIN));
      batch.set_tokens(batch.tokens() + static_cast<int64_t>(row.ids.size()));
      batch.set_trained_tokens(batch.trained_tokens() + TrainedTokens(row));
    }
  }
  if (random != nullptr) std::shuffle(segments.begin(), segments.end(), *random);
  for (v1::Microbatch& microbatch : Pack(segments, options_.capacity_tokens)) {
    microbatch.set_number(NextMicrobatch());
    *window->add_operations() = Op(v1::Operation::FORWARD, microbatch.number());
    *window->add_operations() = Op(v1::Operation::BACKWARD, microbatch.number());
    *window->add_microbatches() = std::move(microbatch);
  }
  for (TestJob* job : jobs) {
    const int64_t step = ++job->step;
    *window->add_operations() = Op(v1::Operation::NORM_UP, job->name(), step);
    *window->add_operations() = Op(v1::Operation::CLIP_DOWN, job->name(), step);
    v1::Operation& operation = *window->add_operations();
    operation = Op(v1::Operation::STEP, job->name(), step);
    operation.set_learning_rate(job->learning_rate(step - 1));
    if (save) *window->add_operations() = Op(v1::Operation::SAVE, job->name(), step);
  }
}

void Harness::AddGenerations(const std::vector<v1::Segment>& segments, v1::Window* window) {
  for (v1::Microbatch& microbatch : Pack(segments, options_.capacity_tokens)) {
    microbatch.set_number(NextMicrobatch());
    *window->add_operations() = Op(v1::Operation::GENERATE, microbatch.number());
    *window->add_microbatches() = std::move(microbatch);
  }
}

void Harness::Step(const std::vector<TestJob*>& jobs, bool save, std::mt19937_64* random) {
  v1::Window window = NewWindow();
  AddSteps(jobs, save, random, &window);
  Run(std::move(window));
}

double Harness::Evaluate(const TestJob& job, const std::vector<TestRow>& rows) {
  v1::Window window = NewWindow();
  std::vector<v1::Segment> segments;
  for (size_t i = 0; i < rows.size(); ++i) {
    segments.push_back(
        SegmentOf(job, rows[i], static_cast<int64_t>(i), job.step, v1::Segment::EVALUATE));
  }
  for (v1::Microbatch& microbatch : Pack(segments, options_.capacity_tokens)) {
    microbatch.set_number(NextMicrobatch());
    *window.add_operations() = Op(v1::Operation::EVALUATE, microbatch.number());
    *window.add_microbatches() = std::move(microbatch);
  }
  std::map<int64_t, double> sums;
  int64_t trained_tokens = 0;
  for (const v1::Report& report : Run(std::move(window))) {
    if (!report.has_evaluate_done()) continue;
    const v1::EvaluateDone& done = report.evaluate_done();
    for (int i = 0; i < done.sequence_size(); ++i) {
      sums[done.sequence(i)] = done.loss_sum(i);
      trained_tokens += done.trained_tokens(i);
    }
  }
  Require(sums.size() == rows.size(), "rows were not evaluated");
  double sum = 0;
  for (const auto& [sequence, of_sequence] : sums) sum += of_sequence;
  return sum / static_cast<double>(trained_tokens);
}

std::vector<v1::Report> Harness::Run(v1::Window window) {
  Submit(std::move(window));
  WaitIdle();
  std::vector<v1::Report> taken = TakeReports();
  for (const v1::Report& report : taken) {
    Require(!report.has_group_failed(), report.ShortDebugString());
  }
  return taken;
}

std::string Harness::Shard(const TestJob& job) {
  Drain();
  try {
    return bulk.Shard(job.name(), job.step, static_cast<int32_t>(workers.size()));
  } catch (const std::runtime_error& missing) {
    TakeReports();
    throw std::runtime_error(missing.what() + ("; failures so far:" + failures_));
  }
}

std::vector<v1::Report> Harness::TakeReports() {
  std::vector<v1::Report> all;
  for (std::unique_ptr<Worker>& worker : workers) {
    std::vector<v1::Report> taken = worker->link.TakeReports();
    if (!taken.empty()) {
      v1::CoordinatorMessage message;
      message.mutable_acknowledge()->set_epoch(epoch_);
      message.mutable_acknowledge()->set_number(taken.back().number());
      worker->link.Tell(std::move(message));
    }
    all.insert(all.end(), taken.begin(), taken.end());
  }
  for (const v1::Report& report : all) Note(report);
  return all;
}

void Harness::Note(const v1::Report& report) {
  if (report.has_group_formed()) formed_ = report.group_formed();
  if (report.has_step_done()) steps_[report.step_done().job()].push_back(report.step_done());
  if (report.has_group_failed() || report.has_not_finite() || report.has_slot_failed()) {
    failures_ += "\n" + report.ShortDebugString();
  }
  if (report.has_not_finite()) not_finite_.push_back(report.not_finite());
  if (report.has_slot_failed()) slot_failed_.push_back(report.slot_failed());
  if (report.has_microbatch_done() && report.microbatch_done().backward_ms() > 0) {
    ++microbatches_;
    adapters_ += report.microbatch_done().adapters();
  }
}

double Harness::mean_adapters() const {
  return microbatches_ == 0 ? 0
                            : static_cast<double>(adapters_) / static_cast<double>(microbatches_);
}

}  // namespace lorad::worker
