// The loop's tasks on threads.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "server/driver/task_pool.h"
#include "server/driver/tasks.h"

namespace lorad::server {

class ThreadTasks final : public Tasks {
 public:
  // A group plans one window at a time, so up to so many groups have a thread each.
  static constexpr int kPlannersMax = 64;

  explicit ThreadTasks(int rows_threads) : rows_(rows_threads) {}

  void Add(Queue queue, std::function<void()> task) override { PoolOf(queue).Add(std::move(task)); }
  // Tasks that have not begun are dropped; those under way are waited for.
  void Stop() {
    for (TaskPool* pool : {&files_, &planner_, &rows_, &reads_}) pool->Stop();
  }

 private:
  TaskPool& PoolOf(Queue queue) {
    switch (queue) {
      case Queue::kFiles:
        return files_;
      case Queue::kPlanner:
        return planner_;
      case Queue::kReads:
        return reads_;
      case Queue::kRows:
        break;
    }
    return rows_;
  }

  TaskPool files_{1};
  TaskPool planner_{kPlannersMax};
  TaskPool rows_;  // apart from them: a check of many rows holds up no window
  TaskPool reads_{1};
};

}  // namespace lorad::server
