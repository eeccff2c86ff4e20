#include "server/core/cluster/orders.h"

#include <catch2/catch.hpp>

namespace lorad::server {
namespace {

using worker::v1::Operation;

void AddStep(worker::v1::Window& window, const std::string& job, int64_t step) {
  Operation& operation = *window.add_operations();
  operation.set_kind(Operation::STEP);
  operation.set_job(job);
  operation.set_step(step);
  operation.set_learning_rate(0.5);
}

void AddBatch(worker::v1::Window& window, const std::string& job, int64_t step) {
  worker::v1::Batch& batch = *window.add_batches();
  batch.set_job(job);
  batch.set_step(step);
}

void AddMicrobatch(worker::v1::Window& window, int64_t number, const std::string& job) {
  worker::v1::Microbatch& microbatch = *window.add_microbatches();
  microbatch.set_number(number);
  microbatch.add_segments()->set_job(job);
}

planner::Place Forwarded(int64_t number, std::vector<planner::BatchEnd> ends) {
  return {number, planner::OperationKind::kForward, std::move(ends)};
}

// Of several stages: batch 1 of job a begins in window 1, and is stepped in window 2.
struct TwoWindows {
  OpenBatches open;
  StageOrders last, first;
  StageWindows sent_first, sent_second;

  TwoWindows() {
    worker::v1::Window one;
    one.set_number(1);
    AddBatch(one, "a", 1);
    AddMicrobatch(one, 7, "a");
    sent_first = {{}, {Forwarded(7, {{"a", 1, 0.5, false}})}, 8};
    Add(one, sent_first);
    worker::v1::Window two;
    two.set_number(2);
    AddBatch(two, "a", 2);
    AddMicrobatch(two, 9, "a");
    AddStep(two, "a", 1);
    sent_second = {{}, {Forwarded(9, {{"a", 2, 0.5, false}})}, 10};
    Add(two, sent_second);
  }

  void Add(const worker::v1::Window& window, const StageWindows& sent) {
    AddWindow(window, sent, {}, nullptr, first);
    AddWindow(window, sent, {}, &open, last);
  }
};

TEST_CASE("a Step is awaited of the window that holds it, on the stage that has the losses") {
  TwoWindows sent;
  CHECK(FindStep(sent.first, "a") == nullptr);
  REQUIRE(FindStep(sent.last, "a") != nullptr);
  CHECK(FindStep(sent.last, "a")->batch.step() == 1);
  CHECK(sent.last.windows.front().jobs.empty());
  CHECK_FALSE(sent.last.windows.back().jobs.at("a").answered());
  CHECK(sent.open.contains({"a", 2}));
  TakeStep(sent.last, "a");
  CHECK(sent.last.windows.back().jobs.at("a").answered());
}

TEST_CASE("a microbatch that is in flight may end behind its window, and no later") {
  TwoWindows sent;
  TakeWindow(sent.first);
  CHECK(FindMicrobatch(sent.first, 7) != nullptr);
  CHECK(TakeMicrobatch(sent.first, 7).jobs == std::vector<std::string>{"a"});
  CHECK(FindMicrobatch(sent.first, 7) == nullptr);
  TakeWindow(sent.last);
  TakeWindow(sent.last);
  CHECK(FindMicrobatch(sent.last, 7) == nullptr);
  CHECK(FindMicrobatch(sent.last, 9) != nullptr);
}

TEST_CASE("a cut keeps what is in flight before it") {
  TwoWindows sent;
  planner::PlacesInFlight left = sent.sent_second.left;
  const auto cut_jobs = GiveUpFrom(sent.last, 9);
  CHECK(cut_jobs == std::set<std::string>{"a"});
  CHECK(sent.last.windows.back().jobs.at("a").answered());
  CHECK(FindStep(sent.last, "a") != nullptr);  // it may come
  CHECK(FindMicrobatch(sent.last, 9) == nullptr);
  CHECK(FindMicrobatch(sent.last, 7) != nullptr);
  CutPlaces(left, 9, cut_jobs);
  CHECK(left.empty());

  planner::PlacesInFlight mixed = {Forwarded(7, {{"b", 3, 0.5, false}}),
                                   Forwarded(9, {{"a", 2, 0.5, false}})};
  CutPlaces(mixed, 9, cut_jobs);
  REQUIRE(mixed.size() == 2);
  CHECK(mixed[0].ends.size() == 1);
  CHECK(mixed[1].kind == planner::OperationKind::kNoop);
  CHECK(mixed[1].ends.empty());
  CHECK(AnyInFlight(mixed));
}

TEST_CASE("a slot whose FreeSlot a cut drops is not awaited any more") {
  StageOrders orders;
  OpenBatches open;
  worker::v1::Window one;
  one.set_number(1);
  AddMicrobatch(one, 3, "a");
  AddWindow(one, {{}, {}, 4}, {}, &open, orders);
  worker::v1::Window two;
  two.set_number(2);
  for (const std::string job : {"a", "b"}) {
    Operation& free = *two.add_operations();
    free.set_kind(Operation::FREE_SLOT);
    free.set_job(job);
  }
  AddWindow(two, {{}, {}, 4}, {}, &open, orders);
  CHECK(orders.freeing == std::set<std::string>{"a", "b"});
  GiveUpFrom(orders, 3);
  CHECK(orders.freeing == std::set<std::string>{"b"});
}

// A window that loads a job and begins a microbatch of another one.
worker::v1::Window LoadAndBegin(int64_t number, const std::string& load, int64_t microbatch) {
  worker::v1::Window window;
  window.set_number(number);
  Operation& operation = *window.add_operations();
  operation.set_kind(Operation::LOAD_SLOT);
  operation.set_job(load);
  AddMicrobatch(window, microbatch, "other");
  return window;
}

TEST_CASE("what a microbatch computes is known from its orders, adapters by their parameters") {
  worker::v1::Window window;
  window.set_number(1);
  worker::v1::Microbatch& microbatch = *window.add_microbatches();
  microbatch.set_number(3);
  for (const auto& [job, tokens] : {std::pair{"a", 5}, {"b", 7}, {"a", 2}, {"unknown", 1}}) {
    worker::v1::Segment& segment = *microbatch.add_segments();
    segment.set_job(job);
    segment.set_tokens(tokens);
  }
  StageOrders orders;
  AddWindow(window, {{}, {}, 4}, {{"a", 100}, {"b", 1000}, {"c", 1}}, nullptr, orders);
  const WindowWork work = WorkOf(orders.windows.front());
  CHECK(work.microbatches == 1);
  CHECK(work.sum == planner::Workload{15, 25 + 49 + 4 + 1, 100 * 7 + 1000 * 7});
  const BegunMicrobatch taken = TakeMicrobatch(orders, 3);
  CHECK(taken.jobs == std::vector<std::string>{"a", "b", "unknown"});
  CHECK(taken.work == work.sum);
}

TEST_CASE("a slot that is loaded for a window which a cut drops is freed again, once") {
  StageOrders ahead, behind;
  OpenBatches open;
  for (StageOrders* orders : {&ahead, &behind}) {
    AddWindow(LoadAndBegin(1, "a", 3), {{}, {}, 4}, {}, &open, *orders);
    AddWindow(LoadAndBegin(2, "b", 5), {{}, {}, 6}, {}, &open, *orders);
    TakeLoad(*orders, "a");
  }
  TakeLoad(ahead, "b");
  CHECK_FALSE(LoadIsUndone(ahead, "b"));
  for (StageOrders* orders : {&ahead, &behind}) GiveUpFrom(*orders, 5);
  CHECK_FALSE(LoadIsUndone(ahead, "a"));  // its window has begun
  REQUIRE(LoadIsUndone(ahead, "b"));
  TakeUndone(ahead, "b");
  CHECK_FALSE(LoadIsUndone(ahead, "b"));
  CHECK_FALSE(LoadIsUndone(behind, "b"));  // not loaded, as far as is known
  REQUIRE(FindLoad(behind, "b") != nullptr);
  TakeLoad(behind, "b");  // on its way when the cut came
  CHECK(LoadIsUndone(behind, "b"));
}

}  // namespace
}  // namespace lorad::server
