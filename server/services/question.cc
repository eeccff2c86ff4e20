#include "server/services/question.h"

#include <cassert>
#include <mutex>
#include <utility>

namespace lorad::server {
namespace {

absl::Status NobodyWaits() { return absl::CancelledError("the caller has left"); }

}  // namespace

struct Question::State {
  explicit State(TaskPool& pool_in) : pool(pool_in) {}

  // Hands the answers over, if nobody has yet. `pool` is there: the call that waits holds it.
  void Settle(std::unique_lock<std::mutex> lock) {
    auto tell = std::exchange(then, nullptr);
    if (!tell) return;
    std::vector<Answer> told = std::exchange(answers, {});
    lock.unlock();
    pool.Add([tell = std::move(tell), told = std::move(told)]() mutable { tell(std::move(told)); });
  }

  TaskPool& pool;
  std::mutex mutex;
  // Guarded by mutex:
  std::function<void(std::vector<Answer>)> then;  // null: nothing is asked
  std::vector<Answer> answers;
  size_t missing = 0;
  bool given_up = false;
};

Question::Question(Driver& driver, TaskPool& pool)
    : driver_(driver), state_(std::make_shared<State>(pool)) {}

void Question::Ask(Request request, std::function<void(Answer)> then) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  AskAll(std::move(requests), [then = std::move(then)](std::vector<Answer> answers) {
    then(std::move(answers.front()));
  });
}

void Question::AskAll(std::vector<Request> requests,
                      std::function<void(std::vector<Answer>)> then) {
  // From the first answer on this may be gone.
  const std::shared_ptr<State> state = state_;
  Driver& driver = driver_;
  {
    std::unique_lock lock(state->mutex);
    assert(!state->then);
    state->then = std::move(then);
    state->answers.assign(requests.size(), Answer(NobodyWaits()));
    state->missing = requests.size();
    if (requests.empty()) return state->Settle(std::move(lock));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    driver.Call(std::move(requests[i]), [state, i](Answer answer) {
      std::unique_lock lock(state->mutex);
      if (!state->then) return;
      state->answers[i] = std::move(answer);
      if (--state->missing == 0) state->Settle(std::move(lock));
    });
  }
  // Asked all the same: an upload that came along is the driver's to keep or to remove.
  std::unique_lock lock(state->mutex);
  if (state->given_up) state->Settle(std::move(lock));
}

void Question::GiveUp() {
  std::unique_lock lock(state_->mutex);
  state_->given_up = true;
  state_->answers.assign(state_->answers.size(), Answer(NobodyWaits()));
  state_->Settle(std::move(lock));
}

}  // namespace lorad::server
