// Somebody who has more jobs than a decision looks at, each of which waits for one worker, and then
// a job that any worker has room for.
#pragma once

#include <string>
#include <vector>

#include "tests/sim/clients/site_clients.h"

namespace lorad::sim {

class CrowdClient final : public Client {
 public:
  struct Plan {
    v1::Job large;  // of the crowd
    int jobs = 0;   // of the crowd
    v1::Job small;
    std::string request_id;
    std::function<void()> at_end;
  };
  // Creates all, looks at the small one until it has ended, and cancels the others.
  CrowdClient(Site& site, Census& census, Plan plan);

 private:
  void Create(const v1::Job& job, int number);
  void Cancel(int number);

  Census& census_;
  const Plan plan_;
  std::vector<std::string> names_;
};

}  // namespace lorad::sim
