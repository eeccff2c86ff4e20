#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "lorad/worker/v1/worker.pb.h"
#include "planner/window/order.h"
#include "tests/worker/memory_peers.h"
#include "worker/driver.h"
#include "worker/engine/model_files.h"
#include "worker/transport/choice.h"
#include "worker/transport/listener.h"
#include "worker/transport/nccl.h"
#include "worker/transport/transport.h"

namespace lorad::worker {

struct TestRow {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;  // aligned; -100 = not trained
};

// A job as the coordinator would know it: rows step * batch .. are the batch of a step.
struct TestJob {
  v1::SlotSpec spec;
  std::string content;  // "" = PEFT's initialization
  std::vector<TestRow> rows;
  int64_t batch = 1;
  std::function<double(int64_t t)> learning_rate;
  int64_t step = 0;  // done

  const std::string& name() const { return spec.job(); }
};

// What should not happen is thrown as std::runtime_error, so that tests and benchmarks can use it.
// Plays the coordinator for one worker, or for the workers of all stages: forms a group, packs
// jobs' steps into windows, collects reports. Packing is first-fit in the order of the sequences,
// shuffled when a generator is given.
class Harness {
 public:
  struct Options {
    std::string model_path;
    int threads = 1;
    int32_t capacity_tokens = 1024;
    int32_t longest_sequence = 256;
    int64_t memory_bytes = 0;
    v1::FormGroup::Recomputation recomputation = v1::FormGroup::PRODUCTS;
    bool late = false;  // the device does everything as late as it may
    // Several stages, each with a worker of its own: the first blocks of all but the first.
    std::vector<int32_t> cuts = {};
    int32_t in_flight = 1;  // microbatches on a stage
    bool runs_on = false;   // windows end without emptying the pipeline
    // How the stages are joined: each by such a listener, or where there is none by these
    // transports; null: in this process, at once.
    OpenListener open_listener = nullptr;
    std::function<std::vector<std::unique_ptr<Transport>>(int stages)> join = nullptr;
    // How the tensors of stages with devices cross, and by which copies: null: the backend's.
    TransportChoice transport = TransportChoice::kAuto;
    std::function<std::unique_ptr<kernels::DeviceCopies>()> make_copies = nullptr;
    const NcclLibrary* nccl = nullptr;
    std::vector<int64_t> budgets = {};  // of memory, by stage; none: no limit
    // Null: the CPU's, with so many threads.
    std::function<std::unique_ptr<kernels::Backend>()> make_backend = nullptr;
    // Null: models are what their files say.
    std::shared_ptr<ModelFiles> model_files = nullptr;
  };
  explicit Harness(Options options);

  // Of the next group; of what workers are made with nothing changes.
  Options& options() { return options_; }
  // And joins the stages, where there are several.
  void Form();
  // But not yet. The endpoints of all stages, in their order.
  std::vector<std::string> FormStages();

  // Empty if it failed (slot_failed()).
  v1::SlotLoaded Load(const TestJob& job);
  void Free(const TestJob& job);
  // One window: the next step of every job, all packed together. With `save` every job's Save
  // follows its Step.
  void Step(const std::vector<TestJob*>& jobs, bool save = false,
            std::mt19937_64* random = nullptr);
  // One window: rows of `job` evaluated at its step; loss per trained token.
  double Evaluate(const TestJob& job, const std::vector<TestRow>& rows);

  // For windows of one's own.
  v1::Window NewWindow();
  int64_t NextMicrobatch() { return next_microbatch_++; }
  // Adds the sequences of `jobs`' next steps and their operations to a window.
  void AddSteps(const std::vector<TestJob*>& jobs, bool save, std::mt19937_64* random,
                v1::Window* window);
  // Adds segments that generate, packed, and their operations.
  void AddGenerations(const std::vector<v1::Segment>& segments, v1::Window* window);
  // What the coordinator would say.
  void Order(v1::FormGroup order);
  void Submit(v1::Window window);
  v1::CutAnswer Cut(int64_t cut);
  void CutAt(int64_t cut, int64_t first_dropped);
  void Dissolve(int64_t epoch);
  // Submits and waits; the reports that came.
  std::vector<v1::Report> Run(v1::Window window);
  std::vector<v1::Report> TakeReports();

  // As bulk's, of the job's last step; where there is none, what has failed so far is said, too.
  std::string Shard(const TestJob& job);
  const std::vector<v1::StepDone>& steps(const std::string& job) { return steps_[job]; }
  const std::vector<v1::NotFinite>& not_finite() const { return not_finite_; }
  const std::vector<v1::SlotFailed>& slot_failed() const { return slot_failed_; }
  const v1::GroupFormed& formed() const { return formed_; }
  // Adapters per microbatch that trained.
  double mean_adapters() const;

  // Where windows run on: a window that takes what is in flight to its end.
  void Drain();
  planner::PlacesInFlight left;  // by the window before
  // Until all workers have done every window that came so far.
  void WaitIdle();

  MemoryBulk bulk;

  // A worker of one stage.
  struct Worker {
    MemoryLink link;
    std::unique_ptr<kernels::Backend> backend;
    std::unique_ptr<kernels::DeviceCopies> copies;  // null where memory is the host's
    std::unique_ptr<Driver> driver;
  };
  std::vector<std::unique_ptr<Worker>> workers;  // the first stage's first
  // Those of the first stage.
  MemoryLink& link;
  std::unique_ptr<Driver>& driver;

 private:
  void Start(Worker* worker);
  void ConnectStages(const std::vector<std::string>& endpoints);
  void Tell(const v1::CoordinatorMessage& message);
  v1::FormGroup FormOrder(size_t stage) const;
  void Note(const v1::Report& report);

  Options options_;
  std::vector<std::unique_ptr<Transport>> transports_;  // of the group to be formed
  int64_t epoch_ = 0;
  int64_t next_window_ = 1;
  bool draining_ = false;
  int64_t next_microbatch_ = 1;
  std::map<std::string, std::vector<v1::StepDone>> steps_;
  std::vector<v1::NotFinite> not_finite_;
  std::vector<v1::SlotFailed> slot_failed_;
  std::string failures_;  // whole reports, a line each
  v1::GroupFormed formed_;
  int64_t microbatches_ = 0;
  int64_t adapters_ = 0;
};

v1::Operation Op(v1::Operation::Kind kind, int64_t microbatch);
v1::Operation Op(v1::Operation::Kind kind, const std::string& job, int64_t step);

v1::Segment SegmentOf(const TestJob& job, const TestRow& row, int64_t sequence, int64_t step,
                      v1::Segment::Mode mode);

}  // namespace lorad::worker
