// The coordinator's loop without threads: takes mail and due timers, lets the core apply them,
// commits what they persist in one transaction a turn, then carries out what else they lead to.
// Everything it touches enters by a seam, and it goes on in steps, so that the simulator can end it
// between any two effects. The driver (driver.h) runs it on a thread.
//
//   while (*loop.Step()) {}                       // as long as there is something to do
//   sleep until mail comes or until loop.wake_us()
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/core.h"
#include "server/core/events/data_dir.h"
#include "server/driver/check_queue.h"
#include "server/driver/clock.h"
#include "server/driver/disk.h"
#include "server/driver/mailbox.h"
#include "server/driver/solver.h"
#include "server/driver/tasks.h"
#include "server/store/revision_log.h"
#include "storage/files/files.h"
#include "storage/job_store.h"

namespace lorad::server {

// Where answers and orders go. Called on the loop's thread, Answer and Log on any: nothing may
// block or call the loop.
class Sinks {
 public:
  virtual ~Sinks() = default;
  // Dropped if nobody waits for it any more.
  virtual void Answer(uint64_t request, absl::StatusOr<ReplyValue> value) = 0;
  // Dropped if the connection is gone.
  virtual void Send(uint64_t connection, worker::v1::CoordinatorMessage message) = 0;
  virtual void Close(uint64_t connection, const absl::Status& reason) = 0;
  // Whether clients' writes are taken from here on: OK, or what they are answered.
  virtual void Writable(const absl::Status& status) = 0;
  virtual void Log(Note::Level level, const std::string& message) = 0;
};

// All outlive the loop and the tasks that it added.
struct Surroundings {
  Clock& clock;
  const DataDir& data_dir;
  storage::Files& files;
  storage::JobStore& store;
  Disk& disk;
  Tasks& tasks;
  Solver& solver;
  Mailbox& mailbox;
  RevisionLog& revisions;
  Sinks& sinks;
};

struct LoopOptions {
  CoreOptions core;
  int64_t reserve_bytes = 0;  // of room on the disk (disk.h)
  int large_checks_max = 2;   // of rows, at once; small ones have a thread more
  uint64_t random = 0;        // the identity of a new store is made of it
};

class Loop {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // Reads the store, takes every live job up again and puts left-overs away. REQUIRES: MakeFolders
  // and CheckStoreIsThere (startup.h). Errors: of the store and of the disk.
  static absl::StatusOr<std::unique_ptr<Loop>> Start(const LoopOptions& options,
                                                     const Surroundings& around);

  // Cancels checks and hurries plans that are under way: nobody waits for them any more.
  ~Loop();

  // The next of these: apply the mail that is there, commit, carry out one effect. While the store
  // has no room the commit is tried again every second; reads, also those of the turn that waits,
  // are answered from what is committed meanwhile (workers and estimates from memory), other
  // requests of clients are refused at once, and those that were taken on before after five
  // seconds. False: nothing can be done before mail
  // comes or wake_us(). An error: the store failed, and what it holds is not known any more; the
  // process must end, and the next start reads it.
  absl::StatusOr<bool> Step();
  // Steps to the end of one turn, or until there is nothing to do. As Step.
  absl::StatusOr<bool> RunTurn();

  // When to call again though no mail comes, in Moment::steady_us; kNever where only mail helps.
  int64_t wake_us() const;

  // How much the core keeps in memory.
  CoreSizes SizesOfCore() const { return core_->SizesNow(); }
  // As RoomWatch::Check. Any thread.
  absl::Status CheckRoom() const { return room_.Check(); }
  // A turn is not committed, for the store has no room.
  bool waits_for_store() const { return !stalled_.ok(); }
  // As Core has it: for tests.
  absl::Status CheckInvariants() const { return core_->CheckInvariants(); }

 private:
  enum class Phase { kApply, kCommit, kCarry };

  Loop(const LoopOptions& options, const Surroundings& around)
      : around_(around),
        checks_(std::make_shared<CheckQueue>(options.large_checks_max)),
        room_(around.disk, options.reserve_bytes) {}
  void BeginTurn(std::vector<Effect> effects);
  bool Apply();
  void ApplyOne(Moment time, Mailbox::Content content, bool more_follow,
                std::vector<Effect>* effects);
  std::vector<uint64_t> DueTimers();
  void LookAtRoom(Moment now, std::vector<Effect>* effects);
  absl::StatusOr<bool> Commit();
  void Stall(const absl::Status& status, int64_t now_us);
  void RefuseOpen();
  void AnswerOpenReads();
  bool AnswerMeanwhile();
  bool AnswerRead(uint64_t request, const Request& content);

  void Do(Persist&) {}
  void Do(Reply& reply);
  void Do(Send& send);
  void Do(Disconnect& disconnect);
  void Do(Announce& announce);
  void Do(CheckRows& check);
  void Do(CancelRows& cancel);
  void Do(CloseRows& close);
  void Do(Plan& plan);
  void Do(Hurry& hurry);
  void Do(MoveUpload& move);
  void Do(WriteCheckpoint& write);
  void Do(ReadContent& read);
  void Do(RemovePath& remove);
  void Do(SetTimer& timer);
  void Do(Note& note);

  const Surroundings around_;
  std::unique_ptr<Core> core_;
  Moment last_;                              // of the newest event: time never goes back
  std::multimap<int64_t, uint64_t> timers_;  // by Moment::steady_us
  // Timers were seen to be due: they fire once the mail that lay there then is applied.
  struct Fence {
    uint64_t newest_mail = 0;
    Moment seen;
  };
  std::optional<Fence> fence_;
  // Shared with the threads that check rows, which may outlast the loop.
  const std::shared_ptr<CheckQueue> checks_;
  // By plan. Shared with the planning thread, which may drop a plan's when it ends.
  std::map<uint64_t, std::weak_ptr<std::atomic<bool>>> hurries_;

  Phase phase_ = Phase::kApply;
  std::vector<storage::Mutation> mutations_;  // of the turn, not committed
  std::deque<Effect> effects_;                // of the turn, not carried out

  RoomWatch room_;
  int64_t look_us_ = 0;               // when to look at the room again
  absl::Status room_status_;          // as the core has it
  std::map<uint64_t, Request> open_;  // requests that were taken on and not answered
  // While a commit waits for the store, what clients' writes are answered, and since when:
  absl::Status stalled_;
  int64_t stalled_us_ = 0;
  int64_t retry_us_ = 0;
};

}  // namespace lorad::server
