// A site's coordinator as its workers reach it, and as it reaches them.
#include <catch2/catch.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/events/data_dir.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "storage/adapters/checkpoint.h"
#include "storage/adapters/peft.h"
#include "storage/models/model_description.h"
#include "tests/sim/site.h"
#include "tests/storage/published_configs.h"
#include "tests/storage/safetensors_bytes.h"

namespace lorad::sim {
namespace {

// As worker/ would make it of a job of that rank.
std::string ShardOf(const worker::v1::UploadShardRequest::Header& header, int rank) {
  const auto description = storage::DescribeModel(storage::kTiny);
  REQUIRE(description.ok());
  std::vector<storage::TensorEntry> entries;
  storage::PeftConfig config;
  config.rank = rank;
  config.target_modules = {"q_proj"};
  for (const auto& tensor :
       storage::PeftTensors(storage::ResolveTargets(config, *description).modules)) {
    for (const char* suffix : {"", storage::kFirstMomentSuffix, storage::kSecondMomentSuffix}) {
      entries.push_back({tensor.name + suffix, storage::TensorType::kF32, tensor.shape});
    }
  }
  return storage::SafetensorsOf(
      std::move(entries),
      storage::ShardMetadata({header.job(), header.step(), header.numerics_id()}));
}

}  // namespace

void Site::CutStream(int i) { workers_[i]->EndStream(absl::UnavailableError("the network broke")); }

void Site::Send(uint64_t connection, worker::v1::CoordinatorMessage message) {
  WorkerProcess* const to = FindConnection(workers_, connection);
  promises_.Sent(connection, message, to == nullptr ? nullptr : &to->hello());
  if (to != nullptr && message.has_form_group()) orders_.CheckForming(to->hello().worker());
  if (to != nullptr) to->Send(std::move(message));
}

void Site::Close(uint64_t connection, const absl::Status& reason) {
  closings_++;
  promises_.CheckClose(connection, reason, options_.core.lease_ms * 1000, awake_us());
  promises_.StreamEnded(connection);
  if (WorkerProcess* const to = FindConnection(workers_, connection)) to->EndStream(reason);
}

// Of a job that is not there nobody looks at it.
int Site::RankOf(const std::string& job) {
  const auto stored = store().GetRecord(server::kJobKind, job);
  server::records::JobRecord record;
  if (!stored.ok() || !stored->has_value() || !record.ParseFromString(**stored)) return 1;
  return record.job().adapter().rank();
}

void Site::TakeShard(const worker::v1::UploadShardRequest::Header& header, OnTaken on_taken) {
  if (!serves()) return on_taken(absl::UnavailableError("nobody is there"));
  const absl::StatusOr<std::string> path = WriteUpload(ShardOf(header, RankOf(header.job())));
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
