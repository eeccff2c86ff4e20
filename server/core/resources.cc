// Models, datasets and adapters: what jobs refer to by name.
#include <cassert>

#include "absl/strings/str_cat.h"
#include "server/core/model_shape.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "server/validation/page_token.h"
#include "storage/model_description.h"

namespace lorad::server {
namespace {

constexpr int64_t kRetryMs = 1000;

// One page of a map in the order of names, from behind the token's.
template <class Response, class Map, class Add>
absl::StatusOr<Response> Page(const char* scope, const Map& map, int page_size,
                              const std::string& token, Add add) {
  absl::StatusOr<std::string> cursor = ReadPageToken(scope, token);
  if (!cursor.ok()) return cursor.status();
  if (page_size <= 0) page_size = kPageSizeDefault;
  Response response;
  auto entry = cursor->empty() ? map.begin() : map.upper_bound(*cursor);
  std::string last;
  for (int i = 0; entry != map.end() && i < page_size; ++entry, ++i) {
    add(response, entry->second);
    last = entry->first;
  }
  if (entry != map.end()) response.set_next_page_token(MakePageToken(scope, last));
  return response;
}

}  // namespace

absl::Status Core::State::RefuseUse(const std::string& kind, const std::string& name) const {
  for (const std::string& live : live_) {
    const v1::Job& job = jobs_.at(live)->job();
    const bool uses = kind == kModelKind ? job.base_model() == name
                      : kind == kDatasetKind
                          ? job.training_dataset() == name || job.validation_dataset() == name
                          : job.adapter().init_from() == name;
    if (uses) {
      return PreconditionFailed("IN_USE", absl::StrCat("job ", live),
                                absl::StrCat("the ", kind, " '", name, "' is used by job '", live,
                                             "': wait until it ends, or cancel it"));
    }
  }
  return absl::OkStatus();
}

// ---- models ----

void Core::State::On(uint64_t request, const RegisterModel& content) {
  if (AnsweredBefore(request, kModelKind, content.request_id)) return;
  if (!turn_.room().ok()) return turn_.Fail(request, turn_.room());
  const std::string& name = content.model.name();
  if (models_.contains(name)) return turn_.Fail(request, AlreadyExists(kModelKind, name));
  auto description = storage::DescribeModel(content.config_json);
  if (!description.ok()) return turn_.Fail(request, description.status());
  ModelState& model = models_[name];
  *model.record.mutable_model() = content.model;
  model.record.set_config_json(content.config_json);
  turn_.Stamp(model.record.mutable_model()->mutable_create_time());
  model.shape = ShapeOf(*description);
  turn_.Put(storage::PutRecord(kModelKind, name, model.record.SerializeAsString()));
  KeepRequest(kModelKind, content.request_id, name, model.record.model());
  turn_.Answer(request, model.record.model());
}

void Core::State::On(uint64_t request, const v1::GetModelRequest& content) {
  absl::StatusOr<ReplyValue> value = Find(kModelKind, content.name());
  value.ok() ? turn_.Answer(request, *std::move(value)) : turn_.Fail(request, value.status());
}

void Core::State::On(uint64_t request, const v1::ListModelsRequest& content) {
  auto page = Page<v1::ListModelsResponse>(
      "models", models_, content.page_size(), content.page_token(),
      [](auto& response, const auto& model) { *response.add_models() = model.record.model(); });
  page.ok() ? turn_.Answer(request, *std::move(page)) : turn_.Fail(request, page.status());
}

void Core::State::On(uint64_t request, const v1::UnregisterModelRequest& content) {
  const auto found = models_.find(content.name());
  if (found == models_.end()) return turn_.Fail(request, NotFound(kModelKind, content.name()));
  if (absl::Status status = RefuseUse(kModelKind, content.name()); !status.ok()) {
    return turn_.Fail(request, status);
  }
  // A group without jobs may still hold its weights.
  std::vector<std::string> groups;
  for (const auto& [name, group] : groups_) {
    if (group.base_model == content.name()) groups.push_back(name);
  }
  for (const std::string& name : groups) {
    Dissolve(*FindGroup(name), "its base model was unregistered");
  }
  turn_.Put(storage::DeleteRecord(kModelKind, content.name()));
  std::erase_if(times_, [&](const auto& entry) { return entry.first.first == content.name(); });
  memory_.erase(content.name());
  models_.erase(found);
  turn_.Answer(request, std::monostate());
}

// ---- uploads ----

// A path is never used twice, also where the wall's clock goes back: a removal that is still under
// way cannot hit what came after it.
template <class Content>
void Core::State::MoveIntoPlace(uint64_t request, const char* kind, const std::string& name,
                                bool exists, const Content& content, const char* ending) {
  if (AnsweredBefore(request, kind, content.request_id)) {
    return turn_.Do(RemovePath{content.upload});
  }
  if (!content.request_id.id.empty()) {
    for (auto& [number, move] : moves_) {
      const Content* first = std::get_if<Content>(&move.content);
      if (!first || first->request_id.id != content.request_id.id) continue;
      turn_.Do(RemovePath{content.upload});
      if (first->request_id.content != content.request_id.content) {
        return turn_.Fail(request, RequestIdReused(content.request_id.id));
      }
      move.requests.push_back(request);
      return;
    }
  }
  if (!turn_.room().ok()) {
    turn_.Do(RemovePath{content.upload});
    return turn_.Fail(request, turn_.room());
  }
  if (exists || !names_pending_.insert({kind, name}).second) {
    turn_.Do(RemovePath{content.upload});
    return turn_.Fail(request, AlreadyExists(kind, name));
  }
  const uint64_t number = turn_.NewNumber();
  const std::string path = absl::StrCat(kind, "s/", name, "-", turn_.starts(), "-", number, ending);
  moves_[number] = {{request}, path, content};
  turn_.Do(MoveUpload{number, content.upload, path});
}

// ---- datasets ----

void Core::State::On(uint64_t request, const CreateDataset& content) {
  const std::string& name = content.dataset.name();
  MoveIntoPlace(request, kDatasetKind, name, datasets_.contains(name), content, ".jsonl");
}

void Core::State::On(uint64_t request, const v1::GetDatasetRequest& content) {
  absl::StatusOr<ReplyValue> value = Find(kDatasetKind, content.name());
  value.ok() ? turn_.Answer(request, *std::move(value)) : turn_.Fail(request, value.status());
}

void Core::State::On(uint64_t request, const v1::ListDatasetsRequest& content) {
  auto page = Page<v1::ListDatasetsResponse>(
      "datasets", datasets_, content.page_size(), content.page_token(),
      [](auto& response, const auto& record) { *response.add_datasets() = record.dataset(); });
  page.ok() ? turn_.Answer(request, *std::move(page)) : turn_.Fail(request, page.status());
}

void Core::State::On(uint64_t request, const v1::DeleteDatasetRequest& content) {
  const auto found = datasets_.find(content.name());
  if (found == datasets_.end()) return turn_.Fail(request, NotFound(kDatasetKind, content.name()));
  if (absl::Status status = RefuseUse(kDatasetKind, content.name()); !status.ok()) {
    return turn_.Fail(request, status);
  }
  turn_.Put(storage::DeleteRecord(kDatasetKind, content.name()));
  const std::string prefix = found->second.dataset().sha256() + "/";
  for (auto rows = rows_.lower_bound(prefix);
       rows != rows_.end() && rows->first.starts_with(prefix);) {
    turn_.Put(storage::DeleteRecord(kRowsKind, rows->first));
    rows = rows_.erase(rows);
  }
  turn_.Do(RemovePath{found->second.path()});
  datasets_.erase(found);
  turn_.Answer(request, std::monostate());
}

// ---- adapters ----

void Core::State::On(uint64_t request, const ImportAdapter& content) {
  const std::string& name = content.adapter.name();
  MoveIntoPlace(request, kAdapterKind, name, adapters_.contains(name), content, "");
}

void Core::State::On(uint64_t request, const v1::GetAdapterRequest& content) {
  absl::StatusOr<ReplyValue> value = Find(kAdapterKind, content.name());
  value.ok() ? turn_.Answer(request, *std::move(value)) : turn_.Fail(request, value.status());
}

void Core::State::On(uint64_t request, const v1::ListAdaptersRequest& content) {
  auto page = Page<v1::ListAdaptersResponse>(
      "adapters", adapters_, content.page_size(), content.page_token(),
      [](auto& response, const auto& record) { *response.add_adapters() = record.adapter(); });
  page.ok() ? turn_.Answer(request, *std::move(page)) : turn_.Fail(request, page.status());
}

void Core::State::On(uint64_t request, const v1::DeleteAdapterRequest& content) {
  const auto found = adapters_.find(content.name());
  if (found == adapters_.end()) return turn_.Fail(request, NotFound(kAdapterKind, content.name()));
  if (absl::Status status = RefuseUse(kAdapterKind, content.name()); !status.ok()) {
    return turn_.Fail(request, status);
  }
  turn_.Put(storage::DeleteRecord(kAdapterKind, content.name()));
  turn_.Do(RemovePath{found->second.path()});
  adapters_.erase(found);
  turn_.Answer(request, std::monostate());
}

void Core::State::OnMoved(const UploadMoved& moved) {
  auto node = moves_.extract(moved.number);
  assert(!node.empty());
  const PendingMove& move = node.mapped();
  const auto* dataset = std::get_if<CreateDataset>(&move.content);
  const auto* adapter = std::get_if<ImportAdapter>(&move.content);
  const char* kind = dataset ? kDatasetKind : kAdapterKind;
  const std::string& name = dataset ? dataset->dataset.name() : adapter->adapter.name();
  names_pending_.erase({kind, name});
  if (!moved.status.ok()) {
    // What is not there is a folder of ours, not what the caller has named.
    const absl::Status status =
        absl::IsNotFound(moved.status)
            ? Unavailable("UPLOAD_NOT_WRITTEN", std::string(moved.status.message()), kRetryMs)
            : moved.status;
    for (const uint64_t request : move.requests) turn_.Fail(request, status);
    return;
  }
  if (dataset) {
    records::DatasetRecord& record = datasets_[name];
    *record.mutable_dataset() = dataset->dataset;
    record.set_path(move.path);
    turn_.Stamp(record.mutable_dataset()->mutable_create_time());
    turn_.Put(storage::PutRecord(kind, name, record.SerializeAsString()));
    KeepRequest(kind, dataset->request_id, name, record.dataset());
    for (const uint64_t request : move.requests) turn_.Answer(request, record.dataset());
  } else {
    records::AdapterRecord& record = adapters_[name];
    *record.mutable_adapter() = adapter->adapter;
    record.set_path(move.path);
    turn_.Stamp(record.mutable_adapter()->mutable_create_time());
    turn_.Put(storage::PutRecord(kind, name, record.SerializeAsString()));
    KeepRequest(kind, adapter->request_id, name, record.adapter());
    for (const uint64_t request : move.requests) turn_.Answer(request, record.adapter());
  }
}

}  // namespace lorad::server
