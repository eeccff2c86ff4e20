// Generations: answers that are being made for calls of Generate, and the guests that make them.
//
// A generation is one call: answers that its reader asks for again and again, each time with what
// it has seen of each. An answer grows by one token at a time: its prompt and all tokens so far are
// run, and the token behind them comes back. A guest is an adapter as of a checkpoint, an imported
// one, or a base model alone ("base-.." in the place of "guest-.."), that answers ask. It waits for
// a place and is then a member of one group, beside jobs. It goes with its last answer. It has room
// for what comes soon, not for max_tokens: an answer that outgrows it goes on with another.
//
// Nothing of this is kept over starts. A group that is formed again, makes way for a job, or is
// lost, costs an answer the token that was asked for: it goes on elsewhere from those that it has.
//
// Invariants: an answer that has not ended is one of its guest's and fits its room, and a guest has
// one at least; a token is asked for once at a time; a reader is answered once. A generation that
// nobody has asked for longer than kUnreadUs is over, so what it holds is bounded: max_tokens of
// each answer, and kAnswersMax answers in all.
//
// It knows the Turn, and jobs, models and groups by name alone. Threads: the core's one. Errors:
// those of the API, as Status.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "lorad/worker/v1/worker.pb.h"
#include "planner/cost/memory.h"
#include "server/core/events/events.h"
#include "server/core/events/turn.h"

namespace lorad::server {

// Live answers of all generations.
inline constexpr size_t kAnswersMax = 2048;
// A reader that asks for nothing more for so long has gone.
inline constexpr int64_t kUnreadUs = 30'000'000;
// Beside jobs, generation has as many tokens of a window as these have in the mean, so half of it.
// A pass that is forward alone takes a third of one that trains, so this is a quarter of its time.
inline constexpr double kShareBesideJobs = 0.5;
// A window of answers alone has so many microbatches, so that a job that comes does not wait long.
inline constexpr int64_t kMicrobatchesAlone = 4;
// An answer has room for so many more tokens at least, or for all that it may have: mostly it has
// ended before it needs more.
inline constexpr int64_t kTokensAhead = 256;
// So many groups in a row may be lost under a guest that has got no token before it is to blame.
inline constexpr int kLossesOfGuestMax = 3;

struct Answer {
  std::string generation;
  int32_t index = 0;
  std::string guest;
  AskedAnswer how;
  std::vector<int32_t> tokens = {};
  std::vector<double> log_probabilities = {};
  v1::GenerateResponse::FinishReason finish = v1::GenerateResponse::FINISH_REASON_UNSPECIFIED;
  bool asked = false;        // its next token is in a plan or in a window at hand
  int64_t planned_last = 0;  // when that was last so, in windows of answers: who waits longest

  int64_t prefix_tokens() const { return std::ssize(how.prompt) + std::ssize(tokens); }
  bool ended() const { return finish != v1::GenerateResponse::FINISH_REASON_UNSPECIFIED; }
};

// Tokens that an answer is to have room for: those that come next, and all that it may have.
struct AnswerRoom {
  int64_t soon = 0;
  int64_t most = 0;
};

// What a guest is made of.
struct GuestContent {
  std::string base_model;
  std::string job, adapter;          // that it is of; both empty: the base model alone
  int64_t step = 0;                  // of the job
  std::string content;               // LoadUnit::content
  worker::v1::SlotSpec slot;         // but for its job
  planner::AdapterShape shape = {};  // of the base alone: next to nothing

  bool base() const { return content.empty(); }
};

struct Guest {
  std::string name;
  GuestContent of;
  int64_t longest_tokens = 0;  // that it is to have room for
  int64_t since_us = 0;        // it came, got its newest token, or had its turn: who waits longest
  std::set<std::string> answers = {};  // that have not ended
  std::string group = {};              // whose member it is; empty: it waits for a place
  int64_t placed_us = 0;               // since when
  bool in_turn = false;                // its place was its turn among the jobs (guests.cc)
  std::string why = {};                // it waits
  bool reformed = false;               // a group was formed again for it
  int losses = 0;                      // since its last token
};

class Generations {
 public:
  explicit Generations(Turn& turn) : turn_(turn) {}

  // Whether a member of a group is, or was, a guest: no job has such a name.
  static bool IsGuest(std::string_view name);
  // Likewise, and one without a slot.
  static bool IsBase(std::string_view name);

  // ---- calls ----
  // RESOURCE_EXHAUSTED where so many more are too many.
  absl::Status CheckRoom(size_t answers) const;
  // What a guest is chosen by.
  struct Choice {
    // What a group should have room for where a guest needs that.
    absl::FunctionRef<int64_t(const GuestContent&, const AnswerRoom&)> roomy;
    // Whether more may be asked of a guest that is there: else it might stay for ever.
    absl::FunctionRef<bool(const Guest&)> takes_more;
  };
  // `asks` and `contents` by answer. The name of the generation.
  std::string Start(const std::vector<AskedAnswer>& asks, const std::vector<GuestContent>& contents,
                    const Choice& choice);
  void On(uint64_t request, const ReadGeneration& content);
  void On(uint64_t request, const EndGeneration& content);
  // Whether the request was a reader's; then its generation ends.
  bool GiveUp(uint64_t request);
  // Ends, with that status, each generation that has a guest of which `holds` is true.
  void Fail(absl::FunctionRef<bool(const Guest&)> holds, const absl::Status& status);
  // Ends those whose readers have gone.
  void EndUnread();
  // At the end of a turn: readers whose answers have something new get it.
  void Tell();

  // ---- guests ----
  // Whether a checkpoint of a job is one of them.
  bool Asks(const std::string& job, int64_t step) const;
  Guest* Find(const std::string& guest);
  const Guest* Find(const std::string& guest) const;
  // Those without a place, who has waited longest first.
  std::vector<Guest*> Waiting();
  void Place(Guest& guest, const std::string& group);
  // Its group makes way for others: it waits anew, behind them, if it has had its turn or a token.
  void EndTurn(const std::string& guest);
  void Say(Guest& guest, std::string why);
  // It is no member of a group any more, if it is there at all: nothing of it is asked for.
  void Unplace(const std::string& guest);
  // Its group is lost with its workers.
  void CountLoss(const std::string& guest, const std::string& why);
  // What a cut has left of the tokens that were asked for in the guest's group: none.
  void ForgetAsked(const std::string& guest);

  // ---- tokens ----
  // The next tokens of these guests' answers, those who have waited longest first, while so many
  // tokens have room; the first one is always taken.
  std::vector<GenerateUnit> AskFor(const std::vector<std::string>& guests, int64_t tokens_left);
  void OnGenerated(const worker::v1::Generated& generated, const Choice& choice);

  bool empty() const { return generations_.empty(); }
  // OK where the invariants hold, else INTERNAL and which does not. `member`: whether a group has
  // the guest.
  absl::Status CheckInvariants(
      absl::FunctionRef<bool(const std::string& group, const std::string& guest)> member) const;

 private:
  struct Generation {
    std::vector<std::string> answers;  // names, by index
    uint64_t reader = 0;               // 0: none
    std::vector<int32_t> seen;         // by the reader, of each answer
    std::set<int32_t> ended;           // that it knows of
    int64_t read_us = 0;               // when it was answered last
    std::string told;                  // why nothing comes, as it was told
    absl::Status failed;
  };

  // Makes the answer, which has that name, one of a guest's with room for it.
  void GiveGuest(Answer& answer, const std::string& name, const GuestContent& content,
                 const Choice& choice);
  std::string GuestFor(const GuestContent& content, const AnswerRoom& room, const Choice& choice);
  static worker::v1::Segment SegmentOf(const Answer& answer);
  void EndAnswer(Answer& answer, v1::GenerateResponse::FinishReason finish);
  void Leave(const Answer& answer);
  void Remove(const std::string& generation);
  std::string WhyWaits(const Generation& generation) const;
  // What its reader has not seen; none where that is nothing.
  GenerationNews NewsOf(const Generation& generation) const;
  void SetTimer();

  Turn& turn_;
  std::map<std::string, Generation> generations_;
  std::map<std::string, Answer> answers_;  // "GENERATION/INDEX"
  std::map<std::string, Guest> guests_;
  std::set<std::string> changed_;  // generations, in this turn
  int64_t windows_ = 0;
  bool timer_ = false;
};

}  // namespace lorad::server
