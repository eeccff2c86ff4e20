// Clients of a site who have jobs trained.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/sim/clients/site_clients.h"

namespace lorad::sim {

// Creates a job, and tries to delete at once what the job uses, which must be refused while that is
// live; looks at it until it has ended, and then deletes it, if it is to. A create that is repeated
// after that is answered as the first.
class JobClient final : public Client {
 public:
  struct Plan {
    v1::Job job;
    std::string request_id;
    const JobClient* from = nullptr;  // begins from its first checkpoint, where it has one
    // Of "model", "dataset", "adapter": it makes such of its own first, and deletes them at the
    // end.
    std::set<std::string> owns;
    bool deletes = false;
    bool deletes_checkpoint = false;
  };
  JobClient(Site& site, Census& census, Plan plan);

  void Cancel();
  // The job is paused, and resumed after so long, or at once where that is 0.
  void Pause(int64_t us);
  void Resume();
  void SetPriority(int32_t priority);
  void Finish();
  const v1::Job& planned() const { return plan_.job; }
  const std::string& acknowledged() const { return name_; }
  const v1::Job& job() const { return seen_; }  // without a name: not yet

 private:
  void Own(const std::string& kind);
  absl::StatusOr<server::Request> Create();
  bool TakeCreated(const absl::StatusOr<server::ReplyValue>& reply);
  // Of what the job uses.
  bool TakeRefusal(const absl::StatusOr<server::ReplyValue>& reply);
  void TryToDeleteSource();
  void LookUntilItEnds();
  void DeleteCheckpoint();
  void Delete();
  // Until the answer is no failure that passes.
  void Insist(const server::Request& request, const std::function<void()>& then);

  Census& census_;
  Plan plan_;
  std::string name_;
  bool must_have_ended_ = false;  // for something that it used could be deleted
  v1::Job seen_;
};

}  // namespace lorad::sim
