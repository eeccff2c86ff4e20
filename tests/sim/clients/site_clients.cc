#include "tests/sim/clients/site_clients.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "server/core/rules/job_states.h"
#include "server/store/store_reads.h"

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: what a client asks for

using Answer = absl::StatusOr<ReplyValue>;

}  // namespace

// ---- what clients ask for ----

std::vector<int64_t> CheckpointsOf(Site& site, const std::string& job) {
  v1::ListCheckpointsRequest request;
  request.set_job(job);
  request.set_page_size(1000);
  std::vector<int64_t> steps;
  if (!site.serves()) return steps;
  const auto listed = ReadCheckpoints(site.store(), request);
  if (!listed.ok()) return steps;  // the disk is ill, or the job is gone
  for (const v1::Checkpoint& checkpoint : listed->checkpoints()) steps.push_back(checkpoint.step());
  return steps;
}

absl::StatusOr<Request> CreateOf(Site& site, const std::string& kind, const std::string& name) {
  if (kind == "model") return Request(site.ModelRequest(name));
  if (kind == "dataset") {
    absl::StatusOr<CreateDataset> request = site.DatasetRequest(name, 3);
    if (!request.ok()) return request.status();
    return Request(*std::move(request));
  }
  absl::StatusOr<std::string> upload =
      site.WriteUpload({{"adapter_config.json", "{}"}, {"adapter_model.safetensors", "of no use"}});
  if (!upload.ok()) return upload.status();
  ImportAdapter request;
  request.adapter.set_name(name);
  request.adapter.set_rank(4);
  request.upload = *std::move(upload);
  request.request_id = {"adapter " + name, name};
  return Request(std::move(request));
}

Request GetOf(const std::string& kind, const std::string& name) {
  if (kind == "model") return Named<v1::GetModelRequest>(name);
  if (kind == "dataset") return Named<v1::GetDatasetRequest>(name);
  return Named<v1::GetAdapterRequest>(name);
}

Request DeleteOf(const std::string& kind, const std::string& name) {
  if (kind == "model") return Named<v1::UnregisterModelRequest>(name);
  if (kind == "dataset") return Named<v1::DeleteDatasetRequest>(name);
  return Named<v1::DeleteAdapterRequest>(name);
}

// ---- asking ----

bool Client::Passes(const absl::Status& status) const {
  if (status.GetPayload("lorad/reason") == absl::Cord("NO_WORKER_FITS")) return false;
  if (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) return true;
  const bool of_disk = absl::IsInternal(status) || absl::IsUnknown(status) ||
                       absl::IsDataLoss(status) || absl::IsAborted(status);
  return of_disk && site_.disk_was_ill();
}

void Client::Go() {
  if (ended()) return;
  asked_++;
  if (!Ask()) return Refused();
  if (asks_twice_) Ask();
}

bool Client::Ask() {
  absl::StatusOr<Request> request = steps_[next_].make();
  if (!request.ok()) return false;
  site_.Ask(*std::move(request), [this, asked = asked_](const Answer& reply) {
    if (vanished_ || asked != asked_) return;
    asked_++;
    if (Passes(reply.status())) return Refused();
    pause_us_ = kAgainUs;
    if (!steps_[next_].told(reply)) return site_.At(site_.now_us() + kAgainUs, [this] { Go(); });
    next_++;
    Go();
  });
  return true;
}

void Client::Refused() {
  site_.At(site_.now_us() + pause_us_, [this] { Go(); });
  pause_us_ = std::min(2 * pause_us_, kAgainAtMostUs);
}

// ---- models, datasets, adapters ----

namespace {

std::string BytesOf(const ReplyValue& value) {
  if (const auto* model = std::get_if<v1::Model>(&value)) return model->SerializeAsString();
  if (const auto* dataset = std::get_if<v1::Dataset>(&value)) return dataset->SerializeAsString();
  return std::get<v1::Adapter>(value).SerializeAsString();
}

}  // namespace

ResourceClient::ResourceClient(Site& site, Census& census, const std::string& kind,
                               const std::string& name)
    : Client(site), census_(census), kind_(kind), name_(name) {
  const auto is_made = [this](const Answer& reply) {
    INFO(kind_ << " " << name_ << ": " << reply.status());
    REQUIRE(reply.ok());
    if (made_.empty()) made_ = BytesOf(*reply);
    REQUIRE(BytesOf(*reply) == made_);
    return true;
  };
  const auto create = [this] { return CreateOf(site_, kind_, name_); };
  Then(create, is_made);
  Then(
      [this] {
        census_[kind_].insert(name_);
        return GetOf(kind_, name_);
      },
      is_made);
  Then(create, is_made);
  Then(
      [this] {
        census_[kind_].erase(name_);
        return DeleteOf(kind_, name_);
      },
      [this](const Answer& reply) {
        INFO("delete " << kind_ << " " << name_ << ": " << reply.status());
        REQUIRE((reply.ok() || absl::IsNotFound(reply.status())));
        return true;
      });
  Then([this] { return GetOf(kind_, name_); },
       [this](const Answer& reply) {
         INFO(kind_ << " " << name_ << " after it was deleted: " << reply.status());
         REQUIRE(absl::IsNotFound(reply.status()));
         return true;
       });
  Then(create, is_made);  // the first answer, of what is gone
}

// ---- questions ----

CuriousClient::CuriousClient(Site& site, const v1::Job& job) : Client(site) {
  const auto holds = [](const char* what, auto is) {
    return [what, is](const Answer& reply) {
      INFO(what << ": " << reply.status());
      REQUIRE(reply.ok());
      REQUIRE(is(*reply));
      return true;
    };
  };
  Then([job] { return EstimateJob{.job = job, .wait_us = 1'000'000}; },
       holds("estimate", [](const ReplyValue& value) {
         return std::get<v1::JobEstimate>(value).total_steps() > 0;
       }));
  Then(
      [job] {
        CreateJob request;
        request.job = job;
        request.validate_only = true;
        return request;
      },
      holds("a job that is only looked at", [](const ReplyValue& value) {
        const auto& seen = std::get<v1::Job>(value);
        return seen.name().empty() && seen.total_steps() > 0;
      }));
  Then([] { return v1::GetClusterRequest(); }, holds("cluster", [](const ReplyValue& value) {
         return std::get<v1::ClusterStatus>(value).workers() >= 0;
       }));
  Then([] { return v1::ListWorkersRequest(); }, holds("workers", [](const ReplyValue& value) {
         return std::holds_alternative<v1::ListWorkersResponse>(value);
       }));
}

ListClient::ListClient(Site& site, const Census& census, const std::string& kind, int page_size)
    : Client(site), census_(census), kind_(kind) {
  const auto page = [this, page_size](auto request) {
    if (token_.empty() && seen_.empty() && census_.contains(kind_)) before_ = census_.at(kind_);
    request.set_page_size(page_size);
    request.set_page_token(token_);
    return Request(request);
  };
  Then(
      [this, page]() -> absl::StatusOr<Request> {
        if (kind_ == "model") return page(v1::ListModelsRequest());
        if (kind_ == "dataset") return page(v1::ListDatasetsRequest());
        if (kind_ == "adapter") return page(v1::ListAdaptersRequest());
        return page(v1::ListJobsRequest());
      },
      [this](const Answer& reply) {
        INFO("list of " << kind_ << "s: " << reply.status());
        REQUIRE(reply.ok());
        return TakePage(*reply);
      });
}

bool ListClient::TakePage(const ReplyValue& value) {
  const auto take = [this](const auto& all, const std::string& next) {
    for (const auto& one : all) {
      INFO(kind_ << " " << one.name());
      REQUIRE(seen_.insert(one.name()).second);
    }
    token_ = next;
  };
  if (const auto* models = std::get_if<v1::ListModelsResponse>(&value)) {
    take(models->models(), models->next_page_token());
  } else if (const auto* datasets = std::get_if<v1::ListDatasetsResponse>(&value)) {
    take(datasets->datasets(), datasets->next_page_token());
  } else if (const auto* adapters = std::get_if<v1::ListAdaptersResponse>(&value)) {
    take(adapters->adapters(), adapters->next_page_token());
  } else {
    const auto& jobs = std::get<v1::ListJobsResponse>(value);
    take(jobs.jobs(), jobs.next_page_token());
  }
  if (!token_.empty()) return false;
  for (const std::string& name : before_) {
    INFO(kind_ << " " << name << " was there all the time");
    REQUIRE((seen_.contains(name) || !census_.at(kind_).contains(name)));
  }
  return true;
}

void ReadJob(Site& site, const std::string& job) {
  const auto well = [&](const absl::Status& status) {
    INFO("job " << job << ": " << status);
    REQUIRE((status.ok() || site.disk_was_ill() || absl::IsNotFound(status)));
    return status.ok();
  };
  v1::ListEventsRequest events;
  events.set_job(job);
  events.set_page_size(5);
  int64_t revision = 0;
  do {
    const auto page = ReadEvents(site.store(), events);
    if (!well(page.status())) return;
    for (const v1::Event& event : page->events()) {
      REQUIRE(event.revision() > revision);
      revision = event.revision();
    }
    events.set_page_token(page->next_page_token());
  } while (!events.page_token().empty());
  v1::GetMetricsRequest metrics;
  metrics.set_job(job);
  metrics.set_page_size(5);
  for (bool more = true; more;) {
    const auto page = ReadMetrics(site.store(), metrics);
    if (!well(page.status())) return;
    for (const v1::StepMetrics& row : page->steps()) {
      REQUIRE(row.step() == metrics.after_step() + 1);
      metrics.set_after_step(row.step());
    }
    more = page->more();
  }
  int64_t step = 0;
  for (const int64_t kept : CheckpointsOf(site, job)) {
    REQUIRE(kept > step);
    step = kept;
  }
}

}  // namespace lorad::sim
