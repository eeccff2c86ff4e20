// Answers that clients ask for: whom they ask, what a window has of them, and how they end.
#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "server/core/catalog/model_shape.h"
#include "server/core/events/data_dir.h"
#include "server/core/rules/failures.h"
#include "server/core/rules/kept_checkpoints.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "storage/adapters/peft_config.h"

namespace lorad::server {
namespace {

// Groups are formed for prompts of so many tokens at least, and for twice as many, ...
constexpr int64_t kRoomyTokens = 256;
constexpr char kAskPayload[] = "lorad/metadata/ask";  // of errors that are of one ask (errors.h)

// What a job's next window has of tokens, in the mean; 0: nobody knows.
int64_t MeanTokens(const v1::Job& job, int64_t rows) {
  if (job.total_steps() <= 0 || job.training().batch_size() <= 0) return 0;
  return job.total_tokens() / job.total_steps() * rows / job.training().batch_size();
}

}  // namespace

// ---- whom ----

absl::StatusOr<GuestContent> Core::State::ContentOfJob(const AskedAnswer& ask) {
  const JobState* job = jobs_.Find(ask.job);
  if (!job) return NotFound(kJobKind, ask.job);
  const v1::Job& view = job->job();
  if (!ask.base_model.empty() && ask.base_model != view.base_model()) {
    return InvalidFields(
        "ask",
        {{"base_model", absl::StrCat("job '", ask.job, "' is of '", view.base_model(), "'")}});
  }
  // Of one that has ended it may be gone.
  if (!catalog_.HasModel(view.base_model())) return NotFound(kModelKind, view.base_model());
  const auto& steps = job->record.checkpoint_steps();
  if (ask.step && std::ranges::count(steps, *ask.step) == 0) {
    return NoCheckpoint(job->record, *ask.step);
  }
  if (steps.empty() && view.last_checkpoint_step() > 0) {
    return PreconditionFailed(
        "NO_CHECKPOINT", absl::StrCat("job ", ask.job),
        absl::StrCat("job '", ask.job, "' has no checkpoint: all that it saved were deleted"));
  }
  if (steps.empty()) {
    const int64_t every = view.training().checkpoint_every_steps();
    const int64_t due =
        every > 0 ? std::min<int64_t>(every, view.total_steps()) : int64_t{view.total_steps()};
    const std::string when = !IsLive(job->state()) ? "and has ended without one"
                             : due > 0
                                 ? absl::StrCat("and saves the first one at step ", due, "; it is ",
                                                ToText(job->state()), ", at step ", view.step())
                                 : absl::StrCat("and is ", ToText(job->state()));
    return PreconditionFailed(
        "NO_CHECKPOINT", absl::StrCat("job ", ask.job),
        absl::StrCat("job '", ask.job, "' has no checkpoint yet that could be asked, ", when));
  }
  GuestContent content;
  content.base_model = view.base_model();
  content.job = ask.job;
  content.step = ask.step.value_or(*steps.rbegin());
  content.content = ToText({SlotContent::Kind::kCheckpointWeights,
                            absl::StrCat("checkpoints/", ask.job, "/", content.step)});
  SetModules(view.adapter(), &content.slot);
  content.shape = ShapeOfAdapter(view.adapter());
  content.shape.trains = false;
  return content;
}

absl::StatusOr<GuestContent> Core::State::ContentFor(const AskedAnswer& ask) {
  if (!ask.job.empty()) return ContentOfJob(ask);
  if (!catalog_.HasModel(ask.base_model)) return NotFound(kModelKind, ask.base_model);
  GuestContent content;
  content.base_model = ask.base_model;
  if (ask.adapter.empty()) {
    const auto& targets = catalog_.Model(ask.base_model).record.model().target_modules();
    if (!targets.empty()) content.shape = planner::AdapterShape(1, {targets[0]});
    content.shape.trains = false;
    return content;
  }
  if (!catalog_.HasAdapter(ask.adapter)) return NotFound(kAdapterKind, ask.adapter);
  const records::AdapterRecord& record = catalog_.Adapter(ask.adapter);
  content.adapter = ask.adapter;
  content.content = ToText({SlotContent::Kind::kAdapter, record.path()});
  v1::AdapterConfig config = record.adapter().config();
  if (!record.adapter().has_config()) {
    config.set_rank(record.adapter().rank());
    config.set_alpha(record.adapter().alpha());
    config.set_use_rslora(record.adapter().use_rslora());
    *config.mutable_target_modules() = record.adapter().target_modules();
  }
  SetModules(config, &content.slot);
  content.shape = ShapeOfAdapter(config);
  content.shape.trains = false;
  return content;
}

bool Core::State::FitsNowhere(const GuestContent& content, int64_t longest_tokens,
                              const std::vector<planner::WorkerView>& workers) const {
  const Guest guest{.name = "", .of = content, .longest_tokens = longest_tokens};
  const planner::QueuedJob queued = Queued(guest);
  for (const planner::WorkerView& worker : workers) {
    const int64_t tokens =
        worker.microbatch_tokens > 0 ? worker.microbatch_tokens : options_.microbatch_tokens;
    if (planner::FitsAlone(queued, worker.device, worker.budget_bytes, tokens)) return false;
  }
  // Of a model that is to be on more workers than there are, it waits for these.
  if (std::ssize(workers) < catalog_.Model(content.base_model).record.model().stages())
    return false;
  return !workers.empty() && !planner::PlaceAlone(queued, workers, options_.microbatch_tokens);
}

absl::Status Core::State::NoWorkerFits(const GuestContent& content, int64_t tokens) {
  return LimitExceeded("NO_WORKER_FITS", "memory",
                       absl::StrCat("no connected worker has room for model '", content.base_model,
                                    "' with this adapter and ", tokens,
                                    " tokens, even alone: ask for fewer tokens (max_tokens, "
                                    "prompt), or add a worker with more memory"));
}

int64_t Core::State::RoomyTokens(const GuestContent& content, const AnswerRoom& room,
                                 const std::vector<planner::WorkerView>& workers) const {
  int64_t longest = 0;  // of the groups that there are
  for (const auto& [name, group] : groups_.all()) {
    if (group.base_model != content.base_model) continue;
    longest = std::max(longest, group.shape.longest_sequence);
  }
  if (longest >= room.soon) return std::min(longest, room.most);
  const int64_t positions =
      catalog_.Model(content.base_model).record.model().max_position_embeddings();
  int64_t roomy = kRoomyTokens;
  while (roomy < room.soon) roomy *= 2;
  if (positions > 0) roomy = std::min(roomy, positions);
  roomy = std::max(roomy, room.soon);
  // Where that is too much, all that it may need is better than to outgrow its room again and again.
  for (const int64_t tokens : {roomy, std::min(roomy, room.most)}) {
    if (!workers.empty() && !FitsNowhere(content, tokens, workers)) return tokens;
  }
  return room.soon;
}

// ---- calls ----

void Core::State::On(uint64_t request, const StartGeneration& content) {
  if (stopping_) {
    return turn_.Fail(request,
                      Unavailable("SHUTTING_DOWN", "the coordinator is being stopped", 5000));
  }
  if (absl::Status status = generations_.CheckRoom(content.asks.size()); !status.ok()) {
    return turn_.Fail(request, status);
  }
  const std::vector<planner::WorkerView> workers = ClusterOf(Waiting::kThoseLookedAt).workers;
  std::vector<GuestContent> contents;
  GenerationStarted started;
  for (const AskedAnswer& ask : content.asks) {
    absl::StatusOr<GuestContent> of = ContentFor(ask);
    if (!of.ok()) return turn_.Fail(request, of.status());
    const int64_t tokens = std::ssize(ask.prompt) + ask.max_tokens - 1;
    if (!contents.empty() && contents.front().base_model != of->base_model) {
      return turn_.Fail(
          request, InvalidFields("asks", {{"base_model",
                                           absl::StrCat("all asks of a call are of one base model; "
                                                        "here are '",
                                                        contents.front().base_model, "' and '",
                                                        of->base_model, "'")}}));
    }
    if (FitsNowhere(*of, tokens, workers)) {
      absl::Status status = NoWorkerFits(*of, tokens);
      status.SetPayload(kAskPayload, absl::Cord(absl::StrCat(contents.size())));
      return turn_.Fail(request, status);
    }
    started.steps.push_back(of->step);
    contents.push_back(*std::move(of));
  }
  const auto roomy = [&](const GuestContent& of, const AnswerRoom& room) {
    return RoomyTokens(of, room, workers);
  };
  const auto takes_more = [&](const Guest& guest) { return TakesMore(guest); };
  started.name = generations_.Start(content.asks, contents, {roomy, takes_more});
  turn_.Answer(request, std::move(started));
}

void Core::State::OnGenerated(const worker::v1::Generated& generated) {
  const auto roomy = [&](const GuestContent& of, const AnswerRoom& room) {
    return RoomyTokens(of, room, ClusterOf(Waiting::kThoseLookedAt).workers);
  };
  const auto takes_more = [&](const Guest& guest) { return TakesMore(guest); };
  generations_.OnGenerated(generated, {roomy, takes_more});
}

// Of a generation, it is a reader's, and that is all that there is of it; else of rows.
void Core::State::On(uint64_t request, const GiveUpRequest& content) {
  if (!generations_.GiveUp(content.request)) return rows_.On(request, content);
  turn_.Answer(request, std::monostate());
}

void Core::State::EndGenerations(absl::FunctionRef<bool(const GuestContent&)> of,
                                 const std::string& what) {
  generations_.Fail([&](const Guest& guest) { return of(guest.of); },
                    Error(absl::StatusCode::kNotFound, "ASKED_IS_GONE",
                          absl::StrCat(what, " while it was asked")));
}

// ---- windows ----

LoadUnit Core::State::LoadOf(const Guest& guest) const {
  LoadUnit load;
  load.slot = guest.of.slot;
  load.content = guest.of.content;
  load.slot.set_answers_only(true);
  return load;
}

void Core::State::AddGenerations(const GroupState& group, PlanInput* input) {
  if (generations_.empty()) return;
  std::vector<std::string> guests;
  for (const auto& [name, member] : group.members) {
    const bool loaded = member.slot == Member::Slot::kLoaded && !member.leaving;
    if (loaded && Generations::IsGuest(name)) guests.push_back(name);
  }
  if (guests.empty()) return;
  const int64_t capacity = group.shape.capacity_tokens;
  int64_t tokens_left = kMicrobatchesAlone * capacity;
  if (input->trains.empty() && input->evaluates.empty()) {
    // A pass over half of the answers costs a single worker nearly what one over all costs, so they
    // go in step; of several stages each has a half.
    const auto asks = [](const SentWindow& window) { return !window.generates.empty(); };
    if (group.stages.size() == 1 && std::ranges::any_of(group.first().orders.windows, asks)) return;
  } else {
    int64_t tokens = 0;
    const auto add = [&](const std::string& name, int64_t rows) {
      const int64_t mean = MeanTokens(jobs_.Find(name)->job(), rows);
      tokens += mean > 0 ? mean : capacity;
    };
    for (const TrainUnit& unit : input->trains) add(unit.job, unit.batch_size);
    for (const EvaluateUnit& unit : input->evaluates) add(unit.job, unit.sequences);
    tokens_left = static_cast<int64_t>(static_cast<double>(tokens) * kShareBesideJobs /
                                       (1 - kShareBesideJobs));
  }
  input->generates = generations_.AskFor(guests, tokens_left);
}

void Core::State::FailGuest(const worker::v1::SlotFailed& failed, WorkerState& worker,
                            const std::string& message) {
  const bool memory = failed.reason() == kMemory || failed.reason() == kMemoryTaken;
  const std::string what =
      absl::StrCat("worker '", worker.hello.worker(), "' could not load the adapter: ", message);
  absl::Status status = memory ? LimitExceeded(failed.reason(), "memory", what)
                               : Unavailable(failed.reason(), what, 5000);
  if (failed.reason() == kCheckpointCorrupt) {
    status = Error(absl::StatusCode::kDataLoss, failed.reason(), what);
  }
  if (failed.reason() == kMemory) cluster_.RestForMemory(worker, message);
  generations_.Fail([&](const Guest& guest) { return guest.name == failed.job(); }, status);
}

}  // namespace lorad::server
