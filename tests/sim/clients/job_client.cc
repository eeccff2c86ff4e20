#include "tests/sim/clients/job_client.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "server/core/rules/job_states.h"

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: what a client asks for

using Answer = absl::StatusOr<ReplyValue>;

std::string OwnName(const std::string& kind, const std::string& request_id) {
  return absl::StrCat("own-", kind, "-of-", request_id);
}

}  // namespace

JobClient::JobClient(Site& site, Census& census, Plan plan)
    : Client(site), census_(census), plan_(std::move(plan)) {
  for (const std::string& kind : plan_.owns) Own(kind);
  Then([this] { return Create(); }, [this](const Answer& reply) { return TakeCreated(reply); });
  for (const std::string& kind : plan_.owns) {
    Then([this, kind] { return DeleteOf(kind, OwnName(kind, plan_.request_id)); },
         [this](const Answer& reply) { return TakeRefusal(reply); });
  }
  if (plan_.from) TryToDeleteSource();
  LookUntilItEnds();
  for (const std::string& kind : plan_.owns) {
    Then([this, kind] { return DeleteOf(kind, OwnName(kind, plan_.request_id)); },
         [kind](const Answer& reply) {
           INFO("delete its own " << kind << ": " << reply.status());
           REQUIRE((reply.ok() || absl::IsNotFound(reply.status())));
           return true;
         });
  }
  if (plan_.deletes_checkpoint) DeleteCheckpoint();
  if (plan_.deletes) Delete();
}

void JobClient::Own(const std::string& kind) {
  const std::string name = OwnName(kind, plan_.request_id);
  if (kind == "model") plan_.job.set_base_model(name);
  if (kind == "dataset") plan_.job.set_training_dataset(name);
  if (kind == "adapter") plan_.job.mutable_adapter()->set_init_from(name);
  Then([this, kind, name] { return CreateOf(site_, kind, name); },
       [kind, name](const Answer& reply) {
         INFO(kind << " " << name << " of a job's own: " << reply.status());
         REQUIRE(reply.ok());
         return true;
       });
}

absl::StatusOr<Request> JobClient::Create() {
  std::string& source = *plan_.job.mutable_adapter()->mutable_init_from();
  if (plan_.from && source.empty()) {
    const std::string& name = plan_.from->acknowledged();
    const std::vector<int64_t> steps =
        name.empty() ? std::vector<int64_t>() : CheckpointsOf(site_, name);
    if (steps.empty() && !plan_.from->ended()) return absl::UnavailableError("no checkpoint yet");
    if (steps.empty()) {
      plan_.from = nullptr;  // nobody waits for that job any more
    } else {
      source = absl::StrCat(name, "/", steps.front());
    }
  }
  CreateJob request;
  request.job = plan_.job;
  request.request_id = {plan_.request_id, plan_.job.SerializeAsString()};
  return Request(std::move(request));
}

bool JobClient::TakeCreated(const Answer& reply) {
  INFO("create " << plan_.request_id << ": " << reply.status());
  if (plan_.from && absl::IsInvalidArgument(reply.status())) {
    // What it was to begin from was deleted meanwhile.
    plan_.from = nullptr;
    plan_.job.mutable_adapter()->clear_init_from();
    return false;
  }
  REQUIRE(reply.ok());
  name_ = std::get<v1::Job>(*reply).name();
  census_["job"].insert(name_);
  return true;
}

bool JobClient::TakeRefusal(const Answer& reply) {
  INFO("delete what job " << name_ << " uses: " << reply.status());
  if (absl::IsFailedPrecondition(reply.status())) return true;
  REQUIRE((reply.ok() || absl::IsNotFound(reply.status())));
  must_have_ended_ = true;
  return true;
}

void JobClient::TryToDeleteSource() {
  Then(
      [this]() -> absl::StatusOr<Request> {
        v1::DeleteCheckpointRequest request;
        const std::string& source = plan_.job.adapter().init_from();
        const size_t slash = source.find('/');
        request.set_job(source.substr(0, slash));
        if (slash != std::string::npos) request.set_step(std::stoll(source.substr(slash + 1)));
        return Request(request);
      },
      [this](const Answer& reply) { return !plan_.from || TakeRefusal(reply); });
}

void JobClient::LookUntilItEnds() {
  Then([this] { return Named<v1::GetJobRequest>(name_); },
       [this](const Answer& reply) {
         INFO("job " << name_ << ": " << reply.status());
         REQUIRE(reply.ok());
         seen_ = std::get<v1::Job>(*reply);
         REQUIRE((!must_have_ended_ || !IsLive(seen_.state())));
         return !IsLive(seen_.state());
       });
}

void JobClient::Cancel() {
  if (name_.empty()) return;
  census_[kCancelled].insert(name_);
  site_.Ask(Named<v1::CancelJobRequest>(name_), [this](const Answer& reply) {
    if (Passes(reply.status())) return site_.At(site_.now_us() + kAgainUs, [this] { Cancel(); });
    INFO("cancel " << name_ << ": " << reply.status());
    REQUIRE((reply.ok() || absl::IsNotFound(reply.status())));
  });
}

void JobClient::Insist(const Request& request, const std::function<void()>& then) {
  site_.Ask(request, [this, request, then](const Answer& reply) {
    if (Passes(reply.status())) {
      return site_.At(site_.now_us() + kAgainUs, [this, request, then] { Insist(request, then); });
    }
    INFO("job " << name_ << ": " << reply.status());
    // It has ended, or it was deleted.
    REQUIRE((reply.ok() || absl::IsNotFound(reply.status()) ||
             absl::IsFailedPrecondition(reply.status())));
    then();
  });
}

void JobClient::Pause(int64_t us) {
  if (name_.empty()) return;
  Insist(Named<v1::PauseJobRequest>(name_),
         [this, us] { site_.At(site_.now_us() + us, [this] { Resume(); }); });
}

void JobClient::Resume() {
  if (!name_.empty()) Insist(Named<v1::ResumeJobRequest>(name_), [] {});
}

void JobClient::Finish() {
  if (!name_.empty()) Insist(Named<v1::FinishJobRequest>(name_), [] {});
}

void JobClient::SetPriority(int32_t priority) {
  if (name_.empty()) return;
  v1::UpdateJobRequest request;
  request.mutable_job()->set_name(name_);
  request.mutable_job()->set_priority(priority);
  request.mutable_update_mask()->add_paths("priority");
  Insist(request, [] {});
}

void JobClient::DeleteCheckpoint() {
  Then(
      [this]() -> absl::StatusOr<Request> {
        const std::vector<int64_t> steps = CheckpointsOf(site_, name_);
        v1::DeleteCheckpointRequest request;
        request.set_job(name_);
        request.set_step(steps.empty() ? 1 : steps.front());
        return Request(request);
      },
      [](const Answer& reply) {
        INFO("delete a checkpoint: " << reply.status());
        // Another job begins from it, or it went the first time, and nobody was told.
        REQUIRE((reply.ok() || absl::IsFailedPrecondition(reply.status()) ||
                 absl::IsNotFound(reply.status())));
        return true;
      });
}

void JobClient::Delete() {
  Then(
      [this] {
        census_["job"].erase(name_);
        return Named<v1::DeleteJobRequest>(name_);
      },
      [this](const Answer& reply) {
        INFO("delete job " << name_ << ": " << reply.status());
        if (absl::IsFailedPrecondition(reply.status())) return false;  // another begins from it
        REQUIRE((reply.ok() || absl::IsNotFound(reply.status())));
        return true;
      });
  Then([this] { return Create(); },
       [this](const Answer& reply) {
         INFO("create " << plan_.request_id << " again: " << reply.status());
         // What it was to begin from may be gone for one that is created anew.
         if (absl::IsInvalidArgument(reply.status())) {
           REQUIRE(site_.MayForget(plan_.request_id));
           return true;
         }
         REQUIRE(reply.ok());
         REQUIRE((std::get<v1::Job>(*reply).name() == name_ || site_.MayForget(plan_.request_id)));
         return true;
       });
  Then([this] { return Named<v1::GetJobRequest>(name_); },
       [this](const Answer& reply) {
         INFO("job " << name_ << " after it was deleted: " << reply.status());
         REQUIRE(absl::IsNotFound(reply.status()));
         return true;
       });
}

}  // namespace lorad::sim
