// What a coordinator has promised to clients and workers, held against what it does later. The site
// tells of every message that passes; a promise that is broken fails the test.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "planner/cost/memory.h"
#include "server/core/events/events.h"
#include "storage/files/files.h"
#include "storage/job_store.h"

namespace lorad::sim {

class Promises {
 public:
  // `request_ids_max`: as the coordinator's options have it.
  explicit Promises(int64_t request_ids_max) : request_ids_max_(request_ids_max) {}

  // ---- requests: each is answered once, within a bound; what was acknowledged stays ----

  // `now_us`, here and below: of a clock that stands still whenever all of the site does.
  void Asked(uint64_t number, const server::Request& request, int64_t now_us);
  void Answered(uint64_t number, const absl::StatusOr<server::ReplyValue>& value);
  void CoordinatorDied();
  // More requests than the coordinator keeps have come since the first of that id.
  bool MayBeForgotten(const std::string& request_id) const;
  // Nothing can be written for the time being: who asked may wait.
  void StoreIsIll(int64_t now_us) { ill_us_ = now_us; }
  void CheckAnswers(int64_t now_us) const;
  // What was acknowledged is there, once; what was deleted is not. Right after a start and in the
  // end.
  void CheckKept(storage::JobStore& store, storage::Files& files) const;

  // ---- workers: what they are asked makes sense, and who does as asked is not sent away ----

  // `hello`: of the worker; null: it has gone.
  void Sent(uint64_t connection, const worker::v1::CoordinatorMessage& message,
            const worker::v1::Hello* hello);
  void Heard(uint64_t connection, const worker::v1::WorkerMessage& message, int64_t now_us);
  // The coordinator has applied all that was heard so far.
  void MailTaken();
  void StreamEnded(uint64_t connection);
  // Whoever speaks there may say anything.
  void Mistrust(uint64_t connection) { mistrusted_.insert(connection); }
  // The coordinator ends the stream of a worker that has done nothing wrong.
  void CheckClose(uint64_t connection, const absl::Status& reason, int64_t lease_us,
                  int64_t now_us) const;

 private:
  using Name = std::pair<std::string, std::string>;  // kind, name
  struct Question {
    server::Request request;
    int64_t asked_us = 0;
    bool stale = false;  // a shard of an epoch that was over
  };
  struct Slot {
    int64_t window = 0;  // that loads it; 0: it is loaded
    int64_t bytes = 0;
  };
  struct Epoch {
    uint64_t connection = 0;
    int64_t window = 0;      // the newest
    int64_t microbatch = 0;  // likewise
    planner::DeviceShape device;
    int64_t budget_bytes = 0;           // of the worker's memory
    int64_t group_bytes = 0;            // of that, without slots
    std::map<std::string, Slot> slots;  // by job
  };

  void Keep(const server::Request& request, const server::ReplyValue& value);
  void Made(const char* kind, const std::string& name, const server::RequestId& id);
  // Nobody knows whether it was done.
  void LeaveOpen(const server::Request& request);
  void TakeBack(const server::Request& request, bool for_sure);
  void CheckJobs(storage::JobStore& store) const;
  void CheckUses(storage::JobStore& store, storage::Files& files) const;
  void OnFormGroup(uint64_t connection, const worker::v1::FormGroup& order,
                   const worker::v1::Hello* hello);
  void OnWindow(const worker::v1::Window& window);
  void OnLoad(const worker::v1::Window& window, const worker::v1::SlotSpec& slot);
  // The memory that a worker offers is given away once.
  static void CheckBudget(const Epoch& epoch);
  void OnReport(const worker::v1::Report& report, Epoch& epoch);

  const int64_t request_ids_max_;
  std::map<std::string, int64_t> asked_ids_;  // -> how many had been asked before
  std::map<uint64_t, Question> questions_;
  int64_t ill_us_ = 0;
  std::map<Name, std::string> made_;           // -> its request_id
  std::map<Name, std::string> first_answers_;  // (kind, request_id) -> name
  // (job, step): acknowledged; and those of which nobody knows.
  std::set<std::pair<std::string, int64_t>> checkpoints_, unsure_;
  std::set<std::string> cancelled_, deleted_;  // jobs

  int64_t newest_epoch_ = 0;
  std::map<int64_t, Epoch> epochs_;  // that are not over
  struct Hearing {
    int64_t newest_us = 0;
    int64_t applied_us = 0;  // the newest that the coordinator may decide by
  };
  std::map<uint64_t, Hearing> heard_;  // by connection
  std::set<uint64_t> ended_;           // connections
  std::set<uint64_t> mistrusted_;      // likewise
};

}  // namespace lorad::sim
