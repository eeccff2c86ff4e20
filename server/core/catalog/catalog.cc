#include "server/core/catalog/catalog.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "planner/stages/place.h"
#include "server/core/catalog/model_shape.h"
#include "server/core/catalog/stored.h"
#include "server/core/events/store_kinds.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "server/validation/page_token.h"
#include "storage/models/model_description.h"

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

template <class Record>
const Record* FindIn(const std::map<std::string, Record>& records, const std::string& name) {
  const auto found = records.find(name);
  return found == records.end() ? nullptr : &found->second;
}

// A block, half a layer, is the least that a stage has.
std::string CheckStages(int32_t stages, const planner::ModelShape& shape) {
  const int64_t most = std::min<int64_t>(2 * shape.layers, planner::kStagesMax);
  if (stages >= 0 && stages <= most) return "";
  return absl::StrCat("must be from 1 to ", most, ", or 0 for as few as hold the model, got ",
                      stages);
}

std::shared_ptr<const std::string> TemplateOf(const v1::Model& model) {
  if (model.chat_template().empty()) return nullptr;
  return std::make_shared<const std::string>(model.chat_template());
}

}  // namespace

absl::Status Catalog::Load(const StoredState& stored) {
  for (const auto& entry : stored.models) {
    ModelState model;
    if (auto status = ParseStored(kModelKind, entry, &model.record); !status.ok()) return status;
    auto description = storage::DescribeModel(model.record.config_json());
    if (!description.ok()) return description.status();
    model.shape = std::make_shared<const planner::ModelShape>(ShapeOf(*description));
    SetShape(*model.shape, model.record.mutable_model());  // an older release did not keep it
    model.chat_template = TemplateOf(model.record.model());
    models_[entry.first] = std::move(model);
  }
  for (const auto& entry : stored.datasets) {
    if (auto status = ParseStored(kDatasetKind, entry, &datasets_[entry.first]); !status.ok()) {
      return status;
    }
  }
  for (const auto& entry : stored.adapters) {
    if (auto status = ParseStored(kAdapterKind, entry, &adapters_[entry.first]); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

// ---- what is there ----

absl::StatusOr<ReplyValue> Catalog::Find(const std::string& kind, const std::string& name) const {
  if (kind == kModelKind) {
    if (const auto* model = FindIn(models_, name)) return ReplyValue(model->record.model());
  } else if (kind == kDatasetKind) {
    if (const auto* dataset = FindIn(datasets_, name)) return ReplyValue(dataset->dataset());
  } else if (kind == kAdapterKind) {
    if (const auto* adapter = FindIn(adapters_, name)) return ReplyValue(adapter->adapter());
  }
  return NotFound(kind, name);
}

bool Catalog::Has(const std::string& kind, const std::string& name) const {
  return kind == kModelKind     ? HasModel(name)
         : kind == kDatasetKind ? HasDataset(name)
                                : HasAdapter(name);
}

std::vector<std::string> Catalog::Paths() const {
  std::vector<std::string> paths;
  for (const auto& [name, dataset] : datasets_) paths.push_back(dataset.path());
  for (const auto& [name, adapter] : adapters_) paths.push_back(adapter.path());
  return paths;
}

void Catalog::Get(uint64_t request, const char* kind, const std::string& name) {
  absl::StatusOr<ReplyValue> value = Find(kind, name);
  value.ok() ? turn_.Answer(request, *std::move(value)) : turn_.Fail(request, value.status());
}

void Catalog::On(uint64_t request, const v1::GetModelRequest& content) {
  Get(request, kModelKind, content.name());
}

void Catalog::On(uint64_t request, const v1::GetDatasetRequest& content) {
  Get(request, kDatasetKind, content.name());
}

void Catalog::On(uint64_t request, const v1::GetAdapterRequest& content) {
  Get(request, kAdapterKind, content.name());
}

void Catalog::On(uint64_t request, const v1::ListModelsRequest& content) {
  auto page =
      Page<v1::ListModelsResponse>("models", models_, content.page_size(), content.page_token(),
                                   [](auto& response, const auto& model) {
                                     v1::Model& listed = *response.add_models();
                                     listed = model.record.model();
                                     listed.clear_chat_template();
                                   });
  page.ok() ? turn_.Answer(request, *std::move(page)) : turn_.Fail(request, page.status());
}

void Catalog::On(uint64_t request, const v1::ListDatasetsRequest& content) {
  auto page = Page<v1::ListDatasetsResponse>(
      "datasets", datasets_, content.page_size(), content.page_token(),
      [](auto& response, const auto& record) { *response.add_datasets() = record.dataset(); });
  page.ok() ? turn_.Answer(request, *std::move(page)) : turn_.Fail(request, page.status());
}

void Catalog::On(uint64_t request, const v1::ListAdaptersRequest& content) {
  auto page = Page<v1::ListAdaptersResponse>(
      "adapters", adapters_, content.page_size(), content.page_token(),
      [](auto& response, const auto& record) { *response.add_adapters() = record.adapter(); });
  page.ok() ? turn_.Answer(request, *std::move(page)) : turn_.Fail(request, page.status());
}

// ---- what comes and goes ----

template <class Content>
bool Catalog::AnsweredBefore(uint64_t request, const char* kind, const Content& content) {
  return answers_.AnsweredBefore(request, kind, content.request_id,
                                 [&](const std::string& name) { return Find(kind, name); });
}

void Catalog::On(uint64_t request, const RegisterModel& content) {
  if (AnsweredBefore(request, kModelKind, content)) return;
  if (!turn_.room().ok()) return turn_.Fail(request, turn_.room());
  const std::string& name = content.model.name();
  if (models_.contains(name)) return turn_.Fail(request, AlreadyExists(kModelKind, name));
  auto description = storage::DescribeModel(content.config_json);
  if (!description.ok()) return turn_.Fail(request, description.status());
  auto shape = std::make_shared<const planner::ModelShape>(ShapeOf(*description));
  if (const std::string wrong = CheckStages(content.model.stages(), *shape); !wrong.empty()) {
    return turn_.Fail(request, InvalidFields("request", {{"stages", wrong}}));
  }
  ModelState& model = models_[name];
  *model.record.mutable_model() = content.model;
  model.record.set_config_json(content.config_json);
  turn_.Stamp(model.record.mutable_model()->mutable_create_time());
  model.chat_template = TemplateOf(model.record.model());
  model.shape = std::move(shape);
  SetShape(*model.shape, model.record.mutable_model());
  turn_.Put(storage::PutRecord(kModelKind, name, model.record.SerializeAsString()));
  answers_.Keep(kModelKind, content.request_id, name, model.record.model());
  turn_.Answer(request, model.record.model());
}

void Catalog::On(uint64_t request, const v1::UpdateModelRequest& content) {
  const auto found = models_.find(content.model().name());
  if (found == models_.end()) {
    return turn_.Fail(request, NotFound(kModelKind, content.model().name()));
  }
  v1::Model& model = *found->second.record.mutable_model();
  const int32_t stages = content.model().stages();
  if (const std::string wrong = CheckStages(stages, *found->second.shape); !wrong.empty()) {
    return turn_.Fail(request, InvalidFields("request", {{"model.stages", wrong}}));
  }
  model.set_stages(stages);
  turn_.Put(storage::PutRecord(kModelKind, model.name(), found->second.record.SerializeAsString()));
  turn_.Answer(request, model);
}

template <class Content>
void Catalog::MoveIntoPlace(uint64_t request, const char* kind, const std::string& name,
                            const Content& content, const char* ending) {
  if (AnsweredBefore(request, kind, content)) return turn_.Do(RemovePath{content.upload});
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
  if (Has(kind, name) || !names_pending_.insert({kind, name}).second) {
    turn_.Do(RemovePath{content.upload});
    return turn_.Fail(request, AlreadyExists(kind, name));
  }
  const uint64_t number = turn_.NewNumber();
  const std::string path = absl::StrCat(kind, "s/", name, "-", turn_.starts(), "-", number, ending);
  moves_[number] = {{request}, path, content};
  turn_.Do(MoveUpload{number, content.upload, path});
}

void Catalog::On(uint64_t request, const CreateDataset& content) {
  MoveIntoPlace(request, kDatasetKind, content.dataset.name(), content, ".jsonl");
}

void Catalog::On(uint64_t request, const ImportAdapter& content) {
  MoveIntoPlace(request, kAdapterKind, content.adapter.name(), content, "");
}

void Catalog::OnMoved(const UploadMoved& moved) {
  auto node = moves_.extract(moved.number);
  assert(!node.empty());
  const Move& move = node.mapped();
  const auto* dataset = std::get_if<CreateDataset>(&move.content);
  const auto* adapter = std::get_if<ImportAdapter>(&move.content);
  const char* kind = dataset ? kDatasetKind : kAdapterKind;
  const std::string& name = dataset ? dataset->dataset.name() : adapter->adapter.name();
  names_pending_.erase({kind, name});
  if (!moved.status.ok()) {
    // The path that is missing is a folder of ours, not what the caller has named.
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
    answers_.Keep(kind, dataset->request_id, name, record.dataset());
    for (const uint64_t request : move.requests) turn_.Answer(request, record.dataset());
  } else {
    records::AdapterRecord& record = adapters_[name];
    *record.mutable_adapter() = adapter->adapter;
    record.set_path(move.path);
    turn_.Stamp(record.mutable_adapter()->mutable_create_time());
    turn_.Put(storage::PutRecord(kind, name, record.SerializeAsString()));
    answers_.Keep(kind, adapter->request_id, name, record.adapter());
    for (const uint64_t request : move.requests) turn_.Answer(request, record.adapter());
  }
}

absl::Status Catalog::CheckDelete(const std::string& kind, const std::string& name,
                                  const std::string& user) const {
  if (!Has(kind, name)) return NotFound(kind, name);
  if (user.empty()) return absl::OkStatus();
  return PreconditionFailed("IN_USE", absl::StrCat("job ", user),
                            absl::StrCat("the ", kind, " '", name, "' is used by job '", user,
                                         "': wait until it ends, or cancel it"));
}

void Catalog::Delete(const std::string& kind, const std::string& name) {
  assert(Has(kind, name));
  turn_.Put(storage::DeleteRecord(kind, name));
  if (kind == kModelKind) {
    models_.erase(name);
  } else if (kind == kDatasetKind) {
    turn_.Do(RemovePath{Dataset(name).path()});
    turn_.Do(CloseRows{Dataset(name).path()});
    datasets_.erase(name);
  } else {
    turn_.Do(RemovePath{Adapter(name).path()});
    adapters_.erase(name);
  }
}

// ---- invariants ----

absl::Status Catalog::CheckInvariants() const {
  const auto broken = [](const std::string& what) {
    return absl::InternalError("catalog: " + what);
  };
  for (const auto& [name, model] : models_) {
    if (model.record.model().name() != name) return broken("a model under the name " + name);
  }
  for (const auto& [name, record] : datasets_) {
    if (record.dataset().name() != name) return broken("a dataset under the name " + name);
  }
  for (const auto& [name, record] : adapters_) {
    if (record.adapter().name() != name) return broken("an adapter under the name " + name);
  }
  std::set<std::pair<std::string, std::string>> moving;
  for (const auto& [number, move] : moves_) {
    const auto* dataset = std::get_if<CreateDataset>(&move.content);
    const std::string& name =
        dataset ? dataset->dataset.name() : std::get<ImportAdapter>(move.content).adapter.name();
    const char* kind = dataset ? kDatasetKind : kAdapterKind;
    if (move.requests.empty()) return broken("nobody waits for the upload of " + name);
    if (!moving.insert({kind, name}).second) return broken("two uploads of " + name);
    if (Has(kind, name)) return broken("an upload of what is there: " + name);
  }
  if (moving != names_pending_) return broken("names are being made by no upload");
  return absl::OkStatus();
}

}  // namespace lorad::server
