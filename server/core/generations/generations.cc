#include "server/core/generations/generations.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr std::string_view kGuestPrefix = "guest-";
constexpr std::string_view kBasePrefix = "base-";

absl::Status Gone(const std::string& name) {
  return Error(absl::StatusCode::kNotFound, "GENERATION_GONE",
               absl::StrCat("there is no generation '", Quotable(name, 100),
                            "': it has ended, nobody has read it for ", kUnreadUs / 1'000'000,
                            " s, or the coordinator was started again"));
}

}  // namespace

bool Generations::IsGuest(std::string_view name) {
  return name.starts_with(kGuestPrefix) || IsBase(name);
}

bool Generations::IsBase(std::string_view name) { return name.starts_with(kBasePrefix); }

// ---- calls ----

absl::Status Generations::CheckRoom(size_t answers) const {
  size_t live = 0;
  for (const auto& [name, guest] : guests_) live += guest.answers.size();
  if (live + answers <= kAnswersMax) return absl::OkStatus();
  return LimitExceeded("TOO_MANY_ANSWERS", "answers",
                       absl::StrCat(live, " answers are being made, and ", kAnswersMax,
                                    " may be at once: wait until some have ended"));
}

// Names of guests are not used again after a start either: a group that comes back may have one.
std::string Generations::GuestFor(const GuestContent& content, const AnswerRoom& room,
                                  const Choice& choice) {
  for (const auto& [name, guest] : guests_) {
    if (guest.of.base_model == content.base_model && guest.of.content == content.content &&
        guest.longest_tokens >= room.soon && choice.takes_more(guest)) {
      return name;
    }
  }
  const std::string name = absl::StrCat(std::string(content.base() ? kBasePrefix : kGuestPrefix),
                                        turn_.starts(), "-", turn_.NewNumber());
  Guest& guest = guests_[name];
  guest.name = name;
  guest.of = content;
  guest.of.slot.set_job(name);
  guest.longest_tokens = choice.roomy(content, room);
  guest.since_us = turn_.now_us();
  turn_.WantSchedule();
  return name;
}

void Generations::GiveGuest(Answer& answer, const std::string& name, const GuestContent& content,
                            const Choice& choice) {
  AnswerRoom room;
  // The last token is not run again.
  room.most = std::ssize(answer.how.prompt) + answer.how.max_tokens - 1;
  room.soon = std::min(room.most, answer.prefix_tokens() + kTokensAhead);
  answer.guest = GuestFor(content, room, choice);
  guests_.at(answer.guest).answers.insert(name);
}

std::string Generations::Start(const std::vector<AskedAnswer>& asks,
                               const std::vector<GuestContent>& contents, const Choice& choice) {
  assert(asks.size() == contents.size());
  const std::string name = absl::StrCat("generation-", turn_.starts(), "-", turn_.NewNumber());
  Generation& generation = generations_[name];
  generation.read_us = turn_.now_us();
  for (size_t i = 0; i < asks.size(); ++i) {
    const std::string of = absl::StrCat(name, "/", i);
    generation.answers.push_back(of);
    Answer& answer = answers_[of];
    answer.generation = name;
    answer.index = static_cast<int32_t>(i);
    answer.how = asks[i];
    GiveGuest(answer, of, contents[i], choice);
  }
  generation.seen.resize(asks.size());
  SetTimer();
  return name;
}

void Generations::On(uint64_t request, const ReadGeneration& content) {
  const auto found = generations_.find(content.name);
  if (found == generations_.end()) return turn_.Fail(request, Gone(content.name));
  Generation& generation = found->second;
  if (content.seen.size() != generation.answers.size()) {
    return turn_.Fail(request,
                      InvalidFields("generation", {{"seen", "is not one of each answer"}}));
  }
  if (generation.reader != 0) {
    return turn_.Fail(
        request, PreconditionFailed("READ_ALREADY", content.name, "another reads this generation"));
  }
  generation.reader = request;
  generation.seen = content.seen;
  for (const int32_t index : content.ended) {
    if (index < 0 || index >= std::ssize(generation.answers)) continue;
    generation.ended.insert(index);
    Answer& answer = answers_.at(generation.answers[static_cast<size_t>(index)]);
    if (!answer.ended()) EndAnswer(answer, v1::GenerateResponse::STOP);
  }
  changed_.insert(content.name);
}

void Generations::On(uint64_t request, const EndGeneration& content) {
  if (const auto found = generations_.find(content.name); found != generations_.end()) {
    if (found->second.reader != 0) {
      turn_.Fail(found->second.reader, absl::CancelledError("the generation was ended"));
    }
    Remove(content.name);
  }
  turn_.Answer(request, std::monostate());
}

bool Generations::GiveUp(uint64_t request) {
  const auto found = std::ranges::find_if(
      generations_, [&](const auto& entry) { return entry.second.reader == request; });
  if (found == generations_.end()) return false;
  turn_.Fail(request, absl::CancelledError("nobody waits for it any more"));
  Remove(std::string(found->first));
  return true;
}

void Generations::Fail(absl::FunctionRef<bool(const Guest&)> holds, const absl::Status& status) {
  for (auto& [name, generation] : generations_) {
    const bool fails = std::ranges::any_of(generation.answers, [&](const std::string& of) {
      const Answer& answer = answers_.at(of);
      return !answer.ended() && holds(guests_.at(answer.guest));
    });
    if (!fails || !generation.failed.ok()) continue;
    generation.failed = status;
    changed_.insert(name);
  }
  // What they ask for is asked for no more, from this turn on.
  for (const auto& [name, generation] : generations_) {
    if (generation.failed.ok()) continue;
    for (const std::string& of : generation.answers) {
      Answer& answer = answers_.at(of);
      if (!answer.ended()) EndAnswer(answer, v1::GenerateResponse::LENGTH);
    }
  }
}

void Generations::EndUnread() {
  timer_ = false;
  std::vector<std::string> unread;
  for (const auto& [name, generation] : generations_) {
    const bool gone = generation.reader == 0 && turn_.now_us() - generation.read_us >= kUnreadUs;
    if (gone) unread.push_back(name);
  }
  for (const std::string& name : unread) Remove(name);
  SetTimer();
}

void Generations::SetTimer() {
  if (timer_ || generations_.empty()) return;
  timer_ = true;
  turn_.Do(server::SetTimer{kGenerationsUnread, turn_.now_us() + kUnreadUs});
}

void Generations::Remove(const std::string& name) {
  const auto node = generations_.extract(name);
  for (const std::string& of : node.mapped().answers) {
    const Answer& answer = answers_.at(of);
    if (!answer.ended()) Leave(answer);
    answers_.erase(of);
  }
  changed_.erase(name);
}

void Generations::EndAnswer(Answer& answer, v1::GenerateResponse::FinishReason finish) {
  answer.finish = finish;
  answer.asked = false;
  Leave(answer);
  changed_.insert(answer.generation);
}

void Generations::Leave(const Answer& answer) {
  Guest& guest = guests_.at(answer.guest);
  guest.answers.erase(absl::StrCat(answer.generation, "/", answer.index));
  if (!guest.answers.empty()) return;
  guests_.erase(guest.name);
  turn_.WantSchedule();
}

// ---- what readers are told ----

std::string Generations::WhyWaits(const Generation& generation) const {
  for (const std::string& of : generation.answers) {
    const Answer& answer = answers_.at(of);
    if (answer.ended()) continue;
    const Guest& guest = guests_.at(answer.guest);
    if (guest.group.empty()) return guest.why;
  }
  return "";
}

GenerationNews Generations::NewsOf(const Generation& generation) const {
  GenerationNews news;
  for (size_t i = 0; i < generation.answers.size(); ++i) {
    const Answer& answer = answers_.at(generation.answers[i]);
    const auto seen = static_cast<size_t>(std::max(generation.seen[i], 0));
    const bool ends = answer.ended() && !generation.ended.contains(answer.index);
    if (generation.ended.contains(answer.index) || (answer.tokens.size() <= seen && !ends)) {
      continue;
    }
    GenerationNews::Piece& piece = news.pieces.emplace_back();
    piece.index = answer.index;
    const size_t from = std::min(seen, answer.tokens.size());
    piece.tokens.assign(answer.tokens.begin() + static_cast<int64_t>(from), answer.tokens.end());
    piece.log_probabilities.assign(answer.log_probabilities.begin() + static_cast<int64_t>(from),
                                   answer.log_probabilities.end());
    piece.finish = answer.finish;
  }
  return news;
}

void Generations::Tell() {
  for (const std::string& name : std::exchange(changed_, {})) {
    const auto found = generations_.find(name);
    if (found == generations_.end() || found->second.reader == 0) continue;
    Generation& generation = found->second;
    if (!generation.failed.ok()) {
      turn_.Fail(generation.reader, generation.failed);
      Remove(name);
      continue;
    }
    GenerationNews news = NewsOf(generation);
    const std::string why = WhyWaits(generation);
    if (why != generation.told) news.waiting = generation.told = why;
    news.over = generation.ended.size() == generation.answers.size();
    if (news.pieces.empty() && news.waiting.empty() && !news.over) continue;
    turn_.Answer(std::exchange(generation.reader, 0), news);
    generation.read_us = turn_.now_us();
    if (news.over) Remove(name);
  }
}

// ---- guests ----

Guest* Generations::Find(const std::string& guest) {
  const auto found = guests_.find(guest);
  return found == guests_.end() ? nullptr : &found->second;
}

const Guest* Generations::Find(const std::string& guest) const {
  const auto found = guests_.find(guest);
  return found == guests_.end() ? nullptr : &found->second;
}

bool Generations::Asks(const std::string& job, int64_t step) const {
  return std::ranges::any_of(guests_, [&](const auto& entry) {
    return entry.second.of.job == job && entry.second.of.step == step;
  });
}

std::vector<Guest*> Generations::Waiting() {
  std::vector<Guest*> waiting;
  for (auto& [name, guest] : guests_) {
    if (guest.group.empty()) waiting.push_back(&guest);
  }
  std::ranges::sort(waiting, {},
                    [](const Guest* guest) { return std::pair(guest->since_us, guest->name); });
  return waiting;
}

void Generations::Place(Guest& guest, const std::string& group) {
  guest.group = group;
  guest.placed_us = turn_.now_us();
}

void Generations::EndTurn(const std::string& name) {
  Guest* guest = Find(name);
  if (!guest) return;
  const bool has_token = guest->since_us > guest->placed_us;
  if (std::exchange(guest->in_turn, false) || has_token) guest->since_us = turn_.now_us();
}

void Generations::Say(Guest& guest, std::string why) {
  if (guest.why == why) return;
  guest.why = std::move(why);
  for (const std::string& of : guest.answers) changed_.insert(answers_.at(of).generation);
}

void Generations::ForgetAsked(const std::string& name) {
  if (const Guest* guest = Find(name)) {
    for (const std::string& of : guest->answers) answers_.at(of).asked = false;
  }
}

void Generations::Unplace(const std::string& name) {
  ForgetAsked(name);
  if (Guest* guest = Find(name)) {
    guest->group.clear();
    turn_.WantSchedule();
  }
}

void Generations::CountLoss(const std::string& name, const std::string& why) {
  Guest* guest = Find(name);
  if (!guest || ++guest->losses < kLossesOfGuestMax) return;
  Fail([&](const Guest& other) { return other.name == name; },
       Unavailable("WORKER_LOST",
                   absl::StrCat("its workers were lost ", kLossesOfGuestMax,
                                " times in a row before another token came: ", why),
                   5000));
}

// ---- tokens ----

std::vector<GenerateUnit> Generations::AskFor(const std::vector<std::string>& guests,
                                              int64_t tokens_left) {
  std::vector<Answer*> waiting;
  for (const std::string& name : guests) {
    const Guest* guest = Find(name);
    if (!guest) continue;
    for (const std::string& of : guest->answers) {
      Answer& answer = answers_.at(of);
      if (!answer.asked) waiting.push_back(&answer);
    }
  }
  std::ranges::stable_sort(waiting, {}, &Answer::planned_last);
  std::map<std::string, GenerateUnit> units;
  ++windows_;
  for (Answer* answer : waiting) {
    if (answer->prefix_tokens() > tokens_left && !units.empty()) continue;
    tokens_left -= answer->prefix_tokens();
    answer->asked = true;
    answer->planned_last = windows_;
    GenerateUnit& unit = units[answer->guest];
    unit.job = answer->guest;
    unit.segments.push_back(SegmentOf(*answer));
  }
  std::vector<GenerateUnit> list;
  for (auto& [guest, unit] : units) list.push_back(std::move(unit));
  return list;
}

worker::v1::Segment Generations::SegmentOf(const Answer& answer) {
  worker::v1::Segment segment;
  segment.mutable_input_ids()->Add(answer.how.prompt.begin(), answer.how.prompt.end());
  segment.mutable_input_ids()->Add(answer.tokens.begin(), answer.tokens.end());
  worker::v1::Sampling& sampling = *segment.mutable_sampling();
  sampling.set_generation(absl::StrCat(answer.generation, "/", answer.index));
  sampling.set_number(std::ssize(answer.tokens));
  sampling.set_base(IsBase(answer.guest));
  sampling.set_temperature(answer.how.temperature);
  sampling.set_top_p(answer.how.top_p);
  sampling.set_seed(answer.how.seed);
  return segment;
}

// One of an answer that has ended meanwhile, or was asked for again, does not count.
void Generations::OnGenerated(const worker::v1::Generated& generated, const Choice& choice) {
  const auto found = answers_.find(generated.generation());
  if (found == answers_.end() || found->second.ended()) return;
  Answer& answer = found->second;
  if (generated.number() != std::ssize(answer.tokens)) return;
  answer.asked = false;
  Guest& guest = guests_.at(answer.guest);
  if (generated.token() < 0) {
    const std::string name = guest.name;
    return Fail([&](const Guest& other) { return other.name == name; },
                PreconditionFailed(
                    "NOT_FINITE", "generation",
                    absl::StrCat("answer ", answer.index, ": the model's logits for token ",
                                 generated.number(),
                                 " are not finite: the adapter, or the base model, is broken")));
  }
  guest.losses = 0;
  guest.since_us = turn_.now_us();
  answer.tokens.push_back(generated.token());
  answer.log_probabilities.push_back(generated.log_probability());
  changed_.insert(answer.generation);
  if (std::ranges::count(answer.how.ends, generated.token()) > 0) {
    EndAnswer(answer, v1::GenerateResponse::EOS);
  } else if (std::ssize(answer.tokens) >= answer.how.max_tokens) {
    EndAnswer(answer, v1::GenerateResponse::LENGTH);
  } else if (answer.prefix_tokens() > guest.longest_tokens) {
    // Another guest first, as this one may go with its last answer.
    const Answer outgrown = answer;
    GiveGuest(answer, found->first, GuestContent(guest.of), choice);
    Leave(outgrown);
  }
}

// ---- invariants ----

absl::Status Generations::CheckInvariants(
    absl::FunctionRef<bool(const std::string& group, const std::string& guest)> member) const {
  const auto broken = [](const std::string& what) {
    return absl::InternalError("generations: " + what);
  };
  if (!changed_.empty()) return broken("readers are yet to be told");
  size_t live = 0;
  for (const auto& [name, answer] : answers_) {
    const auto generation = generations_.find(answer.generation);
    if (generation == generations_.end()) return broken(name + " is of no generation");
    if (std::ssize(answer.tokens) > answer.how.max_tokens) return broken(name + " is too long");
    if (answer.ended()) continue;
    ++live;
    const Guest* guest = Find(answer.guest);
    if (!guest || !guest->answers.contains(name)) return broken(name + " is of no guest");
    if (answer.prefix_tokens() > guest->longest_tokens) return broken(name + " has no room");
    if (answer.asked && guest->group.empty()) return broken(name + " is asked for nowhere");
  }
  for (const auto& [name, generation] : generations_) {
    for (const std::string& of : generation.answers) {
      if (!answers_.contains(of)) return broken(name + " has lost an answer");
    }
  }
  size_t counted = 0;
  for (const auto& [name, guest] : guests_) {
    counted += guest.answers.size();
    if (guest.answers.empty()) return broken(name + " has no answer");
    if (!guest.group.empty() && !member(guest.group, name)) {
      return broken(name + " is no member of its group");
    }
  }
  if (counted != live) return broken("guests have other answers than there are");
  return absl::OkStatus();
}

}  // namespace lorad::server
