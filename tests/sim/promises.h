// What a coordinator has promised to clients, held against what it does later; what it promises
// workers is in group_promises.h. The site tells of every message that passes; a promise that is
// broken fails the test.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/core/events/events.h"
#include "storage/files/files.h"
#include "storage/job_store.h"
#include "tests/sim/group_promises.h"

namespace lorad::sim {

class Promises {
 public:
  // `request_ids_max`: as the coordinator's options have it. `groups` outlives it.
  Promises(int64_t request_ids_max, const GroupPromises& groups)
      : request_ids_max_(request_ids_max), groups_(groups) {}

  // Each request is answered once, within a bound; what was acknowledged stays.

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

 private:
  using Name = std::pair<std::string, std::string>;  // kind, name
  struct Question {
    server::Request request;
    int64_t asked_us = 0;
    bool stale = false;  // a shard of an epoch that was over
  };

  void Keep(const server::Request& request, const server::ReplyValue& value);
  void Made(const char* kind, const std::string& name, const server::RequestId& id);
  // Nobody knows whether it was done.
  void LeaveOpen(const server::Request& request);
  void TakeBack(const server::Request& request, bool for_sure);
  void CheckJobs(storage::JobStore& store) const;
  static bool IsRemoved(storage::JobStore& store, const std::string& job, int64_t step);
  void CheckUses(storage::JobStore& store, storage::Files& files) const;

  const int64_t request_ids_max_;
  const GroupPromises& groups_;
  std::map<std::string, int64_t> asked_ids_;  // -> how many had been asked before
  std::map<uint64_t, Question> questions_;
  int64_t ill_us_ = 0;
  std::map<Name, std::string> made_;           // -> its request_id
  std::map<Name, std::string> first_answers_;  // (kind, request_id) -> name
  // (job, step): acknowledged; and those of which nobody knows.
  std::set<std::pair<std::string, int64_t>> checkpoints_, unsure_;
  std::set<std::string> cancelled_, deleted_;  // jobs
};

}  // namespace lorad::sim
