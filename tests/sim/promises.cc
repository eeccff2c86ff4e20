#include "tests/sim/promises.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "server/core/rules/job_states.h"
#include "server/store/committed_reads.h"

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: the promises are the server's

// A shard may wait for the report of its step for 10 s, a checkpoint for its disk.
constexpr int64_t kAnswerUs = 40'000'000;
constexpr int64_t kStopUs = 60'000'000;  // after that serve.cc stops all the same

// Collected first: the store takes no questions while it tells.
std::map<std::string, std::string> Records(storage::JobStore& store, const char* kind) {
  std::map<std::string, std::string> records;
  const absl::Status status =
      store.ScanRecords(kind, [&](std::string_view key, std::string_view value) {
        records.emplace(key, value);
        return absl::OkStatus();
      });
  REQUIRE(status.ok());
  return records;
}

records::JobRecord Parse(const std::string& bytes) {
  records::JobRecord record;
  REQUIRE(record.ParseFromString(bytes));
  return record;
}

}  // namespace

// ---- requests ----

void Promises::Asked(uint64_t number, const Request& request, int64_t now_us) {
  std::visit(
      [&](const auto& content) {
        if constexpr (requires { content.request_id.id; }) {
          asked_ids_.try_emplace(content.request_id.id, std::ssize(asked_ids_));
        }
      },
      request);
  const auto* shard = std::get_if<ShardUploaded>(&request);
  questions_[number] = {request, now_us, shard && groups_.IsOver(shard->header.epoch())};
}

void Promises::Answered(uint64_t number, const absl::StatusOr<ReplyValue>& value) {
  const auto question = questions_.extract(number);
  INFO("request " << number << ": " << value.status());
  REQUIRE_FALSE(question.empty());
  const Question& asked = question.mapped();
  if (!value.ok()) {
    // It was taken on before the store had no room: it happens, or not.
    const bool open = value.status().message().find("may be done after that") != std::string::npos;
    if (open) LeaveOpen(asked.request);
    REQUIRE_FALSE((open && IsCommittedRead(asked.request)));  // the disk answers that at any time
    return;
  }
  const auto* shard = std::get_if<ShardUploaded>(&asked.request);
  // Whose epoch is over may be told that its shard is there already, no more.
  if (shard && asked.stale) {
    const std::pair checkpoint{shard->header.job(), shard->header.step()};
    REQUIRE((checkpoints_.contains(checkpoint) || unsure_.contains(checkpoint)));
  }
  Keep(asked.request, *value);
}

// Its job's settings let it go, for newer and better ones, and it says so.
bool Promises::IsRemoved(storage::JobStore& store, const std::string& job, int64_t step) {
  const auto events = store.ReadSeries(kEventSeries, job, 0, 100'000);
  REQUIRE(events.ok());
  const std::string said = absl::StrCat("the checkpoint of step ", step, " was removed");
  return std::ranges::any_of(*events, [&](const storage::Entry& entry) {
    v1::Event event;
    REQUIRE(event.ParseFromString(entry.value));
    return event.reason() == "CHECKPOINT_REMOVED" && event.message().starts_with(said);
  });
}

void Promises::Made(const char* kind, const std::string& name, const RequestId& id) {
  if (!id.id.empty()) {
    const auto [first, is_new] = first_answers_.try_emplace({kind, id.id}, name);
    const bool is_same = first->second == name;
    REQUIRE((is_same || MayBeForgotten(id.id)));
    if (is_same && !is_new) return;  // it may be gone by now, and is answered as it was at first
    first->second = name;
  }
  made_[{kind, name}] = id.id;
}

bool Promises::MayBeForgotten(const std::string& request_id) const {
  return std::ssize(asked_ids_) - asked_ids_.at(request_id) > request_ids_max_;
}

void Promises::Keep(const Request& request, const ReplyValue& value) {
  if (const auto* model = std::get_if<RegisterModel>(&request)) {
    Made(kModelKind, model->model.name(), model->request_id);
  } else if (const auto* dataset = std::get_if<CreateDataset>(&request)) {
    Made(kDatasetKind, dataset->dataset.name(), dataset->request_id);
  } else if (const auto* adapter = std::get_if<ImportAdapter>(&request)) {
    Made(kAdapterKind, adapter->adapter.name(), adapter->request_id);
  } else if (const auto* job = std::get_if<CreateJob>(&request)) {
    const std::string& name = std::get<v1::Job>(value).name();
    if (job->validate_only || deleted_.contains(name)) return;
    Made(kJobKind, name, job->request_id);
  } else if (const auto* shard = std::get_if<ShardUploaded>(&request)) {
    checkpoints_.insert({shard->header.job(), shard->header.step()});
  } else if (const auto* cancel = std::get_if<v1::CancelJobRequest>(&request)) {
    const v1::Job::State state = std::get<v1::Job>(value).state();
    if (state == v1::Job::CANCELLING || state == v1::Job::CANCELLED) {
      cancelled_.insert(cancel->name());
    }
  } else {
    TakeBack(request, true);
  }
}

// It is deleted, or (not for sure) nobody knows.
void Promises::TakeBack(const Request& request, bool for_sure) {
  if (const auto* model = std::get_if<v1::UnregisterModelRequest>(&request)) {
    made_.erase({kModelKind, model->name()});
  } else if (const auto* dataset = std::get_if<v1::DeleteDatasetRequest>(&request)) {
    made_.erase({kDatasetKind, dataset->name()});
  } else if (const auto* adapter = std::get_if<v1::DeleteAdapterRequest>(&request)) {
    made_.erase({kAdapterKind, adapter->name()});
  } else if (const auto* checkpoint = std::get_if<v1::DeleteCheckpointRequest>(&request)) {
    checkpoints_.erase({checkpoint->job(), checkpoint->step()});
  } else if (const auto* job = std::get_if<v1::DeleteJobRequest>(&request)) {
    made_.erase({kJobKind, job->name()});
    cancelled_.erase(job->name());
    if (for_sure) deleted_.insert(job->name());
    std::erase_if(checkpoints_, [&](const auto& entry) { return entry.first == job->name(); });
  }
}

void Promises::LeaveOpen(const Request& request) {
  TakeBack(request, false);
  const auto* shard = std::get_if<ShardUploaded>(&request);
  if (shard) unsure_.insert({shard->header.job(), shard->header.step()});
}

void Promises::CoordinatorDied() {
  for (const auto& [number, question] : questions_) LeaveOpen(question.request);
  questions_.clear();
}

void Promises::CheckAnswers(int64_t now_us) const {
  // Who reads answers waits until there is a place for them.
  const auto found = std::ranges::find_if(questions_, [](const auto& question) {
    return !std::holds_alternative<ReadGeneration>(question.second.request);
  });
  if (found == questions_.end()) return;
  const auto& [number, oldest] = *found;
  const auto* shard = std::get_if<ShardUploaded>(&oldest.request);
  INFO("request " << number << " of kind " << oldest.request.index() << " "
                  << (shard ? shard->header.ShortDebugString() : "") << " was asked "
                  << now_us - oldest.asked_us << " us ago");
  const bool stops = std::holds_alternative<StopRequested>(oldest.request);
  REQUIRE(now_us - std::max(oldest.asked_us, ill_us_) <= (stops ? kStopUs : kAnswerUs));
}

void Promises::CheckJobs(storage::JobStore& store) const {
  std::set<std::string> request_ids;
  for (const auto& [name, bytes] : Records(store, kJobKind)) {
    const records::JobRecord record = Parse(bytes);
    INFO("job " << name << ", request_id " << record.request_id());
    REQUIRE_FALSE(deleted_.contains(name));
    const bool is_new =
        record.request_id().empty() || request_ids.insert(record.request_id()).second;
    REQUIRE((is_new || MayBeForgotten(record.request_id())));
    if (cancelled_.contains(name)) {
      REQUIRE((record.job().state() == v1::Job::CANCELLING ||
               record.job().state() == v1::Job::CANCELLED));
    }
    for (const auto& [job, step] : checkpoints_) {
      if (job != name) continue;
      INFO("checkpoint " << step);
      if (IsRemoved(store, job, step)) continue;
      const auto kept = store.ReadSeries(kCheckpointSeries, job, step - 1, 1);
      REQUIRE((kept.ok() && kept->size() == 1 && kept->front().number == step));
    }
  }
}

// What live jobs name is there, with its files.
void Promises::CheckUses(storage::JobStore& store, storage::Files& files) const {
  for (const auto& [name, bytes] : Records(store, kDatasetKind)) {
    records::DatasetRecord record;
    REQUIRE(record.ParseFromString(bytes));
    INFO("dataset " << name << " at " << record.path());
    REQUIRE(files.Exists("/data/" + record.path()));
  }
  for (const auto& [name, bytes] : Records(store, kJobKind)) {
    const v1::Job job = Parse(bytes).job();
    if (!IsLive(job.state())) continue;
    INFO("job " << job.ShortDebugString());
    const auto require = [&](const char* kind, const std::string& used) {
      INFO("it uses " << kind << " " << used);
      if (!used.empty()) REQUIRE(store.GetRecord(kind, used)->has_value());
    };
    require(kModelKind, job.base_model());
    require(kDatasetKind, job.training_dataset());
    require(kDatasetKind, job.validation_dataset());
    const std::string& source = job.adapter().init_from();
    const size_t slash = source.find('/');
    const bool is_checkpoint = slash != std::string::npos;
    require(is_checkpoint ? kJobKind : kAdapterKind, source.substr(0, slash));
    if (is_checkpoint) REQUIRE(files.Exists("/data/checkpoints/" + source));
  }
}

void Promises::CheckKept(storage::JobStore& store, storage::Files& files) const {
  for (const auto& [name, request_id] : made_) {
    INFO(name.first << " " << name.second << ", of request_id " << request_id);
    REQUIRE(store.GetRecord(name.first, name.second)->has_value());
  }
  CheckJobs(store);
  CheckUses(store, files);
}

}  // namespace lorad::sim
