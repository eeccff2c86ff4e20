#include "tests/sim/site.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/startup.h"
#include "storage/files/sha256.h"
#include "storage/models/model_directory.h"
#include "tests/sim/disk/marked_store.h"

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: the site is the server's, simulated

constexpr char kRoot[] = "/data";
constexpr int64_t kRestartUs = 200'000;
constexpr int64_t kForEverUs = int64_t{1} << 50;

absl::Status Gone() { return absl::UnavailableError("the coordinator is not there"); }

// The room on the simulated disk.
class SiteRoom final : public Disk {
 public:
  SiteRoom(SimDisk& disk, SimFiles& files) : disk_(disk), files_(files) {}

  const std::string& path() const override { return path_; }
  absl::StatusOr<FreeRoom> Free() override {
    const uint64_t capacity = std::min(disk_.capacity_bytes(), kSizeBytes);
    return FreeRoom{static_cast<int64_t>(capacity - std::min(capacity, disk_.used_bytes())),
                    std::numeric_limits<int64_t>::max()};
  }
  absl::StatusOr<int64_t> SizeBytes() override { return static_cast<int64_t>(kSizeBytes); }
  bool HasBallast(int64_t bytes) override {
    const absl::StatusOr<uint64_t> size = files_.Size(ballast_);
    return size.ok() && static_cast<int64_t>(*size) == bytes;
  }
  absl::Status MakeBallast(int64_t bytes) override {
    const absl::Status status =
        storage::WriteSynced(files_, ballast_, std::string(static_cast<size_t>(bytes), '\0'));
    if (!status.ok()) DropBallast().IgnoreError();
    return status;
  }
  absl::Status DropBallast() override {
    const absl::Status status = files_.Remove(ballast_);
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

 private:
  static constexpr uint64_t kSizeBytes = uint64_t{1} << 40;

  SimDisk& disk_;
  SimFiles& files_;
  const std::string path_ = kRoot;
  const std::string ballast_ = absl::StrCat(kRoot, "/ballast");
};

class FunctionClock final : public Clock {
 public:
  explicit FunctionClock(std::function<Moment()> now) : now_(std::move(now)) {}
  Moment Now() override { return now_(); }

 private:
  const std::function<Moment()> now_;
};

// Tasks as entries of the site's agenda.
class AgendaTasks final : public Tasks {
 public:
  // The task runs after `earliest_us` or later; returns when.
  using Schedule = std::function<int64_t(Queue, int64_t earliest_us, std::function<void()>)>;
  explicit AgendaTasks(Schedule schedule) : schedule_(std::move(schedule)) {}

  void Add(Queue queue, std::function<void()> task) override {
    const int64_t at = schedule_(queue, free_us_[queue], std::move(task));
    if (queue == Queue::kFiles || queue == Queue::kReads) free_us_[queue] = at;  // in their order
  }

 private:
  const Schedule schedule_;
  std::map<Queue, int64_t> free_us_;
};

}  // namespace

struct Site::Process {
  Process(std::function<Moment()> now, AgendaTasks::Schedule schedule, std::function<void()> ring,
          const CoreOptions& options, SimDisk& disk, SimFiles& files)
      : clock(std::move(now)),
        data_dir(kRoot),
        mailbox(clock, MailboxOptions{}, std::move(ring)),
        revisions(options.watch_memory_max),
        room(disk, files),
        tasks(std::move(schedule)),
        solver(MakeFeedSolver(kRoot, files, clock)) {}

  FunctionClock clock;
  const DataDir data_dir;
  Mailbox mailbox;
  RevisionLog revisions;
  SiteRoom room;
  AgendaTasks tasks;
  std::unique_ptr<Solver> solver;
  std::unique_ptr<storage::JobStore> opened;  // null: the one in memory is used
  storage::JobStore* store = nullptr;
  std::unique_ptr<Loop> loop;
  int64_t wake_us = 0;  // is on the agenda
};

Site::Site(const SiteOptions& options)
    : options_(options),
      clock_(options.seed, options.delay_us_max),
      config_json_(house_.directory.Read("model/config.json")),
      fingerprint_(storage::ModelDirectory::Open(house_.model())->fingerprint()),
      disk_(options.seed),
      files_(disk_),
      vfs_(disk_),
      memory_store_(std::make_unique<MarkedStore>(files_, absl::StrCat(kRoot, "/lorad.sqlite"))),
      groups_(options.core.lease_ms * 1000),
      promises_(options.core.request_ids_max, groups_),
      net_(clock_) {
  for (const int layers : options.layers) {
    const BaseModel& model = ModelOfLayers(layers);
    house_.directory.Write(model.folder + "/config.json", model.config_json);
    house_.directory.Write(model.folder + "/random_weights.json", R"({"seed": 1})");
  }
  script_.rate_of = [this](const std::string& job, int64_t step) { return RateOf(job, step); };
  StartCoordinator();
  for (const auto& [worker, other] : options.narrow) net_.Narrow(worker, other, kForEverUs);
  for (const Machine& machine : options.machines) {
    if (machine.isolated) net_.Isolate(machine.worker);
    workers_.push_back(std::make_unique<WorkerProcess>(machine, clock_, *this, script_, &net_));
    WorkerProcess& worker = *workers_.back();
    if (machine.joins_us == 0) {
      worker.Start();
      continue;
    }
    At(now_us() + machine.joins_us, [&worker] {
      if (!worker.running()) worker.Start();
    });
  }
}

Site::~Site() = default;

// ---- time ----

void Site::RunUntil(const std::function<bool()>& done, int64_t events_max) {
  for (int64_t event = 0; !done(); ++event) {
    if (event == events_max) FAIL("it does not come to an end");
    REQUIRE(RunNext());
  }
}

// ---- the coordinator's process ----

int64_t Site::EndOfTask(Tasks::Queue queue, int64_t earliest_us) {
  const int64_t at_us = std::max(now_us(), earliest_us) + clock_.Delay();
  if (queue != Tasks::Queue::kFiles) return at_us;
  const auto range_us = static_cast<uint64_t>(options_.file_us_max) + 1;
  return std::max(at_us, files_hang_until_us_) + static_cast<int64_t>(random()() % range_us);
}

absl::Status Site::TryStart() {
  const int64_t life = life_;
  process_ = std::make_unique<Process>(
      [this] {
        return Moment{now_us(), now_us() + wall_ahead_us_};
      },
      [this, life](Tasks::Queue queue, int64_t earliest_us, std::function<void()> task) {
        const int64_t at = EndOfTask(queue, earliest_us);
        At(at, [this, life, task = std::move(task)] {
          if (life == life_ && !disk_.stopped()) task();
          if (life == life_) Ring();
        });
        return at;
      },
      [this] { Ring(); }, options_.core, disk_, files_);
  Process& process = *process_;
  if (absl::Status status = MakeFolders(process.data_dir, files_); !status.ok()) return status;
  if (absl::Status status = CheckStoreIsThere(process.data_dir, files_); !status.ok()) {
    return status;
  }
  if (options_.sqlite) {
    auto store = storage::JobStore::Open(kRoot, {}, vfs_.name());
    if (!store.ok()) return store.status();
    process.opened = *std::move(store);
    process.store = process.opened.get();
  } else {
    const absl::Status opened = static_cast<MarkedStore&>(*memory_store_).Open();
    if (!opened.ok()) return opened;
    process.store = memory_store_.get();
  }
  auto loop =
      Loop::Start({.core = options_.core,
                   .reserve_bytes = options_.reserve_bytes,
                   .random = options_.seed << 16 | static_cast<uint64_t>(life_)},
                  {process.clock, process.data_dir, files_, *process.store, process.room,
                   process.tasks, *process.solver, process.mailbox, process.revisions, *this});
  if (!loop.ok()) return loop.status();
  process.loop = *std::move(loop);
  return absl::OkStatus();
}

void Site::StartCoordinator() {
  if (process_) return;
  Unveil();  // who starts it has seen to that
  const absl::Status status = TryStart();
  if (!status.ok()) {
    INFO("seed " << options_.seed << ", at start: " << status);
    REQUIRE((disk_is_ill() || disk_.stopped()));
    failed_starts_++;
    return Die(death_.value_or(Death::kKill));
  }
  revision_of_start_ = process_->revisions.newest();
  if (!disk_is_ill()) promises_.CheckKept(store(), files_);
  for (const auto& worker : workers_) {
    if (!worker->running()) worker->Start();
  }
  Ring();
}

void Site::Ring() {
  if (!process_ || std::exchange(wake_due_, true)) return;
  clock_.Later([this, life = life_] {
    if (life == life_) Run();
  });
}

void Site::Run() {
  if (paused_) return;
  wake_due_ = false;
  Process& process = *process_;
  for (;;) {
    if (disk_.stopped() || steps_to_death_ == 0) return Die(death_.value_or(Death::kKill));
    if (steps_to_death_ > 0) steps_to_death_--;
    const absl::StatusOr<bool> went_on = process.loop->Step();
    if (!went_on.ok()) {
      INFO("seed " << options_.seed << ": " << went_on.status());
      REQUIRE((faults_ || disk_.stopped()));
      return Die(death_.value_or(Death::kKill));
    }
    if (!process.mailbox.HasUpTo(process.mailbox.newest())) groups_.MailTaken();
    if (!*went_on) break;
    CheckTurn();
  }
  if (!disk_is_ill() && !process.loop->waits_for_store()) idle_us_ = now_us();
  // What one turn has done is told in more steps than one.
  if (watched_ == revisions().newest()) orders_.CheckQuotas();
  const int64_t wake_us = process.loop->wake_us();
  if (wake_us == Loop::kNever || (process.wake_us > now_us() && process.wake_us <= wake_us)) return;
  process.wake_us = std::max(wake_us, now_us() + 1);
  At(process.wake_us, [this, life = life_] {
    if (life == life_) Ring();
  });
}

void Site::PauseCoordinator(int64_t us) {
  if (!process_ || std::exchange(paused_, true)) return;
  if (us > options_.core.lease_ms * 1000 / 4) frozen_since_us_ = now_us();
  At(now_us() + us, [this] {
    if (frozen_since_us_ >= 0) stood_still_us_ += now_us() - std::exchange(frozen_since_us_, -1);
    paused_ = false;
    wake_due_ = false;
    groups_.WaitsStartOver(awake_us());
    Ring();
  });
}

void Site::EndCoordinator(Death death, int64_t steps) {
  if (!process_) return;
  death_ = death;
  steps_to_death_ = steps;
  Ring();
}

void Site::StopCoordinator() {
  stopped_life_ = life_;
  const auto end = [this, life = life_] {
    if (life == life_) EndCoordinator(Death::kKill, 0);
  };
  Ask(StopRequested{}, [end](const absl::StatusOr<ReplyValue>&) { end(); });
  At(now_us() + kStopPatienceUs, end);
}

void Site::EndCoordinatorAtEffect(Death death, int64_t effects) {
  death_ = death;
  disk_.StopAfter(effects);
}

void Site::SpareCoordinator() {
  if (disk_.stopped()) return;
  steps_to_death_ = -1;
  death_.reset();
  disk_.StopAfter(-1);
}

void Site::Die(Death death) {
  deaths_++;
  life_++;
  groups_.CoordinatorDied();
  promises_.CoordinatorDied();
  orders_.CoordinatorDied();
  disk_.StopAfter(0);  // it does nothing more, not even close its files
  process_.reset();
  death == Death::kPowerLoss ? disk_.PowerLoss() : disk_.Restart();
  wake_due_ = false;
  steps_to_death_ = -1;
  death_.reset();
  for (auto& [request, on_reply] : std::exchange(replies_, {})) {
    clock_.Later([on_reply = std::move(on_reply)] { on_reply(Gone()); });
  }
  for (const auto& worker : workers_) worker->EndStream(Gone());
  At(now_us() + kRestartUs + clock_.Delay(), [this] { StartCoordinator(); });
}

bool Site::Post(decltype(server::Event::content) content) {
  if (!process_) return false;
  if (const auto* connected = std::get_if<WorkerConnected>(&content)) {
    groups_.Introduced(connected->connection, connected->hello);
  }
  if (const auto* said = std::get_if<WorkerSaid>(&content)) {
    groups_.Heard(said->connection, said->message, awake_us());
  }
  if (const auto* gone = std::get_if<WorkerGone>(&content)) {
    groups_.StreamEnded(gone->connection, awake_us());
    ++streams_ended_;
  }
  return process_->mailbox.Post(std::move(content));
}

const Loop& Site::loop() const { return *process_->loop; }

const RevisionLog& Site::revisions() const {
  REQUIRE(process_);
  return process_->revisions;
}

absl::StatusOr<RevisionLog::Found> Site::ReadRevisions(int64_t after, int64_t limit) {
  REQUIRE(process_);
  auto found = process_->revisions.Read(after, limit);
  return found.ok() && found->in_store ? process_->revisions.ReadStored(after, limit) : found;
}

storage::JobStore& Site::store() {
  REQUIRE(process_);
  return *process_->store;
}

// ---- clients ----

void Site::Ask(Request request, OnReply on_reply) {
  const uint64_t number = next_request_++;
  if (auto* create = std::get_if<CreateJob>(&request)) create->random = random()();
  Request asked = request;
  if (!Post(Requested{number, std::move(request)})) {
    return clock_.Later([on_reply = std::move(on_reply)] { on_reply(Gone()); });
  }
  orders_.Asked(number, asked);
  promises_.Asked(number, std::move(asked), awake_us());
  replies_[number] = std::move(on_reply);
}

void Site::Answer(uint64_t request, absl::StatusOr<ReplyValue> value) {
  promises_.Answered(request, value);
  orders_.Answered(request, value);
  auto node = replies_.extract(request);
  if (node.empty()) return;
  clock_.Later(
      [on_reply = std::move(node.mapped()), value = std::move(value)] { on_reply(value); });
}

ReplyValue Site::Call(const std::function<Request()>& request) {
  std::optional<absl::StatusOr<ReplyValue>> answer;
  const auto ask = [&] {
    answer.reset();
    Ask(request(), [&](absl::StatusOr<ReplyValue> value) { answer = std::move(value); });
  };
  for (ask();; ask()) {
    RunUntil([&] { return answer.has_value(); }, 100'000);
    if (answer->ok()) return *std::move(*answer);
    INFO(answer->status());
    REQUIRE(absl::IsUnavailable(answer->status()));
    Sleep(100'000);
  }
}

absl::StatusOr<std::string> Site::WriteUpload(std::string_view bytes) {
  if (!serves()) return Gone();
  const std::string path = absl::StrCat(kRoot, "/uploads/sim-", next_upload_++);
  if (absl::Status status = storage::WriteSynced(files_, path, bytes); !status.ok()) return status;
  return path;
}

absl::StatusOr<std::string> Site::WriteUpload(const std::map<std::string, std::string>& files) {
  if (!serves()) return Gone();
  const std::string path = absl::StrCat(kRoot, "/uploads/sim-", next_upload_++);
  if (absl::Status status = files_.MakeDirectory(path); !status.ok()) return status;
  for (const auto& [name, bytes] : files) {
    absl::Status status = storage::WriteSynced(files_, storage::JoinPath(path, name), bytes);
    if (!status.ok()) return status;
  }
  if (absl::Status status = files_.SyncDirectory(path); !status.ok()) return status;
  return path;
}

RegisterModel Site::ModelRequest(const std::string& name) {
  RegisterModel request;
  const BaseModel& model = ModelNamed(name);
  const std::string path = house_.directory / model.folder;
  const bool tiny = &model == &TinyModel();  // it may be spoilt
  request.model.set_name(name);
  request.model.set_path(path);
  request.model.set_fingerprint(tiny ? fingerprint_
                                     : storage::ModelDirectory::Open(path)->fingerprint());
  request.config_json = model.config_json;
  request.request_id = {"model " + name, name};
  return request;
}

void Site::AddModels() {
  Call([this] { return ModelRequest("m"); });
  for (const int layers : options_.layers) {
    Call([this, layers] { return ModelRequest(NameOfLayers(layers)); });
  }
}

absl::StatusOr<CreateDataset> Site::DatasetRequest(const std::string& name, int64_t rows,
                                                   int64_t longest_max) {
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < rows; ++row) lengths.push_back(2 + row * 7 % (longest_max - 1));
  rows_[name] = lengths;
  const std::string bytes = house_.directory.Read(house_.AddTokens(name, lengths));
  CreateDataset request;
  request.dataset.set_name(name);
  request.dataset.set_rows(rows);
  request.dataset.set_size_bytes(static_cast<int64_t>(bytes.size()));
  request.dataset.set_sha256(storage::Sha256::Of(bytes));
  absl::StatusOr<std::string> upload = WriteUpload(bytes);
  if (!upload.ok()) return upload.status();
  request.upload = *std::move(upload);
  request.request_id = {"dataset " + name, absl::StrCat(name, " of ", rows)};
  return request;
}

void Site::AddDataset(const std::string& name, int64_t rows, int64_t longest_max) {
  Call([&] { return *DatasetRequest(name, rows, longest_max); });
}

int64_t Site::LongestRowOf(const v1::Job& job) const {
  int64_t longest = 0;
  for (const std::string* dataset : {&job.training_dataset(), &job.validation_dataset()}) {
    const auto rows = rows_.find(*dataset);
    if (rows != rows_.end()) longest = std::max(longest, std::ranges::max(rows->second));
  }
  return longest;
}

void Site::Log(Note::Level, const std::string& message) {
  if (message.ends_with("' again")) windows_sent_again_++;
}

}  // namespace lorad::sim
