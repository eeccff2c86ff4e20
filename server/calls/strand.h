// The events of one call, one after the other, on the threads of a pool: what is touched on its
// strand alone needs no lock.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/driver/task_pool.h"

namespace lorad::server {

class Strand {
 public:
  // `pool` must outlive every task.
  explicit Strand(TaskPool& pool) : state_(std::make_shared<State>(pool)) {}
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  // Any thread. Tasks run in the order in which they were posted; the last one may destroy the
  // strand.
  void Post(std::function<void()> task) {
    {
      std::lock_guard lock(state_->mutex);
      state_->tasks.push_back(std::move(task));
      if (std::exchange(state_->running, true)) return;
    }
    state_->pool.Add([state = state_] { Run(state); });
  }

 private:
  // Shared with the pool: the strand may be destroyed by its last task.
  struct State {
    explicit State(TaskPool& pool_in) : pool(pool_in) {}
    TaskPool& pool;
    std::mutex mutex;
    std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mutex);
    bool running ABSL_GUARDED_BY(mutex) = false;
  };

  // One task, then it is the others' turn.
  static void Run(const std::shared_ptr<State>& state) {
    std::function<void()> task;
    {
      std::lock_guard lock(state->mutex);
      task = std::move(state->tasks.front());
      state->tasks.pop_front();
    }
    task();
    task = nullptr;
    {
      std::lock_guard lock(state->mutex);
      state->running = !state->tasks.empty();
      if (!state->running) return;
    }
    state->pool.Add([state] { Run(state); });
  }

  const std::shared_ptr<State> state_;
};

}  // namespace lorad::server
