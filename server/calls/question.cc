#include "server/calls/question.h"

#include <cassert>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace lorad::server {
namespace {

absl::Status NobodyWaits() { return absl::CancelledError("the caller has left"); }

}  // namespace

struct Question::State {
  explicit State(TaskPool& pool_in) : pool(pool_in) {}

  // Nobody waits from here on. Returns the function, for Post, that hands the answers to the one
  // who waited; null where nobody did.
  std::function<void()> End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    numbers.clear();
    if (!then) return nullptr;
    return [then = std::exchange(then, nullptr), answers = std::exchange(answers, {})]() mutable {
      then(std::move(answers));
    };
  }

  // Without the lock. `pool` is there: the call that waits holds it.
  void Post(std::function<void()> task) {
    if (task) pool.Add(std::move(task));
  }

  // Says to the driver that nobody waits, then to the one who waited. The driver first: once the
  // call has ended, it may go.
  void Abandon(Driver& driver) {
    std::vector<uint64_t> asked;
    {
      std::lock_guard lock(mutex);
      asked = std::exchange(numbers, {});
      if (!then) return;
    }
    for (const uint64_t number : asked) driver.GiveUp(number);
    std::function<void()> task;
    {
      std::lock_guard lock(mutex);
      task = End();
    }
    Post(std::move(task));
  }

  TaskPool& pool;
  std::mutex mutex;
  // Null: nothing is asked.
  std::function<void(std::vector<Answer>)> then ABSL_GUARDED_BY(mutex);
  std::vector<Answer> answers ABSL_GUARDED_BY(mutex);
  // The numbers of the requests, for Driver::GiveUp.
  std::vector<uint64_t> numbers ABSL_GUARDED_BY(mutex);
  size_t missing ABSL_GUARDED_BY(mutex) = 0;
  bool given_up ABSL_GUARDED_BY(mutex) = false;
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
  std::function<void()> at_once;
  {
    std::lock_guard lock(state->mutex);
    assert(!state->then);
    state->then = std::move(then);
    state->answers.assign(requests.size(), Answer(NobodyWaits()));
    state->missing = requests.size();
    if (requests.empty()) at_once = state->End();
  }
  if (at_once) return state->Post(std::move(at_once));
  for (size_t i = 0; i < requests.size(); ++i) {
    const uint64_t number = driver.Call(std::move(requests[i]), [state, i](Answer answer) {
      std::function<void()> task;
      {
        std::lock_guard lock(state->mutex);
        if (!state->then) return;
        state->answers[i] = std::move(answer);
        if (--state->missing == 0) task = state->End();
      }
      state->Post(std::move(task));
    });
    std::lock_guard lock(state->mutex);
    if (state->then) state->numbers.push_back(number);
  }
  // Asked all the same: an upload that came along is the driver's to keep or to remove.
  bool given_up = false;
  {
    std::lock_guard lock(state->mutex);
    given_up = state->given_up;
  }
  if (given_up) state->Abandon(driver);
}

void Question::GiveUp() {
  const std::shared_ptr<State> state = state_;
  {
    std::lock_guard lock(state->mutex);
    state->given_up = true;
    state->answers.assign(state->answers.size(), Answer(NobodyWaits()));
  }
  state->Abandon(driver_);
}

}  // namespace lorad::server
