// Answers that are kept by their request_id (request_ids.h).
#include "absl/strings/str_cat.h"
#include "server/core/state.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

std::string RequestKey(const std::string& kind, const std::string& id) { return kind + "/" + id; }

template <class Resource>
absl::StatusOr<ReplyValue> ParseAs(const std::string& bytes) {
  Resource resource;
  if (!resource.ParseFromString(bytes)) {
    return Error(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                 "the answer that was stored for this request_id cannot be read");
  }
  return ReplyValue(std::move(resource));
}

absl::StatusOr<ReplyValue> ParseResource(std::string_view kind, const std::string& bytes) {
  if (kind == kJobKind) return ParseAs<v1::Job>(bytes);
  if (kind == kModelKind) return ParseAs<v1::Model>(bytes);
  if (kind == kDatasetKind) return ParseAs<v1::Dataset>(bytes);
  return ParseAs<v1::Adapter>(bytes);
}

}  // namespace

bool Core::State::AnsweredBefore(uint64_t request, const char* kind, const RequestId& id) {
  if (id.id.empty()) return false;
  const RequestIds::Kept* kept = requests_.Find(RequestKey(kind, id.id));
  if (!kept) return false;
  if (!kept->IsOf(id.content)) {
    turn_.Fail(request, RequestIdReused(id.id));
    return true;
  }
  // A job has gone on meanwhile. Nothing else changes, but another may have taken its name.
  const bool is_job_there = kind == std::string_view(kJobKind) && FindEntry(kept->name);
  absl::StatusOr<ReplyValue> value = kept->answer.empty() || is_job_there
                                         ? Find(kind, kept->name)
                                         : ParseResource(kind, kept->answer);
  value.ok() ? turn_.Answer(request, *std::move(value)) : turn_.Fail(request, value.status());
  return true;
}

void Core::State::KeepRequest(const char* kind, const RequestId& id, const std::string& name,
                              const google::protobuf::Message& made) {
  const std::string key = RequestKey(kind, id.id);
  // Of two uploads under one id, the one that was there first counts.
  if (id.id.empty() || requests_.Find(key)) return;
  for (const auto& [changed, record] :
       requests_.Keep(key, id.content, name, made.SerializeAsString(), turn_.SteadyWallUs())) {
    turn_.Put(storage::PutRecord(kRequestKind, changed, record.SerializeAsString()));
  }
  PruneRequests();
}

void Core::State::PruneRequests() {
  for (const std::string& key : requests_.Prune(turn_.SteadyWallUs())) {
    turn_.Put(storage::DeleteRecord(kRequestKind, key));
  }
}

absl::StatusOr<ReplyValue> Core::State::Find(const std::string& kind, const std::string& name) {
  if (kind == kJobKind) {
    if (JobState* job = FindJob(name)) {
      if (touched_.contains(name)) Publish(*job);
      return ReplyValue(View(*job));
    }
  } else if (kind == kModelKind) {
    if (auto found = models_.find(name); found != models_.end()) {
      return ReplyValue(found->second.record.model());
    }
  } else if (kind == kDatasetKind) {
    if (auto found = datasets_.find(name); found != datasets_.end()) {
      return ReplyValue(found->second.dataset());
    }
  } else if (kind == kAdapterKind) {
    if (auto found = adapters_.find(name); found != adapters_.end()) {
      return ReplyValue(found->second.adapter());
    }
  }
  return NotFound(kind, name);
}

}  // namespace lorad::server
