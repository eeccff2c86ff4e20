// Jobs that clients create, cancel and delete.
#include <algorithm>
#include <cassert>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/core/jobs/job_progress.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "server/validation/job_filter.h"
#include "server/validation/limits.h"
#include "server/validation/page_token.h"

namespace lorad::server {
namespace {

constexpr int64_t kLiveJobsMax = 100'000;
// A job that is cancelled is saved first, if that takes no longer.
constexpr int64_t kCancelSaveUs = 10'000'000;

// OK where no etag is given.
absl::Status CheckEtag(const JobState& job, const std::string& etag) {
  if (etag.empty() || etag == job.job().etag()) return absl::OkStatus();
  return Error(
      absl::StatusCode::kAborted, "ETAG_MISMATCH",
      absl::StrCat("job '", job.name(), "' has changed since: its etag is now ", job.job().etag()));
}

}  // namespace

// ---- create ----

absl::Status Core::State::CheckReferences(const v1::Job& job) const {
  std::vector<FieldViolation> violations;
  if (!catalog_.HasModel(job.base_model())) {
    violations.push_back(
        {"base_model", absl::StrCat("there is no model '", job.base_model(), "'")});
  }
  const std::pair<const char*, const std::string*> datasets[] = {
      {"training_dataset", &job.training_dataset()},
      {"validation_dataset", &job.validation_dataset()}};
  for (const auto& [field, dataset] : datasets) {
    if (!dataset->empty() && !catalog_.HasDataset(*dataset)) {
      violations.push_back({field, absl::StrCat("there is no dataset '", *dataset, "'")});
    }
  }
  const std::string& source = job.adapter().init_from();
  if (const size_t slash = source.find('/'); slash != std::string::npos) {
    const JobEntry* from = jobs_.FindEntry(source.substr(0, slash));
    records::JobRecord space;
    int64_t step = 0;
    const bool known =
        from && absl::SimpleAtoi(source.substr(slash + 1), &step) &&
        std::ranges::count(JobTable::RecordOf(*from, &space).checkpoint_steps(), step) > 0;
    if (!known) {
      violations.push_back(
          {"adapter.init_from", absl::StrCat("there is no checkpoint '", source, "'")});
    }
  } else if (!source.empty() && !catalog_.HasAdapter(source)) {
    violations.push_back({"adapter.init_from", absl::StrCat("there is no adapter '", source, "'")});
  }
  if (!violations.empty()) return InvalidFields("job", violations);
  return absl::OkStatus();
}

bool Core::State::AnsweredBefore(uint64_t request, const CreateJob& content) {
  const auto find = [&](const std::string& name) -> absl::StatusOr<ReplyValue> {
    JobState* job = jobs_.Find(name);
    if (!job) return NotFound(kJobKind, name);
    jobs_.PublishIfTouched(*job);
    return ReplyValue(jobs_.View(*job));
  };
  return answers_.AnsweredBefore(request, kJobKind, content.request_id, find);
}

void Core::State::On(uint64_t request, const CreateJob& content) {
  if (!content.validate_only && AnsweredBefore(request, content)) return;
  if (!content.validate_only && !turn_.room().ok()) return turn_.Fail(request, turn_.room());
  if (absl::Status status = CheckReferences(content.job); !status.ok()) {
    return turn_.Fail(request, status);
  }
  if (stopping_) {
    return turn_.Fail(request,
                      Unavailable("SHUTTING_DOWN", "the coordinator is being stopped", 5000));
  }
  if (std::ssize(jobs_.live()) >= kLiveJobsMax) {
    return turn_.Fail(request,
                      LimitExceeded("TOO_MANY_JOBS", "live jobs",
                                    absl::StrCat("there are ", kLiveJobsMax,
                                                 " live jobs: wait until some have ended")));
  }
  if (absl::Status status = quotas_.CheckCreate(content.job.labels()); !status.ok()) {
    return turn_.Fail(request, status);
  }
  if (rows_.Ensure(content.job)) {
    // Known at once, so it is said at once.
    records::JobRecord record;
    *record.mutable_job() = content.job;
    v1::JobError error;
    if (absl::Status status = AcceptRows(record, &error); !status.ok()) {
      if (content.validate_only || !MayFitLater(error)) return turn_.Fail(request, status);
    }
    if (content.validate_only) return turn_.Answer(request, record.job());
  } else if (content.validate_only) {
    return rows_.Wait(request, content);
  }
  StoreJob(request, content);
}

void Core::State::StoreJob(uint64_t request, const CreateJob& content) {
  JobState& job = jobs_.Create(content.job, content.random, content.request_id.id);
  const v1::Model& base_model = catalog_.Model(content.job.base_model()).record.model();
  job.job().set_base_model_fingerprint(base_model.fingerprint());
  if (rows_.Ensure(job.job())) SettleJob(job);
  jobs_.Publish(job);
  v1::Job made = jobs_.View(job);
  answers_.Keep(kJobKind, content.request_id, job.name(), made);
  turn_.Answer(request, std::move(made));
}

// ---- change ----

void Core::State::On(uint64_t request, const v1::UpdateJobRequest& content) {
  const std::string& name = content.job().name();
  JobState* job = jobs_.Find(name);
  if (!job) return turn_.Fail(request, NotFound(kJobKind, name));
  if (absl::Status status = CheckEtag(*job, content.job().etag()); !status.ok()) {
    return turn_.Fail(request, status);
  }
  const auto& paths = content.update_mask().paths();
  if (std::ranges::count(paths, "labels") > 0) {
    absl::Status status = quotas_.CheckLabels(job->job().labels(), content.job().labels(),
                                              JobTable::UseOf(job->record));
    if (!status.ok()) return turn_.Fail(request, status);
  }
  if (job->job().priority() != content.job().priority() &&
      std::ranges::count(paths, "priority") > 0) {
    VoidForecast(*job);
  }
  jobs_.Update(*job, content.job(), {paths.begin(), paths.end()});
  jobs_.Publish(*job);
  turn_.Answer(request, jobs_.View(*job));
}

// ---- end ----

void Core::State::On(uint64_t request, const v1::CancelJobRequest& content) {
  JobState* job = jobs_.Find(content.name());
  if (!job) return turn_.Fail(request, NotFound(kJobKind, content.name()));
  if (IsLive(job->state()) && job->state() != v1::Job::CANCELLING) {
    GroupState* group = IsPlaced(job->state()) ? GroupOf(*job) : nullptr;
    jobs_.Transition(*job, v1::Job::CANCELLING, "cancelled by its user");
    if (!group) {
      jobs_.Transition(*job, v1::Job::CANCELLED, "it was not running");
    } else {
      GroupTable::Leave(group, job->name());
      job->cancel_until_us = turn_.now_us() + kCancelSaveUs;
      turn_.Do(SetTimer{kCancelSaved, job->cancel_until_us});
      BeginCut(*group, GroupState::Then::kGoOn, "");
    }
    jobs_.Publish(*job);
  }
  turn_.Answer(request, jobs_.View(*job));
}

void Core::State::On(uint64_t request, const v1::DeleteJobRequest& content) {
  const std::string name = content.name();
  JobState* job = jobs_.Find(name);
  if (!job) return turn_.Fail(request, NotFound(kJobKind, name));
  if (absl::Status status = CheckEtag(*job, content.etag()); !status.ok()) {
    return turn_.Fail(request, status);
  }
  if (IsLive(job->state())) {
    return turn_.Fail(request,
                      PreconditionFailed("JOB_LIVE", absl::StrCat("job ", name),
                                         absl::StrCat("job '", name, "' is ", ToText(job->state()),
                                                      ": cancel it, and delete it once it has "
                                                      "ended")));
  }
  const std::string user = jobs_.FirstLive([&](const JobState& live) {
    return live.job().adapter().init_from().starts_with(name + "/");
  });
  if (!user.empty()) {
    return turn_.Fail(
        request, PreconditionFailed("IN_USE", absl::StrCat("job ", user),
                                    absl::StrCat("job '", user, "' starts from a checkpoint of '",
                                                 name, "': wait until it ends, or cancel it")));
  }
  EndGenerations([&](const GuestContent& of) { return of.job == name; },
                 absl::StrCat("job '", name, "' was deleted"));
  jobs_.Delete(*job);
  turn_.Answer(request, std::monostate());
}

}  // namespace lorad::server
