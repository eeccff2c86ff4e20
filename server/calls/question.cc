#include "server/calls/question.h"

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
    numbers.clear();
    if (!tell) return;
    std::vector<Answer> told = std::exchange(answers, {});
    lock.unlock();
    pool.Add([tell = std::move(tell), told = std::move(told)]() mutable { tell(std::move(told)); });
  }

  // Tells the driver that nobody waits, then the one who waited. The driver first: once the call
  // has ended, it may go.
  void Abandon(Driver& driver, std::unique_lock<std::mutex> lock) {
    const std::vector<uint64_t> asked = std::exchange(numbers, {});
    if (!then) return;
    lock.unlock();
    for (const uint64_t number : asked) driver.GiveUp(number);
    lock.lock();
    Settle(std::move(lock));
  }

  TaskPool& pool;
  std::mutex mutex;
  // Guarded by mutex:
  std::function<void(std::vector<Answer>)> then;  // null: nothing is asked
  std::vector<Answer> answers;
  std::vector<uint64_t> numbers;  // of what was asked, for Driver::GiveUp
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
    const uint64_t number = driver.Call(std::move(requests[i]), [state, i](Answer answer) {
      std::unique_lock lock(state->mutex);
      if (!state->then) return;
      state->answers[i] = std::move(answer);
      if (--state->missing == 0) state->Settle(std::move(lock));
    });
    std::lock_guard lock(state->mutex);
    if (state->then) state->numbers.push_back(number);
  }
  // Asked all the same: an upload that came along is the driver's to keep or to remove.
  std::unique_lock lock(state->mutex);
  if (state->given_up) state->Abandon(driver, std::move(lock));
}

void Question::GiveUp() {
  const std::shared_ptr<State> state = state_;
  std::unique_lock lock(state->mutex);
  state->given_up = true;
  state->answers.assign(state->answers.size(), Answer(NobodyWaits()));
  state->Abandon(driver_, std::move(lock));
}

}  // namespace lorad::server
