// The workers of a site: the very WorkerCore, its engine without arithmetic, and the network
// between it and the coordinator.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/data_dir.h"
#include "storage/checkpoint.h"
#include "storage/model_description.h"
#include "storage/sha256.h"
#include "tests/sim/site.h"
#include "tests/storage/published_configs.h"
#include "tests/storage/safetensors_bytes.h"

namespace lorad::sim {
namespace {

constexpr char kNumerics[] = "sim";
constexpr int64_t kOperationUs = 1000;
constexpr int64_t kRestartUs = 100'000;

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

void Site::StartWorker(int i) {
  WorkerProcess& process = workers_[i];
  process.life++;
  process.silent = false;
  process.uploads.clear();
  worker::CoreOptions options;
  options.hello.set_protocol_version(worker::kProtocolVersion);
  const Machine& machine = options_.machines[i];
  options.hello.set_worker(machine.worker);
  options.hello.set_device(machine.device);
  options.hello.set_memory_bytes(machine.memory_bytes);
  options.hello.set_threads(machine.threads);
  options.hello.set_multiprocessors(machine.multiprocessors);
  options.hello.set_numerics_id(kNumerics);
  process.core = std::make_unique<worker::WorkerCore>(options);
  SimEngine::Hooks hooks;
  hooks.report = [this, i](worker::v1::Report report) {
    ApplyLater(i, 0, worker::EngineReported{std::move(report)});
  };
  hooks.fetch = [this](const std::string& content) { return Fetch(content); };
  process.engine = std::make_unique<SimEngine>(std::move(hooks));
  Apply(i, worker::Started{});
}

void Site::KillWorker(int i) {
  EndStream(i, absl::UnavailableError("killed by signal 9"));
  WorkerProcess& process = workers_[i];
  process.life++;
  process.core.reset();
  process.engine.reset();
  At(now_us_ + kRestartUs, [this, i, life = process.life] {
    if (workers_[i].life == life) StartWorker(i);
  });
}

void Site::CutStream(int i) { EndStream(i, absl::UnavailableError("the network broke")); }

void Site::Apply(int i, decltype(worker::Event::content) content) {
  WorkerProcess& process = workers_[i];
  const int64_t life = process.life;
  for (worker::Effect& effect :
       process.core->Apply({static_cast<double>(now_us_) / 1000, std::move(content)})) {
    if (workers_[i].life == life) Do(i, std::move(effect));
  }
}

// Dropped if the process has died by then.
void Site::ApplyLater(int i, int64_t delay_us, decltype(worker::Event::content) content) {
  At(now_us_ + delay_us, [this, i, life = workers_[i].life, content = std::move(content)] {
    if (workers_[i].life == life) Apply(i, content);
  });
}

void Site::Do(int i, worker::Effect effect) {
  WorkerProcess& process = workers_[i];
  // Reports come before the end of their order: both lie on the agenda in the order they were made.
  const auto done = [&](absl::StatusOr<bool> result, int64_t staged_bytes = 0) {
    At(now_us_, [this, i, life = process.life, result = std::move(result), staged_bytes] {
      if (workers_[i].life != life) return;
      ApplyLater(i, workers_[i].mischief.EngineUs(kOperationUs, now_us_),
                 worker::EngineDone{result, staged_bytes});
    });
  };
  std::visit(Overloaded{
                 [&](worker::Dial& dial) { Dial(i, dial); },
                 [&](worker::HangUp&) { EndStream(i, absl::CancelledError("hung up")); },
                 [&](worker::Say& say) { Say(i, std::move(say.message)); },
                 [&](worker::FormGroup&) {
                   process.engine->Form();
                   done(true);
                 },
                 [&](worker::LeaveGroup&) {
                   REQUIRE(process.uploads.empty());  // they read its slots
                   process.engine->Leave();
                   done(true);
                 },
                 [&](worker::BeginWindow& begin) {
                   process.engine->Begin(begin.window);
                   done(true);
                 },
                 [&](worker::Execute& execute) {
                   CheckOperation(process, *execute.operation);
                   const bool save = execute.operation->kind() == worker::v1::Operation::SAVE;
                   done(process.engine->Execute(*execute.operation),
                        save ? SimEngine::kStagedBytes : 0);
                 },
                 [&](worker::EndWindow& end) {
                   process.engine->End(end.cut_jobs);
                   done(true);
                 },
                 [&](worker::Upload& upload) { Upload(i, upload); },
                 [&](worker::CancelCalls&) {
                   for (const auto& [upload, job] : process.uploads) {
                     Later([this, i, life = process.life, upload = upload] {
                       if (workers_[i].life != life) return;
                       EndUpload(i, upload, absl::CancelledError("given up"));
                     });
                   }
                 },
                 [&](worker::ReadMemory&) {
                   ApplyLater(i, 0, worker::MemoryRead{1000, 2000});
                 },
                 [&](worker::SetTimer& timer) {
                   At(static_cast<int64_t>(timer.at_ms * 1000) + 1,
                      [this, i, life = process.life, number = ++process.timer] {
                        if (workers_[i].life == life && workers_[i].timer == number) {
                          Apply(i, worker::TimerFired{});
                        }
                      });
                 },
                 [&](worker::Note&) {},
                 [&](worker::End&) { KillWorker(i); },
             },
             effect);
}

// ---- the stream ----

void Site::Dial(int i, const worker::Dial& dial) {
  WorkerProcess& process = workers_[i];
  process.stream = dial.stream;
  const uint64_t connection = next_connection_++;
  process.connection = connection;
  process.up_free_us = process.down_free_us = now_us_;
  Later([this, i, connection, hello = dial.hello] {
    if (workers_[i].connection != connection) return;
    if (workers_[i].mischief.distorts()) promises_.Mistrust(connection);
    if (!Post(server::WorkerConnected{connection, workers_[i].mischief.Introduce(hello)})) {
      EndStream(i, absl::UnavailableError("nobody is there"));
    }
  });
}

// Both ends learn of it, each when the news has come.
void Site::EndStream(int i, const absl::Status& why) {
  WorkerProcess& process = workers_[i];
  const uint64_t connection = std::exchange(process.connection, 0);
  if (connection == 0) return;
  process.silent = false;
  ApplyLater(i, Delay(), worker::StreamBroke{process.stream, why});
  At(std::max(process.up_free_us, now_us_) + Delay(), [this, connection, life = life_, why] {
    if (life == life_) Post(server::WorkerGone{connection, std::string(why.message())});
  });
}

void Site::Say(int i, worker::v1::WorkerMessage message) {
  WorkerProcess& process = workers_[i];
  if (process.silent || process.connection == 0) return;
  if (process.mischief.CutsHere()) return CutStream(i);
  if (process.mischief.distorts()) promises_.Mistrust(process.connection);
  for (worker::v1::WorkerMessage& told : process.mischief.Tell(std::move(message))) {
    Carry(i, std::move(told));
  }
}

void Site::Carry(int i, worker::v1::WorkerMessage message) {
  WorkerProcess& process = workers_[i];
  process.up_free_us = std::max(process.up_free_us, now_us_ + Delay());
  At(process.up_free_us, [this, i, connection = process.connection, life = life_,
                          message = std::move(message)]() mutable {
    if (life != life_) return;
    // What was on its way when the stream broke may still come.
    if (!Post(server::WorkerSaid{connection, std::move(message)})) {
      if (workers_[i].connection == connection) CutStream(i);
    }
  });
}

void Site::Send(uint64_t connection, worker::v1::CoordinatorMessage message) {
  promises_.Sent(connection, message);
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    WorkerProcess& process = workers_[i];
    if (process.connection != connection) continue;
    if (process.mischief.CutsHere()) return CutStream(i);
    process.down_free_us = std::max(process.down_free_us, now_us_ + Delay());
    At(process.down_free_us, [this, i, connection, message = std::move(message)] {
      WorkerProcess& to = workers_[i];
      if (to.connection == connection) Apply(i, worker::CoordinatorSaid{to.stream, message});
    });
    return;
  }
}

void Site::Close(uint64_t connection, const absl::Status& reason) {
  promises_.CheckClose(connection, reason, options_.core.lease_ms * 1000, awake_us());
  promises_.StreamEnded(connection);
  closings_++;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    if (workers_[i].connection == connection) EndStream(i, reason);
  }
}

// ---- bulk ----

std::string Site::ShardOf(const worker::v1::UploadShardRequest::Header& header) {
  const auto description = storage::DescribeModel(storage::kTiny);
  REQUIRE(description.ok());
  std::vector<storage::TensorEntry> entries;
  for (const auto& tensor : storage::PeftTensors(*description, 4, {"q_proj"})) {
    for (const char* suffix : {"", storage::kFirstMomentSuffix, storage::kSecondMomentSuffix}) {
      entries.push_back({tensor.name + suffix, storage::TensorType::kF32, tensor.shape});
    }
  }
  return storage::SafetensorsOf(
      std::move(entries),
      storage::ShardMetadata({header.job(), header.step(), header.numerics_id()}));
}

void Site::Upload(int i, const worker::Upload& upload) {
  WorkerProcess& process = workers_[i];
  process.uploads[upload.upload] = upload.header.job();
  const auto end = [this, i, life = process.life, number = upload.upload](absl::Status status) {
    if (workers_[i].life == life) EndUpload(i, number, status);
  };
  // The last bytes may be on their way when the worker dies, and may come twice.
  for (worker::v1::UploadShardRequest::Header& header : process.mischief.Upload(upload.header)) {
    Later([this, end, header = std::move(header)] {
      const absl::StatusOr<std::string> path = WriteUpload(ShardOf(header));
      if (!path.ok()) return end(absl::UnavailableError(path.status().message()));
      Ask(server::ShardUploaded{header, *path},
          [end](absl::StatusOr<server::ReplyValue> value) { end(value.status()); });
    });
  }
  At(now_us_ + upload.timeout_ms * 1000, [end] { end(absl::DeadlineExceededError("too late")); });
}

// Once for each try.
void Site::EndUpload(int i, int64_t upload, const absl::Status& status) {
  if (workers_[i].uploads.erase(upload) == 0) return;
  ApplyLater(i, 0, worker::UploadDone{upload, status, "sha256"});
}

absl::StatusOr<int64_t> Site::Fetch(const std::string& text) {
  if (!process_ || disk_.stopped()) return absl::UnavailableError("nobody is there");
  const absl::StatusOr<server::SlotContent> content = server::ParseSlotContent(text);
  REQUIRE(content.ok());
  const auto found = storage::OpenCheckpoint(files_, "/data/" + content->path, true);
  if (!found.ok()) return absl::UnavailableError(found.status().message());
  return content->kind == server::SlotContent::Kind::kCheckpoint ? found->state.step : 0;
}

}  // namespace lorad::sim
