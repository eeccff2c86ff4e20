// Shards become checkpoints: uploaded, written whole, recorded, and only then announced.
#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "server/core/report_checks.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

constexpr int64_t kRetryMs = 1000;
// The report of a Step is behind its shard by the time of a message, as a rule. No call waits for
// longer: the worker has others to save.
constexpr int64_t kEarlyShardUs = 10'000'000;

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
  // A job that has just failed or been cancelled may keep what it saved before.
  GroupState* found = groups_.FindMember(header.epoch(), header.job());
  if (!job || !found) return RefuseShard(request, content);
  GroupState& group = *found;
  const Member& member = group.members.at(header.job());
  if (const std::string wrong = WhatIsWrong(header, member, WorkerOf(group).hello.numerics_id());
      !wrong.empty()) {
    turn_.Do(RemovePath{content.upload});
    return turn_.Fail(request, InvalidFields("header", {{"header", wrong}}));
  }
  group.heard_us = turn_.now_us();
  if (member.done_step < header.step()) {
    if (!StepMayCome(group, content)) return RefuseShard(request, content);
    EarlyShard& early = group.early_shards[header.job()];
    if (early.request != 0) SendAgain(early.request, early.content);
    early = {request, content, turn_.now_us() + kEarlyShardUs};
    return turn_.Do(SetTimer{kShardsWait, early.until_us});
  }
  for (auto& [number, commit] : commits_) {
    if (commit.job == header.job() && commit.step == header.step()) {
      turn_.Do(RemovePath{content.upload});
      commit.requests.push_back(request);
      return;
    }
  }
  const auto tokens = job->saved_tokens.find(header.step());
  if (tokens == job->saved_tokens.end()) return RefuseShard(request, content);  // never asked for
  const uint64_t number = turn_.NewNumber();
  PendingCommit& commit = commits_[number];
  commit.requests.push_back(request);
  commit.job = header.job();
  commit.epoch = header.epoch();
  commit.step = header.step();
  commit.tokens = tokens->second;
  commit.path = absl::StrCat("checkpoints/", header.job(), "/", header.step());
  commit.numerics_id = header.numerics_id();
  job->commits++;
  WriteCheckpoint write;
  write.number = number;
  write.upload = content.upload;
  write.path = commit.path;
  write.job = commit.job;
  write.step = commit.step;
  write.numerics_id = commit.numerics_id;
  write.base_model_path = catalog_.Model(job->job().base_model()).record.model().path();
  write.adapter = job->job().adapter();
  turn_.Do(std::move(write));
}

bool Core::State::StepMayCome(const GroupState& group, const ShardUploaded& shard) {
  const JobState* job = jobs_.Find(shard.header.job());
  const auto member = group.members.find(shard.header.job());
  if (!job || !IsPlaced(job->state()) || member == group.members.end() || member->second.leaving) {
    return false;
  }
  return std::ranges::any_of(group.windows, [&](const SentWindow& window) {
    const auto found = window.jobs.find(shard.header.job());
    return found != window.jobs.end() && !found->second.given_up && found->second.batch &&
           found->second.batch->step() == shard.header.step();
  });
}

void Core::State::AnswerEarlyShards(GroupState& group) {
  std::vector<EarlyShard> settled;
  std::erase_if(group.early_shards, [&](const auto& entry) {
    const EarlyShard& early = entry.second;
    if (StepMayCome(group, early.content) && early.until_us > turn_.now_us()) return false;
    settled.push_back(early);
    return true;
  });
  for (const EarlyShard& early : settled) {
    if (StepMayCome(group, early.content)) {
      SendAgain(early.request, early.content);
    } else {
      On(early.request, early.content);  // takes it where its Step was reported, else refuses it
    }
  }
}

void Core::State::SendAgain(uint64_t request, const ShardUploaded& content) {
  turn_.Do(RemovePath{content.upload});
  turn_.Fail(request, Unavailable("STEP_NOT_REPORTED",
                                  absl::StrCat("step ", content.header.step(), " of job '",
                                               Quotable(content.header.job(), kNameBytesMax),
                                               "' is not reported yet: send its checkpoint again"),
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
    for (const uint64_t request : commit.requests) {
      turn_.Fail(request, hopeless ? status
                                   : Unavailable("CHECKPOINT_NOT_WRITTEN",
                                                 std::string(status.message()), kRetryMs));
    }
    GroupState* group = hopeless && job && IsPlaced(job->state()) ? GroupOf(*job) : nullptr;
    if (group && group->epoch == commit.epoch) {
      CloseLiar(WorkerOf(*group),
                absl::StrCat("a checkpoint of job '", commit.job, "' at step ", commit.step,
                             " that is none: ", std::string(status.message())));
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
    if (commit.step > job->job().last_checkpoint_step()) {
      job->job().set_last_checkpoint_step(commit.step);
      job->record.set_checkpoint_tokens(commit.tokens);
      (*job->record.mutable_tokens_at_checkpoints())[commit.step] = commit.tokens;
      job->record.set_numerics_id(commit.numerics_id);
      // A job that has fallen back meanwhile goes on from here after all.
      if (job->state() == v1::Job::QUEUED || job->state() == v1::Job::PAUSED) {
        job->job().set_tokens(commit.tokens);
        job->job().set_step(commit.step);
      }
      job->metrics.erase(job->metrics.begin(), job->metrics.upper_bound(commit.step));
    }
    jobs_.AddEvent(*job, "CHECKPOINT_COMMITTED",
                   absl::StrCat("the checkpoint of step ", commit.step, " is on the disk"));
    if (GroupState* group = GroupOf(*job)) {
      if (auto member = group->members.find(commit.job); member != group->members.end()) {
        auto& saves = member->second.saves;
        saves.erase(saves.begin(), saves.upper_bound(commit.step));
      }
    }
    MaybeFinish(*job);
  }
  for (const uint64_t request : commit.requests) turn_.Answer(request, std::monostate());
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
  const std::string name = absl::StrCat(content.job(), "/", content.step());
  if (found == steps.end()) return turn_.Fail(request, NotFound("checkpoint", name));
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
  steps.erase(found);
  jobs_.FreeBytes(*job, content.step());
  job->record.mutable_tokens_at_checkpoints()->erase(content.step());
  turn_.Put(storage::DeleteEntry(kCheckpointSeries, content.job(), content.step()));
  turn_.Do(RemovePath{absl::StrCat("checkpoints/", name)});
  jobs_.AddEvent(
      *job, "CHECKPOINT_DELETED",
      absl::StrCat("the checkpoint of step ", content.step(), " was deleted by its user"));
  turn_.Answer(request, std::monostate());
}

}  // namespace lorad::server
