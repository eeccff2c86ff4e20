// What a coordinator promises its workers, held against what it does later: what they are asked
// makes sense, alone and as stages of one model; nobody who does as asked is sent away; and nobody
// waits for a worker that is lost. The site tells of every message that passes.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lorad/worker/v1/worker.pb.h"
#include "planner/cost/memory.h"
#include "tests/sim/worker/models.h"

namespace lorad::sim {

class GroupPromises {
 public:
  explicit GroupPromises(int64_t lease_us) : lease_us_(lease_us) {}

  // ---- what passes; `now_us` is of a clock that stands still whenever all of the site does ----

  // `hello`: of the worker; null: it has gone.
  void Sent(uint64_t connection, const worker::v1::CoordinatorMessage& message,
            const worker::v1::Hello* hello, int64_t now_us);
  void Introduced(uint64_t connection, const worker::v1::Hello& hello);
  void Heard(uint64_t connection, const worker::v1::WorkerMessage& message, int64_t now_us);
  // The coordinator has applied all that was heard so far.
  void MailTaken();
  void StreamEnded(uint64_t connection, int64_t now_us);
  // Whoever speaks there may say anything.
  void Mistrust(uint64_t connection) { mistrusted_.insert(connection); }
  void CoordinatorDied();
  // The coordinator may have noticed that it stood still, so that all leases start over; or it can
  // write nothing, and so say nothing.
  void WaitsStartOver(int64_t now_us) { waits_from_us_ = now_us; }

  // ---- what must hold ----

  // The coordinator ends the stream of a worker that has done nothing wrong.
  void CheckClose(uint64_t connection, const absl::Status& reason, int64_t now_us) const;
  // Whoever is silent for a lease is closed, and a group that has lost a stage is given up: the
  // others are told to let go of it.
  void CheckWaits(int64_t now_us) const;
  // So many groups were as their workers held them, after the coordinator had died.
  int64_t adoptions() const { return adoptions_; }
  // Nothing of that epoch counts any more.
  bool IsOver(int64_t epoch) const;

  // ---- what is known of a stage ----

  struct Portion {
    const BaseModel* model = nullptr;
    planner::StageRange range;
  };
  // Also of epochs that are over; null: there was no such stage.
  const Portion* Find(int64_t epoch, int32_t stage) const;

 private:
  struct Slot {
    int64_t window = 0;  // that loads it; 0: it is loaded
    int64_t bytes = 0;
  };
  // A worker's part of a group. Without a connection it is gone, or has been told to let go.
  struct Part {
    uint64_t connection = 0;
    std::string worker;
    int64_t window = 0;       // the newest that was sent
    int64_t next_window = 1;  // to be sent: of one that is back, behind the newest that it got
    std::map<int64_t, std::string> windows;  // the newest that were sent
    int64_t microbatch = 0;                  // the newest
    int64_t report = 0;                      // likewise, of those that came
    planner::DeviceShape device;
    planner::StageRange range;
    int64_t budget_bytes = 0;           // of the worker's memory
    int64_t group_bytes = 0;            // of that, without slots
    std::map<std::string, Slot> slots;  // by job
    int64_t since_us = 0;               // its order was sent
    bool back = true;                   // or a coordinator of before has died, and it is not
    bool lost_another = false;          // as it said
  };
  struct Epoch {
    const BaseModel* model = nullptr;
    std::string numerics_id;
    std::vector<Part> parts;
    int64_t over_us = -1;        // since when it is, as the coordinator knows; -1: it is not
    int64_t broken_us = -1;      // since when it knows that a stage has lost another
    int64_t all_broken_us = -1;  // likewise, that each has
    bool dissolved = false;      // a worker was told so: the store has it no more
  };
  struct Hearing {
    int64_t newest_us = 0;
    int64_t applied_us = 0;  // the newest that the coordinator may decide by
  };

  void OnWelcome(uint64_t connection, const worker::v1::Welcome& welcome,
                 const worker::v1::Hello* hello, int64_t now_us);
  void OnFormGroup(uint64_t connection, const worker::v1::FormGroup& order,
                   const worker::v1::Hello* hello, int64_t now_us);
  // The stages of an epoch are told one after the other, each on a worker of its own.
  void CheckStage(const Epoch& epoch, const Part& part, const worker::v1::FormGroup& order) const;
  void OnDissolve(uint64_t connection, int64_t epoch, int64_t now_us);
  void OnAcknowledge(uint64_t connection, const worker::v1::AcknowledgeReports& order) const;
  void OnWindow(uint64_t connection, const worker::v1::Window& window);
  static void OnWindowAgain(const worker::v1::Window& window, const Part& part);
  void OnCut(uint64_t connection, const worker::v1::Cut& cut);
  void OnLoad(const worker::v1::Window& window, const worker::v1::SlotSpec& slot, Part& part);
  // The memory that a worker offers is given away once.
  static void CheckBudget(const Part& part);
  static void OnReport(const worker::v1::Report& report, Part& part);
  // Null: it is over, or that stream has no part of it.
  Part* FindPart(int64_t epoch, uint64_t connection);
  const Part* FindPart(int64_t epoch, uint64_t connection) const {
    return const_cast<GroupPromises*>(this)->FindPart(epoch, connection);
  }
  void LetGo(uint64_t connection, int64_t now_us);
  // If none of its workers is awaited to do anything any more.
  void Forget(int64_t epoch);

  const int64_t lease_us_;
  int64_t newest_epoch_ = 0;
  std::map<int64_t, Epoch> epochs_;  // some part of which is not told
  // Of a coordinator that died, whose workers may come back to the next one; and those of this one
  // of which all streams have ended: whether it has stored that nobody knows.
  std::map<int64_t, Epoch> asleep_;
  int64_t adoptions_ = 0;
  std::map<std::pair<int64_t, int32_t>, Portion> portions_;  // by epoch and stage
  std::map<uint64_t, worker::v1::Hello> hellos_;             // by connection, as they came
  std::map<uint64_t, Hearing> heard_;                        // by connection
  std::set<uint64_t> ended_;                                 // connections
  std::set<uint64_t> mistrusted_;                            // likewise
  int64_t waits_from_us_ = 0;
};

}  // namespace lorad::sim
