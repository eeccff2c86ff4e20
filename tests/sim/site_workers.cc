// A site's coordinator as its workers reach it, and as it reaches them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/events/data_dir.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "storage/adapters/checkpoint.h"
#include "storage/adapters/peft.h"
#include "tests/sim/site.h"

namespace lorad::sim {

void Site::CutStream(int i) { workers_[i]->EndStream(absl::UnavailableError("the network broke")); }

void Site::Send(uint64_t connection, worker::v1::CoordinatorMessage message) {
  WorkerProcess* const to = FindConnection(workers_, connection);
  groups_.Sent(connection, message, to == nullptr ? nullptr : &to->hello(), awake_us());
  if (to != nullptr && message.has_form_group()) orders_.CheckForming(to->hello().worker());
  for (const worker::v1::Operation& operation : message.window().operations()) {
    if (!operation.has_slot()) continue;
    if (operation.slot().rank() > 0) ranks_[operation.slot().job()] = operation.slot().rank();
    const v1::Job job = JobOf(operation.slot().job());
    schedules_[job.name()] = {.schedule = planner::Schedule::kConstant,  // as all jobs here
                              .peak = job.training().learning_rate(),
                              .warmup_steps = job.training().warmup_steps(),
                              .total_steps = job.total_steps()};
  }
  if (to != nullptr) to->Send(std::move(message));
}

void Site::Close(uint64_t connection, const absl::Status& reason) {
  closings_++;
  groups_.CheckClose(connection, reason, awake_us());
  groups_.StreamEnded(connection, awake_us());
  if (WorkerProcess* const to = FindConnection(workers_, connection)) to->EndStream(reason);
}

v1::Job Site::JobOf(const std::string& job) {
  const auto stored = store().GetRecord(server::kJobKind, job);
  server::records::JobRecord record;
  if (!stored.ok() || !stored->has_value() || !record.ParseFromString(**stored)) return {};
  return record.job();
}

double Site::RateOf(const std::string& job, int64_t step) {
  const auto schedule = schedules_.find(job);
  return schedule == schedules_.end() ? 0 : planner::LearningRate(schedule->second, step - 1);
}

void Site::TakeShard(const worker::v1::UploadShardRequest::Header& header, OnTaken on_taken) {
  if (!serves()) return on_taken(absl::UnavailableError("nobody is there"));
  // One that lies has what the whole of the tiny model would be, of a job that nobody loaded.
  const GroupPromises::Portion* known = groups_.Find(header.epoch(), header.stage());
  const GroupPromises::Portion whole{&TinyModel(), planner::WholeModel(TinyModel().shape)};
  const GroupPromises::Portion& portion = known != nullptr ? *known : whole;
  const auto rank = ranks_.find(header.job());
  const absl::StatusOr<std::string> path =
      WriteUpload(ShardOf(*portion.model, portion.range, header,
                          rank == ranks_.end() ? 1 : static_cast<int>(rank->second)));
  if (!path.ok()) return on_taken(absl::UnavailableError(path.status().message()));
  Ask(server::ShardUploaded{header, *path},
      [on_taken = std::move(on_taken)](const absl::StatusOr<server::ReplyValue>& value) {
        on_taken(value.status());
      });
}

absl::StatusOr<int64_t> Site::Fetch(const std::string& text) {
  if (!process_ || disk_.stopped()) return absl::UnavailableError("nobody is there");
  const absl::StatusOr<server::SlotContent> content = server::ParseSlotContent(text);
  REQUIRE(content.ok());
  if (content->kind == server::SlotContent::Kind::kAdapter) {
    const auto tensors = files_.ReadAll(
        absl::StrCat("/data/", content->path, "/", storage::kAdapterModelFile), 1 << 20);
    if (!tensors.ok()) return absl::UnavailableError(tensors.status().message());
    return 0;
  }
  const auto found = storage::OpenCheckpoint(files_, "/data/" + content->path, true);
  if (!found.ok()) return absl::UnavailableError(found.status().message());
  return content->kind == server::SlotContent::Kind::kCheckpoint ? found->state.step : 0;
}

}  // namespace lorad::sim
