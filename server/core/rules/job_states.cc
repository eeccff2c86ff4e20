#include "server/core/rules/job_states.h"

#include <array>

namespace lorad::server {
namespace {

using State = v1::Job;

struct Transition {
  v1::Job::State from;
  v1::Job::State to;
};

// The way of a job; besides, every live state may go to CANCELLING (once) and to FAILED.
constexpr std::array<Transition, 22> kTransitions = {{
    {State::VALIDATING, State::QUEUED},
    {State::QUEUED, State::PREPARING},
    {State::PREPARING, State::RUNNING},
    {State::PREPARING,
     State::FINALIZING},  // all steps were done and saved before a worker was lost
    {State::RUNNING, State::FINALIZING},
    {State::FINALIZING, State::SUCCEEDED},
    {State::CANCELLING, State::CANCELLED},
    // The group is lost or formed again, or the coordinator was started again.
    {State::PREPARING, State::QUEUED},
    {State::RUNNING, State::QUEUED},
    {State::FINALIZING, State::QUEUED},
    // Its user pauses it: at once where it waits, else at a border,
    {State::VALIDATING, State::PAUSED},
    {State::QUEUED, State::PAUSED},
    {State::PREPARING, State::PAUSING},
    {State::RUNNING, State::PAUSING},
    {State::PAUSING, State::PAUSED},
    // unless its last step came first;
    {State::PAUSING, State::FINALIZING},
    // and resumes it: before it has left its group, or from its newest checkpoint.
    {State::PAUSING, State::PREPARING},
    {State::PAUSING, State::RUNNING},
    {State::PAUSED, State::VALIDATING},
    {State::PAUSED, State::QUEUED},
    // Asked to finish, it waits and has a checkpoint.
    {State::QUEUED, State::SUCCEEDED},
    {State::PAUSED, State::SUCCEEDED},
}};

}  // namespace

bool IsLive(v1::Job::State state) {
  return state != State::STATE_UNSPECIFIED && state != State::SUCCEEDED &&
         state != State::CANCELLED && state != State::FAILED;
}

bool IsPlaced(v1::Job::State state) {
  return state == State::PREPARING || state == State::RUNNING || state == State::FINALIZING ||
         state == State::PAUSING;
}

bool IsLegal(v1::Job::State from, v1::Job::State to) {
  if (to == State::FAILED) return IsLive(from);
  if (to == State::CANCELLING) return IsLive(from) && from != State::CANCELLING;
  for (const Transition& legal : kTransitions) {
    if (legal.from == from && legal.to == to) return true;
  }
  return false;
}

std::string ToText(v1::Job::State state) { return v1::Job::State_Name(state); }

}  // namespace lorad::server
