// Shards become checkpoints: uploaded, written whole, recorded, and only then announced.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/cluster/report_checks.h"
#include "server/core/jobs/job_progress.h"
#include "server/core/rules/kept_checkpoints.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

constexpr int64_t kRetryMs = 1000;
// The report of a Step is behind its shard by the time of a message, as a rule, and the shards of
// other stages by little more. No call waits for longer: the worker has others to save.
constexpr int64_t kKeptShardUs = 10'000'000;
// A checkpoint that was read so recently may be read on: a download asks for its files one by one.
constexpr int64_t kHeldUs = 60'000'000;
// What is to go and is in use is looked at again so soon.
constexpr int64_t kDropAgainUs = 20'000'000;

int64_t BytesOf(const v1::Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const v1::CheckpointFile& file : checkpoint.files()) bytes += file.size_bytes();
  return bytes;
}

}  // namespace

void Core::State::On(uint64_t request, const ShardUploaded& content) {
  const auto& header = content.header;
  JobState* job = jobs_.Find(header.job());
  if (job && std::ranges::binary_search(job->record.checkpoint_steps(), header.step())) {
    turn_.Do(RemovePath{content.upload});
    return turn_.Answer(request, std::monostate());
  }
  // A job that has just failed or been cancelled may keep what it saved before; one that has ended
  // as it was to finish ended at the checkpoint that it had.
  GroupState* found = groups_.FindMember(header.epoch(), header.job());
  if (!job || !found || job->state() == v1::Job::SUCCEEDED) return RefuseShard(request, content);
  GroupState& group = *found;
  const Member& member = group.members.at(header.job());
  const auto stages = static_cast<int32_t>(group.stages.size());
  if (const std::string wrong =
          WhatIsWrong(header, member, stages, WorkerOf(group.first()).hello.numerics_id());
      !wrong.empty()) {
    turn_.Do(RemovePath{content.upload});
    return turn_.Fail(request, InvalidFields("header", {{"header", wrong}}));
  }
  if (group.returning() && !group.stages[header.stage()].returned) {
    return SendAgain(request, content);
  }
  group.heard_us = turn_.now_us();
  for (auto& [number, commit] : commits_) {
    if (commit.job == header.job() && commit.step == header.step()) {
      turn_.Do(RemovePath{content.upload});
      commit.requests.push_back(request);
      return;
    }
  }
  KeptShard& kept = group.kept_shards[{header.job(), header.stage()}];
  if (kept.request != 0) SendAgain(kept.request, kept.content);
  kept = {request, content, turn_.now_us() + kKeptShardUs};
  CommitIfWhole(group, header.job(), header.step());
  if (group.kept_shards.contains({header.job(), header.stage()})) {
    turn_.Do(SetTimer{kShardsWait, turn_.now_us() + kKeptShardUs});
  }
}

// All stages' shards of a step that was reported become a checkpoint.
void Core::State::CommitIfWhole(GroupState& group, const std::string& name, int64_t step) {
  JobState* job = jobs_.Find(name);
  const auto member = group.members.find(name);
  if (!job || member == group.members.end() || member->second.done_step < step) return;
  std::vector<KeptShard> shards;
  for (int32_t stage = 0; stage < std::ssize(group.stages); ++stage) {
    const auto found = group.kept_shards.find({name, stage});
    if (found != group.kept_shards.end() && found->second.content.header.step() == step) {
      shards.push_back(found->second);
    }
  }
  if (shards.size() < group.stages.size()) return;
  std::erase_if(group.kept_shards, [&](const auto& entry) { return entry.first.first == name; });
  const auto tokens = job->saved_tokens.find(step);
  const bool wanted = tokens != job->saved_tokens.end() && job->state() != v1::Job::SUCCEEDED;
  if (wanted) return Commit(shards, *job, tokens->second);
  for (const KeptShard& shard : shards)
    RefuseShard(shard.request, shard.content);  // never asked for, or too late
}

void Core::State::Commit(const std::vector<KeptShard>& shards, JobState& job, int64_t tokens) {
  const auto& header = shards.front().content.header;
  const uint64_t number = turn_.NewNumber();
  PendingCommit& commit = commits_[number];
  commit.job = header.job();
  commit.epoch = header.epoch();
  commit.step = header.step();
  commit.tokens = tokens;
  commit.path = absl::StrCat("checkpoints/", header.job(), "/", header.step());
  commit.numerics_id = header.numerics_id();
  job.commits++;
  WriteCheckpoint write;
  for (const KeptShard& shard : shards) {
    commit.requests.push_back(shard.request);
    write.uploads.push_back(shard.content.upload);
  }
  write.number = number;
  write.path = commit.path;
  write.job = commit.job;
  write.step = commit.step;
  write.numerics_id = commit.numerics_id;
  write.base_model_path = catalog_.Model(job.job().base_model()).record.model().path();
  write.adapter = job.job().adapter();
  turn_.Do(std::move(write));
}

bool Core::State::StepMayCome(const GroupState& group, const ShardUploaded& shard) {
  const std::string& name = shard.header.job();
  const int64_t step = shard.header.step();
  const JobState* job = jobs_.Find(name);
  const auto member = group.members.find(name);
  if (!job || member == group.members.end()) return false;
  if (member->second.done_step >= step) return true;  // it has come
  if (!IsPlaced(job->state()) || member->second.leaving) return false;
  if (group.open_batches.contains({name, step})) return true;
  return std::ranges::any_of(group.last().orders.windows, [&](const SentWindow& window) {
    const auto found = window.jobs.find(name);
    return found != window.jobs.end() && !found->second.given_up &&
           std::ranges::any_of(found->second.steps,
                               [&](const StepOrder& order) { return order.batch.step() == step; });
  });
}

// One that waits for a stage that has saved a newer step waits in vain.
bool Core::State::IsPassedBy(const GroupState& group, const KeptShard& shard) {
  const auto& header = shard.content.header;
  return std::ranges::any_of(group.kept_shards, [&](const auto& entry) {
    return entry.first.first == header.job() && entry.second.content.header.step() > header.step();
  });
}

void Core::State::AnswerKeptShards(GroupState& group) {
  std::set<std::pair<std::string, int64_t>> steps;
  for (const auto& [key, kept] : group.kept_shards) {
    steps.emplace(key.first, kept.content.header.step());
  }
  for (const auto& [job, step] : steps) CommitIfWhole(group, job, step);
  std::vector<std::pair<KeptShard, bool>> settled;  // whether it is to come again
  std::erase_if(group.kept_shards, [&](const auto& entry) {
    const KeptShard& kept = entry.second;
    const bool may_be_whole = StepMayCome(group, kept.content) && !IsPassedBy(group, kept);
    if (may_be_whole && kept.until_us > turn_.now_us()) return false;
    settled.emplace_back(kept, may_be_whole);
    return true;
  });
  for (const auto& [kept, again] : settled) {
    if (again) {
      SendAgain(kept.request, kept.content);
    } else {
      RefuseShard(kept.request, kept.content);
    }
  }
}

void Core::State::SendAgain(uint64_t request, const ShardUploaded& content) {
  turn_.Do(RemovePath{content.upload});
  turn_.Fail(request, Unavailable("STEP_NOT_REPORTED",
                                  absl::StrCat("step ", content.header.step(), " of job '",
                                               Quotable(content.header.job(), kNameBytesMax),
                                               "' is not reported yet, or not saved by all stages: "
                                               "send its checkpoint again"),
                                  kRetryMs));
}

void Core::State::RefuseShard(uint64_t request, const ShardUploaded& content) {
  const auto& header = content.header;
  turn_.Do(RemovePath{content.upload});
  const std::string job = Quotable(header.job(), kNameBytesMax);
  turn_.Fail(request, PreconditionFailed(
                          "STALE_EPOCH", absl::StrCat("job ", job),
                          absl::StrCat("the checkpoint of job '", job, "' at step ", header.step(),
                                       " of epoch ", header.epoch(), " is not wanted any more")));
}

void Core::State::OnWritten(const CheckpointWritten& written) {
  auto node = commits_.extract(written.number);
  assert(!node.empty());
  const PendingCommit& commit = node.mapped();
  JobState* job = jobs_.Find(commit.job);
  if (job) {
    job->commits--;
    turn_.WantSchedule();
  }
  if (!written.checkpoint.ok()) {
    const absl::Status& status = written.checkpoint.status();
    turn_.Warn(absl::StrCat("checkpoint of job '", commit.job, "' at step ", commit.step, ": ",
                            status.ToString()));
    // The shard's bytes do not change when it is sent again; the disk's answer may.
    const bool hopeless = absl::IsInvalidArgument(status) || absl::IsDataLoss(status);
    GroupState* group = job ? GroupOf(*job) : nullptr;
    if (group && group->epoch != commit.epoch) group = nullptr;
    // The shard of a group that is no more is not sent again.
    if (group && !hopeless) {
      jobs_.TellUnwritten(*job, commit.step,
                          absl::StrCat("the checkpoint of step ", commit.step,
                                       " cannot be written: ", std::string(status.message())));
    }
    for (const uint64_t request : commit.requests) {
      turn_.Fail(request, hopeless ? status
                                   : Unavailable("CHECKPOINT_NOT_WRITTEN",
                                                 std::string(status.message()), kRetryMs));
    }
    if (group && hopeless && IsPlaced(job->state())) {
      const std::string what =
          absl::StrCat("a checkpoint of job '", commit.job, "' at step ", commit.step,
                       " that is none: ", std::string(status.message()));
      if (group->stages.size() == 1) {
        CloseLiar(WorkerOf(group->first()), what);
      } else {
        LoseGroup(*group, what, Loss::kWorkersLie);  // any of them
      }
    }
    return;
  }
  if (!job) {
    // Cancelled and deleted meanwhile.
    turn_.Do(RemovePath{absl::StrCat("checkpoints/", commit.job)});
  } else {
    v1::Checkpoint checkpoint = *written.checkpoint;
    turn_.Stamp(checkpoint.mutable_create_time());
    auto& steps = *job->record.mutable_checkpoint_steps();
    steps.Add(commit.step);
    std::ranges::sort(steps);
    turn_.Put(storage::PutEntry(kCheckpointSeries, commit.job, commit.step,
                                checkpoint.SerializeAsString()));
    jobs_.StoreBytes(*job, commit.step, BytesOf(checkpoint));
    job->saved_tokens.erase(commit.step);
    job->unwritten_step = 0;
    if (commit.step > job->job().last_checkpoint_step()) {
      job->job().set_last_checkpoint_step(commit.step);
      job->record.set_checkpoint_tokens(commit.tokens);
      (*job->record.mutable_tokens_at_checkpoints())[commit.step] = commit.tokens;
      job->record.set_numerics_id(commit.numerics_id);
      const auto row = job->metrics.find(commit.step);
      job->record.clear_checkpoint_metrics();
      if (row != job->metrics.end()) *job->record.mutable_checkpoint_metrics() = row->second;
      // A job that has fallen back meanwhile goes on from here after all.
      if (job->state() == v1::Job::QUEUED || job->state() == v1::Job::PAUSED) {
        ShowCheckpoint(job->record);
      }
      job->metrics.erase(job->metrics.begin(), job->metrics.upper_bound(commit.step));
    }
    jobs_.AddEvent(*job, "CHECKPOINT_COMMITTED",
                   absl::StrCat("the checkpoint of step ", commit.step, " is on the disk"));
    if (GroupState* group = GroupOf(*job)) {
      if (auto member = group->members.find(commit.job); member != group->members.end()) {
        auto& saves = member->second.saves;
        saves.erase(saves.begin(), saves.upper_bound(commit.step));
        member->second.saves_us = turn_.now_us();
      }
    }
    if (job->commits == 0) ForgetLosses(job->record);
    MaybeFinish(*job);
    DropCheckpoints(*job);
  }
  for (const uint64_t request : commit.requests) turn_.Answer(request, std::monostate());
}

// ---- what is kept (kept_checkpoints.h) ----

bool Core::State::IsInUse(const std::string& job, int64_t step) const {
  const auto held = held_.find({job, step});
  if (held != held_.end() && held->second > turn_.now_us()) return true;
  if (generations_.Asks(job, step)) return true;
  const std::string name = absl::StrCat(job, "/", step);
  const std::string user = jobs_.FirstLive(
      [&](const JobState& live) { return live.job().adapter().init_from() == name; });
  return !user.empty();
}

// The record of the newer one, by which these are passed, is of this turn or an older one: files go
// once that is durable (effects.h).
void Core::State::DropCheckpoints(JobState& job) {
  for (const int64_t step : PassedCheckpoints(job.record)) {
    if (IsInUse(job.name(), step)) {
      if (drop_again_.empty()) turn_.Do(SetTimer{kDropAgain, turn_.now_us() + kDropAgainUs});
      drop_again_.insert(job.name());
      continue;
    }
    RemoveCheckpoint(job, step);
    const v1::TrainingConfig& training = job.job().training();
    const std::string best = training.checkpoint_keep_best() > 0
                                 ? absl::StrCat(", and the best ", training.checkpoint_keep_best())
                                 : "";
    jobs_.AddEvent(
        job, "CHECKPOINT_REMOVED",
        absl::StrCat("the checkpoint of step ", step, " was removed: kept are the newest ",
                     std::max(training.checkpoint_keep_last(), 1), best));
  }
}

void Core::State::DropAgain() {
  for (const std::string& name : std::exchange(drop_again_, {})) {
    if (JobState* job = jobs_.Find(name)) DropCheckpoints(*job);
  }
}

void Core::State::RemoveCheckpoint(JobState& job, int64_t step) {
  auto& steps = *job.record.mutable_checkpoint_steps();
  steps.erase(std::ranges::find(steps, step));
  jobs_.FreeBytes(job, step);
  job.record.mutable_tokens_at_checkpoints()->erase(step);
  job.record.mutable_validation_losses()->erase(step);
  turn_.Put(storage::DeleteEntry(kCheckpointSeries, job.name(), step));
  turn_.Do(RemovePath{absl::StrCat("checkpoints/", job.name(), "/", step)});
}

void Core::State::On(uint64_t request, const HoldCheckpoint& content) {
  const JobState* job = jobs_.Find(content.job);
  if (!job) return turn_.Fail(request, NotFound(kJobKind, content.job));
  const int64_t step = content.step > 0 ? content.step : job->job().last_checkpoint_step();
  std::erase_if(held_, [&](const auto& entry) { return entry.second <= turn_.now_us(); });
  if (std::ranges::count(job->record.checkpoint_steps(), step) > 0) {
    held_[{content.job, step}] = turn_.now_us() + kHeldUs;
  }
  turn_.Answer(request, jobs_.View(*job));
}

// It is not named any more, so the step's next shard is written again; what is there is believed
// only if it is whole after all (WriteCheckpoint).
void Core::State::LoseCheckpoint(JobState& job, const std::string& reason, const std::string& why) {
  auto& steps = *job.record.mutable_checkpoint_steps();
  auto& tokens = *job.record.mutable_tokens_at_checkpoints();
  const int64_t lost = job.job().last_checkpoint_step();
  assert(!steps.empty() && *steps.rbegin() == lost);
  steps.RemoveLast();
  jobs_.FreeBytes(job, lost);
  tokens.erase(lost);
  job.record.mutable_validation_losses()->erase(lost);
  turn_.Put(storage::DeleteEntry(kCheckpointSeries, job.name(), lost));
  const int64_t before = steps.empty() ? 0 : *steps.rbegin();
  const auto known = tokens.find(before);
  job.job().set_last_checkpoint_step(before);
  // An older version did not keep them: steps are about of one size.
  job.record.set_checkpoint_tokens(
      known != tokens.end() ? known->second : job.record.checkpoint_tokens() / lost * before);
  jobs_.FallBack(job);
  jobs_.AddEvent(job, reason,
                 absl::StrCat("the checkpoint of step ", lost, " is given up (", why,
                              "); the job goes on from step ", before));
  turn_.Warn(absl::StrCat("job '", job.name(), "': ", reason, ": the checkpoint of step ", lost,
                          " is given up: ", why));
}

void Core::State::On(uint64_t request, const v1::DeleteCheckpointRequest& content) {
  JobState* job = jobs_.Find(content.job());
  if (!job) return turn_.Fail(request, NotFound(kJobKind, content.job()));
  auto& steps = *job->record.mutable_checkpoint_steps();
  const auto found = std::ranges::find(steps, content.step());
  if (found == steps.end()) {
    return turn_.Fail(request, NoCheckpoint(job->record, content.step()));
  }
  const std::string name = absl::StrCat(content.job(), "/", content.step());
  if (IsLive(job->state()) && content.step() == job->job().last_checkpoint_step()) {
    return turn_.Fail(
        request, PreconditionFailed("IN_USE", absl::StrCat("job ", content.job()),
                                    absl::StrCat("checkpoint '", name,
                                                 "' is where its live job would go on from: wait "
                                                 "for a newer one, or until the job ends")));
  }
  const std::string user = jobs_.FirstLive(
      [&](const JobState& live) { return live.job().adapter().init_from() == name; });
  if (!user.empty()) {
    return turn_.Fail(
        request, PreconditionFailed("IN_USE", absl::StrCat("job ", user),
                                    absl::StrCat("job '", user, "' starts from checkpoint '", name,
                                                 "': wait until it ends, or cancel it")));
  }
  EndGenerations(
      [&](const GuestContent& of) { return of.job == content.job() && of.step == content.step(); },
      absl::StrCat("checkpoint '", name, "' was deleted"));
  RemoveCheckpoint(*job, content.step());
  jobs_.AddEvent(
      *job, "CHECKPOINT_DELETED",
      absl::StrCat("the checkpoint of step ", content.step(), " was deleted by its user"));
  turn_.Answer(request, std::monostate());
}

}  // namespace lorad::server
