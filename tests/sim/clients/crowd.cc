#include "tests/sim/clients/crowd.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "server/core/rules/job_states.h"

namespace lorad::sim {

using Answer = absl::StatusOr<server::ReplyValue>;

CrowdClient::CrowdClient(Site& site, Census& census, Plan plan)
    : Client(site), census_(census), plan_(std::move(plan)) {
  for (int i = 0; i < plan_.jobs; ++i) Create(plan_.large, i);
  Create(plan_.small, plan_.jobs);
  Then([this] { return Named<v1::GetJobRequest>(names_.back()); },
       [](const Answer& reply) {
         INFO("the small job: " << reply.status());
         REQUIRE(reply.ok());
         return !server::IsLive(std::get<v1::Job>(*reply).state());
       });
  for (int i = 0; i < plan_.jobs; ++i) Cancel(i);
}

void CrowdClient::Create(const v1::Job& job, int number) {
  Then(
      [this, &job, number] {
        server::CreateJob request;
        request.job = job;
        request.request_id = {absl::StrCat(plan_.request_id, "-", number), job.SerializeAsString()};
        return request;
      },
      [this, number](const Answer& reply) {
        INFO("job " << number << " of a crowd: " << reply.status());
        REQUIRE(reply.ok());
        names_.push_back(std::get<v1::Job>(*reply).name());
        census_["job"].insert(names_.back());
        return true;
      });
}

void CrowdClient::Cancel(int number) {
  Then(
      [this, number] {
        census_[kCancelled].insert(names_[number]);
        return Named<v1::CancelJobRequest>(names_[number]);
      },
      [this, number](const Answer& reply) {
        INFO("cancel " << names_[number] << ": " << reply.status());
        REQUIRE(reply.ok());
        if (number + 1 == plan_.jobs) plan_.at_end();
        return true;
      });
}

}  // namespace lorad::sim
