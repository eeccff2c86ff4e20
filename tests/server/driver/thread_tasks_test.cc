#include "server/driver/thread_tasks.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace lorad::server {
namespace {

using Queue = Tasks::Queue;

TEST_CASE("files are worked on one after the other, in their order") {
  std::vector<int> order;
  std::promise<void> done;
  ThreadTasks tasks(2);
  for (int i = 0; i < 100; ++i) {
    tasks.Add(Queue::kFiles, [&order, i] { order.push_back(i); });
  }
  tasks.Add(Queue::kFiles, [&] { done.set_value(); });
  done.get_future().wait();
  CHECK(order.size() == 100);
  CHECK(std::ranges::is_sorted(order));
}

TEST_CASE("what has not begun when the threads stop is dropped") {
  ThreadTasks tasks(1);
  auto waiting = std::make_shared<int>();  // held by the task that waits
  std::promise<void> begun;
  tasks.Add(Queue::kPlanner, [&begun, dropped = std::weak_ptr<int>(waiting)] {
    begun.set_value();
    while (!dropped.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  begun.get_future().wait();
  bool ran = false;
  tasks.Add(Queue::kPlanner, [&ran, waiting = std::move(waiting)] { ran = true; });
  tasks.Stop();
  tasks.Add(Queue::kPlanner, [&] { ran = true; });
  CHECK_FALSE(ran);
}

}  // namespace
}  // namespace lorad::server
