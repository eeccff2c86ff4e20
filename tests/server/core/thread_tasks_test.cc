#include "server/thread_tasks.h"

#include <catch2/catch.hpp>
#include <future>

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
  std::promise<void> begun;
  std::promise<void> go_on;
  tasks.Add(Queue::kPlanner, [&] {
    begun.set_value();
    go_on.get_future().wait();
  });
  begun.get_future().wait();
  bool ran = false;
  tasks.Add(Queue::kPlanner, [&] { ran = true; });
  std::thread stop([&] { tasks.Stop(); });
  go_on.set_value();
  stop.join();
  tasks.Add(Queue::kPlanner, [&] { ran = true; });
  CHECK_FALSE(ran);
}

}  // namespace
}  // namespace lorad::server
