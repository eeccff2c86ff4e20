#include "server/core/catalog/answers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/core/events/store_kinds.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr int64_t kDayUs = int64_t{24} * 3600 * 1'000'000;
// So long after a start a clock may still be wrong.
constexpr int64_t kClockWrongUs = kDayUs / 24;

std::string RequestKey(const std::string& kind, const std::string& id) { return kind + "/" + id; }

template <class Resource>
absl::StatusOr<ReplyValue> ParseAs(const std::string& bytes) {
  Resource resource;
  if (!resource.ParseFromString(bytes)) {
    return StoreCorrupt("answer of this request_id");
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

Answers::Answers(const CoreOptions& options, Turn& turn)
    : turn_(turn),
      ids_({options.request_ids_days * kDayUs, options.request_ids_max,
            options.request_answers_max}) {}

bool Answers::AnsweredBefore(uint64_t request, const char* kind, const RequestId& id, Find find) {
  if (id.id.empty()) return false;
  const RequestIds::Kept* kept = ids_.Find(RequestKey(kind, id.id));
  if (!kept) return false;
  if (!kept->IsOf(id.content)) {
    turn_.Fail(request, RequestIdReused(id.id));
    return true;
  }
  // A job has gone on meanwhile. Nothing else changes, but another may have taken its name.
  const bool changes = kind == std::string_view(kJobKind);
  absl::StatusOr<ReplyValue> value = absl::NotFoundError("");
  if (changes || kept->answer.empty()) value = find(kept->name);
  if (!value.ok() && !kept->answer.empty()) value = ParseResource(kind, kept->answer);
  value.ok() ? turn_.Answer(request, *std::move(value)) : turn_.Fail(request, value.status());
  return true;
}

void Answers::Keep(const char* kind, const RequestId& id, const std::string& name,
                   const google::protobuf::Message& made) {
  const std::string key = RequestKey(kind, id.id);
  // The first of two uploads under one id counts.
  if (id.id.empty() || ids_.Find(key)) return;
  // The clock may have been behind at the start, and is ahead now: the id counts as of the later.
  const int64_t now_us = std::max(turn_.SteadyWallUs(), turn_.wall_us());
  for (const auto& [changed, record] :
       ids_.Keep(key, id.content, name, made.SerializeAsString(), now_us)) {
    turn_.Put(storage::PutRecord(kRequestKind, changed, record.SerializeAsString()));
  }
  Prune();
}

void Answers::Prune() {
  // A clock that is wrong when a machine is started is put right soon: ages count later, and by the
  // clock that says the least.
  const bool counts = turn_.run_us() >= kClockWrongUs;
  const int64_t now_us = counts ? std::min(turn_.SteadyWallUs(), turn_.wall_us()) : 0;
  for (const std::string& key : ids_.Prune(now_us)) {
    turn_.Put(storage::DeleteRecord(kRequestKind, key));
  }
}

}  // namespace lorad::server
