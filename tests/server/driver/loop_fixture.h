// The loop without threads, over a store, a disk, tasks and a clock of the test's.
#pragma once

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>

#include "server/driver/loop.h"
#include "server/store/startup.h"
#include "storage/files/files.h"
#include "tests/sim/disk/memory_store.h"

namespace lorad::server {

namespace fs = std::filesystem;
inline constexpr int64_t kSecond = 1'000'000;
inline constexpr int64_t kMiB = int64_t{1} << 20;

class HandClock final : public Clock {
 public:
  Moment Now() override { return {now_us, now_us}; }
  int64_t now_us = kSecond;
};

class FailingStore final : public sim::MemoryStore {
 public:
  absl::Status Apply(const std::vector<storage::Mutation>& mutations) override {
    if (!mutations.empty() && !failure.ok()) return failure;
    return sim::MemoryStore::Apply(mutations);
  }
  absl::Status failure;
};

class HandDisk final : public Disk {
 public:
  const std::string& path() const override { return path_; }
  absl::StatusOr<FreeRoom> Free() override { return FreeRoom{free_bytes, free_files}; }
  absl::StatusOr<int64_t> SizeBytes() override { return size_bytes; }
  bool HasBallast(int64_t bytes) override { return ballast_bytes == bytes; }
  absl::Status MakeBallast(int64_t bytes) override {
    if (free_bytes < bytes) return absl::ResourceExhaustedError("no room");
    free_bytes -= bytes;
    ballast_bytes = bytes;
    return absl::OkStatus();
  }
  absl::Status DropBallast() override {
    free_bytes += std::exchange(ballast_bytes, 0);
    return absl::OkStatus();
  }
  int64_t size_bytes = int64_t{1} << 40;
  int64_t free_bytes = 1000 * kMiB;
  int64_t free_files = 1000;
  int64_t ballast_bytes = 0;

 private:
  const std::string path_ = "/disk";
};

class HandTasks final : public Tasks {
 public:
  void Add(Queue, std::function<void()> task) override { tasks.push_back(std::move(task)); }
  std::deque<std::function<void()>> tasks;
};

class OneTokenRows final : public Solver {
 public:
  absl::StatusOr<records::RowsSummary> CheckRows(const RowSource& source,
                                                 const std::atomic<bool>&) override {
    records::RowsSummary rows;
    rows.set_rows(source.rows);
    rows.set_tokens(source.rows);
    rows.set_longest_tokens(1);
    return rows;
  }
  void CloseRows(const std::string& dataset_path) override { closed.push_back(dataset_path); }
  absl::StatusOr<SolvedPlan> Plan(const PlanInput&, const std::function<bool()>& hurry) override {
    hurried = hurry();
    return absl::UnimplementedError("no rows here");
  }
  bool hurried = false;
  std::vector<std::string> closed;
};

// A coordinator that can die at any step and be started again on what it left.
class Coordinator final : public Sinks {
 public:
  explicit Coordinator(int64_t reserve_bytes = 0) : reserve_bytes_(reserve_bytes) {
    std::string pattern = (fs::temp_directory_path() / "lorad_loop_XXXXXX").string();
    data_dir = std::make_unique<DataDir>(mkdtemp(pattern.data()));
    REQUIRE(MakeFolders(*data_dir, storage::RealFiles()).ok());
    Start();
  }
  ~Coordinator() override { fs::remove_all(data_dir->root()); }

  void Start() {
    loop.reset();
    answers.clear();
    tasks.tasks.clear();
    mailbox = std::make_unique<Mailbox>(clock, MailboxOptions{}, [] {});
    revisions = std::make_unique<RevisionLog>(4096);
    auto started = Loop::Start({.core = {}, .reserve_bytes = reserve_bytes_},
                               {clock, *data_dir, storage::RealFiles(), store, disk, tasks, solver,
                                *mailbox, *revisions, *this});
    REQUIRE(started.ok());
    loop = *std::move(started);
  }

  bool Step() {
    const absl::StatusOr<bool> went_on = loop->Step();
    REQUIRE(went_on.ok());
    return *went_on;
  }
  // Until nothing can happen before the clock goes on.
  void Settle() {
    for (;;) {
      while (Step()) {
      }
      if (tasks.tasks.empty()) return;
      auto task = std::move(tasks.tasks.front());
      tasks.tasks.pop_front();
      task();
    }
  }
  void Sleep(int64_t us) {
    for (const int64_t until_us = clock.now_us + us; clock.now_us < until_us; Settle()) {
      clock.now_us = std::min(until_us, std::max(clock.now_us + 1, loop->wake_us()));
    }
  }

  uint64_t Ask(Request request) {
    REQUIRE(mailbox->Post(Requested{++last_request_, std::move(request)}));
    return last_request_;
  }
  absl::StatusOr<ReplyValue> Call(Request request) {
    const uint64_t number = Ask(std::move(request));
    Settle();
    REQUIRE(answers.contains(number));
    return answers.at(number);
  }

  void Answer(uint64_t request, absl::StatusOr<ReplyValue> value) override {
    REQUIRE(answers.emplace(request, std::move(value)).second);
  }
  void Send(uint64_t, worker::v1::CoordinatorMessage message) override {
    sent.push_back(std::move(message));
  }
  void Close(uint64_t connection, const absl::Status&) override { closed.push_back(connection); }
  void Writable(const absl::Status& status) override { writable = status; }
  void Log(Note::Level, const std::string&) override {}

  HandClock clock;
  FailingStore store;
  HandDisk disk;
  HandTasks tasks;
  OneTokenRows solver;
  std::unique_ptr<DataDir> data_dir;
  std::unique_ptr<Mailbox> mailbox;
  std::unique_ptr<RevisionLog> revisions;
  std::unique_ptr<Loop> loop;
  std::map<uint64_t, absl::StatusOr<ReplyValue>> answers;
  std::vector<worker::v1::CoordinatorMessage> sent;
  std::vector<uint64_t> closed;
  absl::Status writable;

 private:
  const int64_t reserve_bytes_;
  uint64_t last_request_ = 0;
};

inline constexpr char kConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0, "tie_word_embeddings": true, "vocab_size": 256, "torch_dtype": "float32"
})";

inline RegisterModel NewModel(const std::string& name) {
  RegisterModel model;
  model.model.set_name(name);
  model.model.set_path("/models/" + name);
  model.config_json = kConfig;
  return model;
}

inline CreateDataset NewDataset(Coordinator& coordinator, const std::string& name) {
  CreateDataset dataset;
  dataset.upload = coordinator.data_dir->NewUpload();
  std::ofstream(dataset.upload) << "{\"text\": \"a\"}\n";
  dataset.dataset.set_name(name);
  dataset.dataset.set_rows(8);
  dataset.dataset.set_sha256("sha-" + name);
  return dataset;
}

inline CreateJob NewJob(const std::string& request_id = "") {
  CreateJob create;
  create.job.set_base_model("m");
  create.job.set_training_dataset("d");
  create.job.mutable_adapter()->set_rank(4);
  create.job.mutable_adapter()->set_alpha(8);
  create.job.mutable_adapter()->add_target_modules("q_proj");
  create.job.mutable_training()->set_epochs(1);
  create.job.mutable_training()->set_batch_size(2);
  create.job.mutable_training()->set_max_length(64);
  create.request_id = {request_id, "content"};
  return create;
}

template <class Proto>
Proto Named(const std::string& name) {
  Proto request;
  request.set_name(name);
  return request;
}

inline std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload("lorad/reason");
  return payload ? std::string(*payload) : "";
}

inline void Connect(Coordinator& coordinator, uint64_t connection, int64_t memory_bytes = 1 << 30) {
  WorkerConnected connected;
  connected.connection = connection;
  connected.hello.set_worker("w");
  connected.hello.set_protocol_version(1);
  connected.hello.set_device("cpu");
  connected.hello.set_memory_bytes(memory_bytes);
  REQUIRE(coordinator.mailbox->Post(std::move(connected)));
  coordinator.Settle();
}

inline void SayHeartbeat(Coordinator& coordinator, uint64_t connection) {
  WorkerSaid said{connection, {}};
  said.message.mutable_heartbeat();
  REQUIRE(coordinator.mailbox->Post(std::move(said)));
}

inline absl::Status DiskFull() {
  absl::Status status = absl::ResourceExhaustedError("/disk: cannot write: no space left");
  status.SetPayload("lorad/reason", absl::Cord("DISK_FULL"));
  return status;
}

}  // namespace lorad::server
