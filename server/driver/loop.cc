#include "server/driver/loop.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/room.h"
#include "server/errors/errors.h"
#include "server/store/committed_reads.h"
#include "server/store/file_effects.h"
#include "server/store/leftovers.h"
#include "server/store/startup.h"

namespace lorad::server {
namespace {

constexpr size_t kTurnEventsMax = 256;
constexpr int64_t kCommitRetryUs = 1'000'000;
constexpr int64_t kLookUs = 1'000'000;   // at the room on the disk,
constexpr int64_t kLookLowUs = 100'000;  // and while it is low: who makes room need not wait
constexpr int64_t kRetryHintMs = 1000;
// Nobody who asked before the store could not be written is kept waiting for longer.
constexpr int64_t kOpenUs = 5'000'000;
constexpr size_t kSettledFoldersATask = 64;

// Nothing was changed by a commit that failed so, and it may be tried again.
bool Passes(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

// A few folders a task, so that what else is to be done with files need not wait long.
void ClearSettledLater(const Surroundings& around, std::shared_ptr<Leftovers> leftovers) {
  if (leftovers->done()) return;
  around.tasks.Add(Tasks::Queue::kFiles, [around, leftovers = std::move(leftovers)] {
    const auto notes = leftovers->ClearSettled(kSettledFoldersATask);
    if (!notes.ok()) {
      // Only room is lost, and the next start gets it back.
      around.sinks.Log(Note::Level::kWarning, absl::StrCat("cannot look for what no record names: ",
                                                           std::string(notes.status().message())));
      return;
    }
    for (const std::string& note : *notes) around.sinks.Log(Note::Level::kWarning, note);
    ClearSettledLater(around, leftovers);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Loop>> Loop::Start(const LoopOptions& options,
                                                  const Surroundings& around) {
  // The store's files may be new. SQLite syncs their directory, but reports no error where that
  // fails.
  if (absl::Status status = around.files.SyncDirectory(around.data_dir.root()); !status.ok()) {
    return status;
  }
  absl::StatusOr<StoredState> stored = ReadStore(around.store);
  if (!stored.ok()) return stored.status();
  if (stored->store.empty()) {
    absl::StatusOr<std::string> made = Identify(around.store, options.random);
    // Where there is no room, the next start makes one: nobody is told of any until then.
    if (!made.ok() && !Passes(made.status())) return made.status();
    if (made.ok()) stored->store = *std::move(made);
  }
  around.revisions.Start(
      {stored->store, stored->trimmed_revision, stored->last_revision, &around.store});
  std::unique_ptr<Loop> loop(new Loop(options, around));
  loop->last_ = around.clock.Now();
  std::vector<Effect> effects;
  auto core = Core::Create(options.core, *std::move(stored), loop->last_, &effects);
  if (!core.ok()) return core.status();
  loop->core_ = *std::move(core);
  auto leftovers = std::make_shared<Leftovers>(
      around.data_dir, around.files, loop->core_->PathsInUse(), loop->core_->SettledFolders());
  auto notes = leftovers->ClearUnsettled();
  if (!notes.ok()) return notes.status();
  for (const std::string& note : *notes) around.sinks.Log(Note::Level::kWarning, note);
  ClearSettledLater(around, std::move(leftovers));
  loop->BeginTurn(std::move(effects));
  return loop;
}

Loop::~Loop() {
  checks_->CancelAll();
  for (const auto& [number, hurry] : hurries_) {
    if (const auto flag = hurry.lock()) flag->store(true, std::memory_order_relaxed);
  }
}

absl::StatusOr<bool> Loop::Step() {
  switch (phase_) {
    case Phase::kApply:
      return Apply();
    case Phase::kCommit:
      return Commit();
    case Phase::kCarry:
      break;
  }
  if (effects_.empty()) {
    phase_ = Phase::kApply;
    return true;
  }
  Effect effect = std::move(effects_.front());
  effects_.pop_front();
  std::visit([this](auto& content) { Do(content); }, effect);
  return true;
}

absl::StatusOr<bool> Loop::RunTurn() {
  for (;;) {
    absl::StatusOr<bool> went_on = Step();
    if (!went_on.ok() || !*went_on || phase_ == Phase::kApply) return went_on;
  }
}

int64_t Loop::wake_us() const {
  if (phase_ == Phase::kCommit) return retry_us_;
  const int64_t timer_us = timers_.empty() ? kNever : timers_.begin()->first;
  return room_.watches() ? std::min(timer_us, look_us_) : timer_us;
}

// ---- apply ----

// The mail that lay in the mailbox when the timers were seen to be due comes first, however late we
// are: the news that a timer would miss may be in it. Mail that comes later does not hold them up.
std::vector<uint64_t> Loop::DueTimers() {
  std::vector<uint64_t> due;
  if (!fence_ || around_.mailbox.HasUpTo(fence_->newest_mail)) return due;
  while (!timers_.empty() && timers_.begin()->first <= fence_->seen.steady_us) {
    due.push_back(timers_.begin()->second);
    timers_.erase(timers_.begin());
  }
  return due;
}

bool Loop::Apply() {
  const Moment now = around_.clock.Now();
  if (!fence_ && !timers_.empty() && timers_.begin()->first <= now.steady_us) {
    fence_ = Fence{around_.mailbox.newest(), now};
  }
  std::vector<Mailbox::Mail> mail = around_.mailbox.Take(kTurnEventsMax);
  const std::vector<uint64_t> due = DueTimers();
  // While the room is low whoever asks is answered by what is free now.
  const bool asked = !mail.empty() && !room_status_.ok();
  const bool look = room_.watches() && (look_us_ <= now.steady_us || asked);
  if (mail.empty() && due.empty() && !look) return false;
  std::vector<Effect> effects;
  if (look) LookAtRoom(now, &effects);
  std::vector<std::pair<Moment, Mailbox::Content>> news;
  for (Mailbox::Mail& one : mail) news.emplace_back(one.posted, std::move(one.content));
  for (const uint64_t timer : due) news.emplace_back(fence_->seen, TimerFired{timer});
  for (size_t i = 0; i < news.size(); ++i) {
    ApplyOne(news[i].first, std::move(news[i].second), i + 1 < news.size(), &effects);
  }
  if (!due.empty()) fence_.reset();
  BeginTurn(std::move(effects));
  return true;
}

void Loop::ApplyOne(Moment time, Mailbox::Content content, bool more_follow,
                    std::vector<Effect>* effects) {
  last_ = {std::max(last_.steady_us, time.steady_us), time.wall_us};
  if (const auto* requested = std::get_if<Requested>(&content)) {
    open_.emplace(requested->request, requested->content);
  }
  std::vector<Effect> more = core_->Apply(Event{last_, std::move(content), more_follow});
  std::move(more.begin(), more.end(), std::back_inserter(*effects));
}

void Loop::LookAtRoom(Moment now, std::vector<Effect>* effects) {
  std::optional<RoomChanged> room = room_.Look();
  if (room) room_status_ = server::CheckRoom(*room);
  look_us_ = now.steady_us + (room_status_.ok() ? kLookUs : kLookLowUs);
  if (!room) return;
  around_.sinks.Writable(room_status_);
  ApplyOne(now, *std::move(room), false, effects);
}

void Loop::BeginTurn(std::vector<Effect> effects) {
  assert(mutations_.empty() && effects_.empty());
  for (Effect& effect : effects) {
    if (auto* persist = std::get_if<Persist>(&effect)) {
      std::move(persist->mutations.begin(), persist->mutations.end(),
                std::back_inserter(mutations_));
    } else {
      effects_.push_back(std::move(effect));
    }
  }
  retry_us_ = 0;
  phase_ = Phase::kCommit;
}

// ---- commit ----

// The core is ahead of the store until this is done, so nothing else may be.
absl::StatusOr<bool> Loop::Commit() {
  const int64_t now_us = around_.clock.Now().steady_us;
  if (now_us < retry_us_) return AnswerMeanwhile();
  const absl::Status status = around_.store.Apply(mutations_);
  if (!status.ok() && !Passes(status)) return status;
  if (!status.ok()) {
    Stall(status, now_us);
    return true;
  }
  if (!stalled_.ok()) {
    stalled_ = absl::OkStatus();
    around_.sinks.Log(Note::Level::kInfo, "the store can be written again: all goes on");
    around_.sinks.Writable(room_status_);
  }
  mutations_.clear();
  phase_ = Phase::kCarry;
  return true;
}

void Loop::Stall(const absl::Status& status, int64_t now_us) {
  look_us_ = 0;  // the core learns of it as soon as it can
  if (absl::IsResourceExhausted(status) && room_.GiveUpBallast()) {
    return around_.sinks.Log(Note::Level::kWarning,
                             "the disk is full: the store goes on in the room of the ballast");
  }
  retry_us_ = now_us + kCommitRetryUs;
  if (!stalled_.ok()) {
    if (now_us - stalled_us_ >= kOpenUs) RefuseOpen();
    return;
  }
  const std::string why = absl::StrCat(
      "the store cannot be written, so nothing is taken on until "
      "it can be: ",
      std::string(status.message()), " (", room_.Describe(), ")");
  stalled_us_ = now_us;
  stalled_ = Unavailable(Reason(status), why, kRetryHintMs);
  around_.sinks.Log(Note::Level::kError, why);
  around_.sinks.Writable(stalled_);
  AnswerOpenReads();
}

// They stay asked for: what a request_id made is the answer when it comes again.
void Loop::RefuseOpen() {
  for (const auto& [request, content] : std::exchange(open_, {})) {
    around_.sinks.Answer(
        request, Unavailable(Reason(stalled_),
                             absl::StrCat(std::string(stalled_.message()),
                                          "; what this call asked for may be done after that: "
                                          "look, or ask again under its request_id"),
                             kRetryHintMs));
  }
}

// The turn's own reads must not wait for what others wrote in it.
void Loop::AnswerOpenReads() {
  std::erase_if(open_, [this](const auto& open) { return AnswerRead(open.first, open.second); });
}

// Workers' messages, shards and the ends of effects stay where they are, with the time at which
// they came.
bool Loop::AnswerMeanwhile() {
  const std::vector<Mailbox::Mail> mail = around_.mailbox.TakeRequests();
  for (const Mailbox::Mail& one : mail) {
    const Requested& requested = std::get<Requested>(one.content);
    if (AnswerRead(requested.request, requested.content)) continue;
    if (const std::string* upload = UploadOf(requested.content)) {
      RemovePath remove{*upload};
      Do(remove);
    }
    around_.sinks.Answer(requested.request, stalled_);
  }
  return !mail.empty();
}

// From what is committed, or from the memory of this process what no store knows. False where
// neither answers it.
bool Loop::AnswerRead(uint64_t request, const Request& content) {
  std::optional<ReplyValue> seen = core_->Look(content, stalled_);
  if (IsCommittedRead(content)) {
    Uncommitted beside{std::string(stalled_.message()), {}};
    if (seen) beside.cluster = std::get<v1::ClusterStatus>(*std::move(seen));
    around_.tasks.Add(Tasks::Queue::kReads, [around = around_, request, content, beside] {
      around.sinks.Answer(request, ReadCommitted(around.store, content, beside));
    });
    return true;
  }
  if (seen) around_.sinks.Answer(request, *std::move(seen));
  return seen.has_value();
}

// ---- carry out ----

void Loop::Do(Reply& reply) {
  if (open_.erase(reply.request) == 0) return;  // refused meanwhile
  if (reply.status.ok()) {
    around_.sinks.Answer(reply.request, std::move(reply.value));
  } else {
    around_.sinks.Answer(reply.request, std::move(reply.status));
  }
}

void Loop::Do(Send& send) { around_.sinks.Send(send.connection, std::move(send.message)); }

void Loop::Do(Disconnect& disconnect) {
  around_.sinks.Close(disconnect.connection, disconnect.reason);
}

void Loop::Do(Announce& announce) {
  around_.revisions.Append(
      {announce.revision, std::move(announce.job), std::move(announce.message), announce.progress});
}

void Loop::Do(CheckRows& check) {
  checks_->Add(std::move(check));
  around_.tasks.Add(Tasks::Queue::kRows, [around = around_, checks = checks_] {
    while (const std::optional<CheckQueue::Check> check = checks->Take()) {
      absl::StatusOr<records::RowsSummary> summary = absl::CancelledError("nobody waits for it");
      if (!*check->cancelled) {
        summary = around.solver.CheckRows(check->order.source, *check->cancelled);
      }
      checks->Done(*check);
      around.mailbox.Post(RowsChecked{check->order.key, std::move(summary)});
    }
  });
}

void Loop::Do(CancelRows& cancel) { checks_->Cancel(cancel.key); }

void Loop::Do(CloseRows& close) {
  around_.tasks.Add(Tasks::Queue::kFiles, [around = around_, close = std::move(close)] {
    around.solver.CloseRows(close.dataset_path);
  });
}

void Loop::Do(Plan& plan) {
  auto hurry = std::make_shared<std::atomic<bool>>(plan.hurry);
  std::erase_if(hurries_, [](const auto& entry) { return entry.second.expired(); });
  hurries_[plan.number] = hurry;
  around_.tasks.Add(Tasks::Queue::kPlanner, [around = around_, hurry, plan = std::move(plan)] {
    absl::StatusOr<SolvedPlan> solved =
        around.solver.Plan(plan.input, [&] { return hurry->load(std::memory_order_relaxed); });
    if (!solved.ok()) {
      around.mailbox.Post(Planned{plan.number, solved.status()});
      return;
    }
    around.mailbox.Post(Planned{plan.number, std::move(solved->window), std::move(solved->packing),
                                std::move(solved->failures), std::move(solved->lines)});
  });
}

void Loop::Do(Hurry& hurry) {
  const auto found = hurries_.find(hurry.number);
  if (found == hurries_.end()) return;
  if (const auto flag = found->second.lock()) flag->store(true, std::memory_order_relaxed);
}

void Loop::Do(MoveUpload& move) {
  around_.tasks.Add(Tasks::Queue::kFiles, [around = around_, move = std::move(move)] {
    around.mailbox.Post(UploadMoved{move.number, Execute(move, around.data_dir, around.files)});
  });
}

void Loop::Do(WriteCheckpoint& write) {
  around_.tasks.Add(Tasks::Queue::kFiles, [around = around_, write = std::move(write)] {
    around.mailbox.Post(
        CheckpointWritten{write.number, Execute(write, around.data_dir, around.files)});
  });
}

void Loop::Do(ReadContent& read) {
  around_.tasks.Add(Tasks::Queue::kFiles, [around = around_, read = std::move(read)] {
    around.mailbox.Post(ContentRead{read.number, Execute(read, around.data_dir, around.files)});
  });
}

void Loop::Do(RemovePath& remove) {
  around_.tasks.Add(Tasks::Queue::kFiles, [around = around_, remove = std::move(remove)] {
    const absl::Status status = Execute(remove, around.data_dir, around.files);
    if (status.ok()) return;
    // Only room is lost, and the next start gets it back.
    around.sinks.Log(Note::Level::kWarning, absl::StrCat("cannot remove ", remove.path, ": ",
                                                         std::string(status.message())));
  });
}

void Loop::Do(SetTimer& timer) { timers_.emplace(timer.at_us, timer.timer); }

void Loop::Do(Note& note) { around_.sinks.Log(note.level, note.message); }

}  // namespace lorad::server
