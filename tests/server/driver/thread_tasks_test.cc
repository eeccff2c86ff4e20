#include "server/driver/thread_tasks.h"

#include <algorithm>
#include <atomic>
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
  tasks.Add(Queue::kFiles, [&begun, dropped = std::weak_ptr<int>(waiting)] {
    begun.set_value();
    while (!dropped.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  begun.get_future().wait();
  bool ran = false;
  tasks.Add(Queue::kFiles, [&ran, waiting = std::move(waiting)] { ran = true; });
  tasks.Stop();
  tasks.Add(Queue::kFiles, [&] { ran = true; });
  CHECK_FALSE(ran);
}

TEST_CASE("a window that takes long to plan holds up no other group's") {
  ThreadTasks tasks(1);
  std::promise<void> go_on;
  const std::shared_future<void> held = go_on.get_future().share();
  std::atomic<int> under_way = 0;
  std::promise<void> all_wait, planned;
  for (int i = 1; i < ThreadTasks::kPlannersMax; ++i) {
    tasks.Add(Queue::kPlanner, [&under_way, &all_wait, held] {
      if (++under_way == ThreadTasks::kPlannersMax - 1) all_wait.set_value();
      held.wait();
    });
  }
  tasks.Add(Queue::kPlanner, [&] { planned.set_value(); });
  const auto in_time = [](std::promise<void>& promise) {
    return promise.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  };
  CHECK(in_time(all_wait));
  CHECK(in_time(planned));
  go_on.set_value();
}

TEST_CASE("more tasks than threads: all of them are run, at most so many at once") {
  std::atomic<int> under_way = 0, most = 0, done = 0;
  std::promise<void> end;
  TaskPool pool(3);
  for (int i = 0; i < 200; ++i) {
    pool.Add([&] {
      const int now = ++under_way;
      for (int before = most; before < now && !most.compare_exchange_weak(before, now);) {
      }
      std::this_thread::yield();
      --under_way;
      if (++done == 200) end.set_value();
    });
  }
  end.get_future().wait();
  CHECK(most <= 3);
  CHECK(done == 200);
}

}  // namespace
}  // namespace lorad::server
