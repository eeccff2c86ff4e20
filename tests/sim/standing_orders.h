// What users and operators have ordered that holds until they take it back: pauses, drains, quotas.
// The site reports every request, answer and change that passes; a coordinator that acts against an
// order that it has acknowledged fails the test.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "server/core/events/events.h"

namespace lorad::sim {

class StandingOrders {
 public:
  void Asked(uint64_t number, const server::Request& request);
  void Answered(uint64_t number, const absl::StatusOr<server::ReplyValue>& value);
  // Whether it has done what was not answered, nobody knows.
  void CoordinatorDied();

  // A worker of that name is asked to form a group.
  void CheckForming(const std::string& worker) const;
  // A watcher is told how the job stands, or that it is deleted; in order.
  void Told(const v1::Job& job);
  void ToldDeleted(const std::string& job);
  // The watcher has missed changes: what it knows may be old.
  void Missed() { placed_.clear(); }
  // The watcher has been told all that the turns so far have done.
  void CheckQuotas();

 private:
  struct Limit {
    int64_t jobs = 0;
    // That ran when it was looked at last, and may go on; at first any number.
    int64_t before = std::numeric_limits<int64_t>::max();
  };

  // Of jobs whose labels it limits ("team=a"), how many are in a group.
  int64_t Running(const std::string& label) const;
  void Ordered(const server::Request& request, const server::ReplyValue& value);

  std::map<uint64_t, server::Request> questions_;
  // Resumes, undrains and changes of a quota that are under way, by what they are of.
  std::multiset<std::string> open_;
  struct End {
    int64_t revision = 0;  // of the job as it was acknowledged
    int64_t step = 0;
  };
  std::map<std::string, End> finishing_;   // by job
  std::set<std::string> goes_on_;          // jobs that are to finish, and are not paused
  std::map<std::string, int64_t> paused_;  // job -> its revision as the pause was acknowledged
  std::set<std::string> drained_;          // workers
  std::map<std::string, Limit> limits_;    // by label, of running jobs
  std::map<std::string, std::set<std::string>> placed_;  // job in a group -> its labels
};

}  // namespace lorad::sim
