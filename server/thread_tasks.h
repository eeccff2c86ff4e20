// The loop's tasks on threads.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "server/task_pool.h"
#include "server/tasks.h"

namespace lorad::server {

class ThreadTasks final : public Tasks {
 public:
  explicit ThreadTasks(int rows_threads) : rows_(rows_threads) {}

  void Add(Queue queue, std::function<void()> task) override { PoolOf(queue).Add(std::move(task)); }
  // What has not begun is dropped; what is under way is waited for.
  void Stop() {
    for (const Queue queue : {Queue::kFiles, Queue::kPlanner, Queue::kRows}) PoolOf(queue).Stop();
  }

 private:
  TaskPool& PoolOf(Queue queue) {
    return queue == Queue::kFiles ? files_ : queue == Queue::kPlanner ? planner_ : rows_;
  }

  TaskPool files_{1};
  TaskPool planner_{1};  // a check of many rows holds up no window
  TaskPool rows_;
};

}  // namespace lorad::server
