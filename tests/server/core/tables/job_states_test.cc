#include "server/core/rules/job_states.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <vector>

namespace lorad::server {
namespace {

using Job = v1::Job;
using State = v1::Job::State;

const std::vector<State> kStates = {
    Job::STATE_UNSPECIFIED, Job::VALIDATING, Job::QUEUED,    Job::PREPARING,
    Job::RUNNING,           Job::FINALIZING, Job::SUCCEEDED, Job::CANCELLING,
    Job::CANCELLED,         Job::FAILED,     Job::PAUSING,   Job::PAUSED};

// Every legal pair; all others are refused.
const std::map<State, std::set<State>> kLegal = {
    {Job::VALIDATING, {Job::QUEUED, Job::PAUSED, Job::CANCELLING, Job::FAILED}},
    {Job::QUEUED, {Job::PREPARING, Job::PAUSED, Job::SUCCEEDED, Job::CANCELLING, Job::FAILED}},
    {Job::PREPARING,
     {Job::RUNNING, Job::FINALIZING, Job::QUEUED, Job::PAUSING, Job::CANCELLING, Job::FAILED}},
    {Job::RUNNING, {Job::FINALIZING, Job::QUEUED, Job::PAUSING, Job::CANCELLING, Job::FAILED}},
    {Job::PAUSING,
     {Job::PAUSED, Job::FINALIZING, Job::PREPARING, Job::RUNNING, Job::CANCELLING, Job::FAILED}},
    {Job::PAUSED, {Job::VALIDATING, Job::QUEUED, Job::SUCCEEDED, Job::CANCELLING, Job::FAILED}},
    {Job::FINALIZING, {Job::SUCCEEDED, Job::QUEUED, Job::CANCELLING, Job::FAILED}},
    {Job::CANCELLING, {Job::CANCELLED, Job::FAILED}},
};

TEST_CASE("every pair of states") {
  for (const State from : kStates) {
    for (const State to : kStates) {
      INFO(ToText(from) << " -> " << ToText(to));
      const auto legal = kLegal.find(from);
      CHECK(IsLegal(from, to) == (legal != kLegal.end() && legal->second.contains(to)));
    }
  }
}

TEST_CASE("live and placed") {
  struct Case {
    State state;
    bool live, placed;
  };
  const std::vector<Case> cases = {
      {Job::STATE_UNSPECIFIED, false, false},
      {Job::VALIDATING, true, false},
      {Job::QUEUED, true, false},
      {Job::PREPARING, true, true},
      {Job::RUNNING, true, true},
      {Job::FINALIZING, true, true},
      {Job::SUCCEEDED, false, false},
      {Job::CANCELLING, true, false},
      {Job::CANCELLED, false, false},
      {Job::FAILED, false, false},
      {Job::PAUSING, true, true},
      {Job::PAUSED, true, false},
  };
  for (const Case& c : cases) {
    INFO(ToText(c.state));
    CHECK(IsLive(c.state) == c.live);
    CHECK(IsPlaced(c.state) == c.placed);
  }
}

TEST_CASE("every state that is live has a way to an end, and an end has none out") {
  for (const State from : kStates) {
    if (!IsLive(from)) {
      for (const State to : kStates) CHECK_FALSE(IsLegal(from, to));
      continue;
    }
    std::set<State> reached = {from};
    for (size_t before = 0; before != reached.size();) {
      before = reached.size();
      for (const State a : std::set<State>(reached)) {
        for (const State b : kStates) {
          if (IsLegal(a, b)) reached.insert(b);
        }
      }
    }
    CHECK((reached.contains(Job::CANCELLED) && reached.contains(Job::FAILED)));
    CHECK(reached.contains(Job::SUCCEEDED) == (from != Job::CANCELLING));
  }
}

}  // namespace
}  // namespace lorad::server
