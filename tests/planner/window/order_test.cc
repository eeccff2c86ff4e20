#include "planner/window/order.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <random>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

Segment Train(const std::string& job, int64_t step) {
  return {job, SegmentMode::kTrain, step, 0, 0, 10};
}
Segment Evaluate(const std::string& job, int64_t step) {
  return {job, SegmentMode::kEvaluate, step, 0, 0, 10};
}

OrderInput Input(int stages, std::vector<std::vector<Segment>> microbatches,
                 std::vector<BatchEnd> ends) {
  OrderInput input;
  input.stages = stages;
  for (size_t i = 0; i < microbatches.size(); ++i) {
    input.microbatches.push_back({static_cast<int64_t>(i), microbatches[i]});
  }
  input.ends = std::move(ends);
  return input;
}

// The lists as lines, or the error.
std::string Lines(const OrderInput& input) {
  const auto stages = OrderOperations(input);
  if (!stages.ok()) return std::string(stages.status().message());
  Window window{input.microbatches, {}, *stages};
  const absl::Status status = VerifyWindow(window);
  if (!status.ok()) return "NOT VERIFIED: " + std::string(status.message());
  std::string text;
  for (const auto& stage : *stages) text += (text.empty() ? "" : "\n") + ToText(stage);
  return text;
}

TEST_CASE("One stage") {
  CHECK(Lines(Input(1, {}, {})) == "");
  CHECK(Lines(Input(1, {{Train("a", 1)}}, {{"a", 1, 0.5, false}})) ==
        "F0; B0; NORM_UP a/1; CLIP_DOWN a/1; STEP a/1 lr=0.5");
  // Step directly after the batch's last Backward, Save directly after Step.
  CHECK(Lines(Input(1, {{Train("a", 1), Train("b", 7)}, {Train("a", 1)}},
                    {{"a", 1, 0.5, true}, {"b", 7, 0.25, false}})) ==
        "F0; B0; NORM_UP b/7; CLIP_DOWN b/7; STEP b/7 lr=0.25; "
        "F1; B1; NORM_UP a/1; CLIP_DOWN a/1; STEP a/1 lr=0.5; SAVE a/1");
  // Consecutive batches of one job.
  CHECK(Lines(Input(1, {{Train("a", 1)}, {Train("a", 2)}},
                    {{"a", 1, 1, false}, {"a", 2, 2, false}})) ==
        "F0; B0; NORM_UP a/1; CLIP_DOWN a/1; STEP a/1 lr=1; "
        "F1; B1; NORM_UP a/2; CLIP_DOWN a/2; STEP a/2 lr=2");
  // Evaluation after step 1 stands behind it.
  CHECK(Lines(Input(1, {{Train("a", 1)}, {Evaluate("a", 1), Evaluate("b", 3)}},
                    {{"a", 1, 1, false}})) ==
        "F0; B0; NORM_UP a/1; CLIP_DOWN a/1; STEP a/1 lr=1; E1");
}

TEST_CASE("Frees, loads and saves stand at the front") {
  OrderInput input = Input(1, {{Train("c", 3)}}, {{"c", 3, 1, false}});
  input.frees = {"a"};
  input.loads = {{"c", 2}};
  input.saves = {{"b", 9}};
  CHECK(Lines(input) ==
        "FREE a; LOAD c/2; SAVE b/9; F0; B0; NORM_UP c/3; CLIP_DOWN c/3; STEP c/3 lr=1");
}

TEST_CASE("Two stages: the first runs one microbatch ahead") {
  CHECK(Lines(Input(2, {{Train("a", 1)}, {Train("b", 1)}},
                    {{"a", 1, 1, false}, {"b", 1, 1, false}})) ==
        "F0; SEND F0>1; F1; SEND F1>1; RECV B0<1; B0; NORM_UP a/1; CLIP_DOWN a/1; STEP a/1 lr=1; "
        "RECV B1<1; B1; NORM_UP b/1; CLIP_DOWN b/1; STEP b/1 lr=1\n"
        "RECV F0<0; F0; B0; SEND B0>0; NORM_UP a/1; "
        "RECV F1<0; F1; B1; SEND B1>0; NORM_UP b/1; CLIP_DOWN a/1; STEP a/1 lr=1; "
        "CLIP_DOWN b/1; STEP b/1 lr=1");
}

TEST_CASE("A job's next batch too close behind is held back by Noops") {
  // The next microbatch of `a` would be forwarded on stage 0 before its step.
  CHECK(Lines(Input(2, {{Train("a", 1)}, {Train("a", 2)}},
                    {{"a", 1, 1, false}, {"a", 2, 1, false}})) ==
        "F0; SEND F0>1; NOOP 2; RECV B0<1; B0; NORM_UP a/1; CLIP_DOWN a/1; STEP a/1 lr=1; "
        "F1; SEND F1>1; RECV B1<1; B1; NORM_UP a/2; CLIP_DOWN a/2; STEP a/2 lr=1\n"
        "RECV F0<0; F0; B0; SEND B0>0; NORM_UP a/1; NOOP 2; CLIP_DOWN a/1; STEP a/1 lr=1; "
        "RECV F1<0; F1; B1; SEND B1>0; NORM_UP a/2; CLIP_DOWN a/2; STEP a/2 lr=1");
}

TEST_CASE("What contradicts itself is refused") {
  CHECK(Lines(Input(1, {{Train("a", 1)}}, {})) == "batch a/1 has no end");
  CHECK(Lines(Input(1, {}, {{"a", 1, 1, false}})) ==
        "batch a/1 ends but has no microbatch, or ends twice");
  CHECK(
      Lines(Input(1, {{Train("a", 1), Train("a", 2)}}, {{"a", 1, 1, false}, {"a", 2, 1, false}})) ==
      "microbatch 0 holds two batches of job a");
  CHECK(Lines(Input(1, {{Train("a", 1), Evaluate("b", 2)}}, {{"a", 1, 1, false}})) ==
        "microbatch 0 holds segments to train on and to evaluate");
  CHECK(Lines(Input(1, {{Train("a", 2)}, {Train("a", 1)}},
                    {{"a", 1, 1, false}, {"a", 2, 1, false}})) ==
        "microbatch 1 holds batch a/1 after one of 2");
  CHECK(Lines(Input(1, {{Train("a", 1)}, {Train("a", 2)}, {Train("a", 1)}},
                    {{"a", 1, 1, false}, {"a", 2, 1, false}})) ==
        "microbatch 1 holds batch a/2 after one of 1");
  CHECK(Lines(Input(1, {{}}, {})) == "microbatch 0 is empty");
  CHECK(Lines(Input(0, {}, {})) == "0 stages");
  OrderInput negative = Input(1, {}, {});
  negative.in_flight = -1;
  CHECK(Lines(negative) == "-1 microbatches in flight");
}

TEST_CASE("Microbatches ahead, by stage") {
  struct Case {
    int stages, in_flight;
    std::vector<int> expected;
  };
  const Case cases[] = {
      {1, 0, {0}},          {1, 1, {0}},          {1, 3, {2}},
      {4, 0, {3, 2, 1, 0}}, {4, 4, {3, 2, 1, 0}}, {4, 1, {0, 0, 0, 0}},
      {4, 2, {1, 1, 1, 0}}, {4, 3, {2, 2, 1, 0}}, {4, 6, {5, 4, 3, 2}},
  };
  for (const Case& c : cases) {
    for (int stage = 0; stage < c.stages; ++stage) {
      INFO(c.stages << " stages, " << c.in_flight << " in flight, stage " << stage);
      CHECK(ForwardsAhead(c.stages, c.in_flight, stage) == c.expected[static_cast<size_t>(stage)]);
    }
  }
}

// Any operation dropped, doubled or moved to where it does not belong must be found out.
TEST_CASE("The verifier finds every operation that is missing or twice") {
  OrderInput input = Input(2, {{Train("a", 1), Train("b", 4)}, {Train("a", 1)}, {Train("b", 5)}},
                           {{"a", 1, 1, true}, {"b", 4, 1, false}, {"b", 5, 1, false}});
  input.microbatches.push_back({3, {Evaluate("a", 1)}});
  const auto stages = OrderOperations(input);
  REQUIRE(stages.ok());
  const Window good{input.microbatches, {}, *stages};
  REQUIRE(VerifyWindow(good).ok());
  for (size_t stage = 0; stage < good.stages.size(); ++stage) {
    for (size_t at = 0; at < good.stages[stage].size(); ++at) {
      const Operation operation = good.stages[stage][at];
      if (operation.kind == OperationKind::kNoop) continue;
      INFO("stage " << stage << ", " << ToText(operation));
      Window bad = good;
      auto& list = bad.stages[stage];
      list.insert(list.begin() + static_cast<ptrdiff_t>(at), operation);
      CHECK_FALSE(VerifyWindow(bad).ok());
      list = good.stages[stage];
      list.erase(list.begin() + static_cast<ptrdiff_t>(at));
      // A shard less is a choice, not a contradiction.
      if (operation.kind != OperationKind::kSave) CHECK_FALSE(VerifyWindow(bad).ok());
    }
  }
}

TEST_CASE("The verifier finds every transfer that is missing on both sides") {
  OrderInput input =
      Input(3, {{Train("a", 1)}, {Train("b", 4)}}, {{"a", 1, 1, false}, {"b", 4, 1, false}});
  input.microbatches.push_back({2, {Evaluate("a", 1)}});
  const auto stages = OrderOperations(input);
  REQUIRE(stages.ok());
  const Window good{input.microbatches, {}, *stages};
  REQUIRE(VerifyWindow(good).ok());
  int dropped = 0;
  for (size_t stage = 0; stage < good.stages.size(); ++stage) {
    for (const Operation& send : good.stages[stage]) {
      if (send.kind != OperationKind::kSend) continue;
      INFO("stage " << stage << ", " << ToText(send));
      Window bad = good;
      Operation receive = send;
      receive.kind = OperationKind::kRecv;
      receive.peer = static_cast<int>(stage);
      std::erase(bad.stages[stage], send);
      REQUIRE(std::erase(bad.stages[static_cast<size_t>(send.peer)], receive) == 1);
      CHECK_FALSE(VerifyWindow(bad).ok());
      ++dropped;
    }
  }
  CHECK(dropped == 10);  // two borders, two trained both ways, one evaluated
}

TEST_CASE("The verifier names what is wrong") {
  const Operation f0{.kind = OperationKind::kForward, .microbatch = 0};
  const Operation b0{.kind = OperationKind::kBackward, .microbatch = 0};
  const Operation norm{.kind = OperationKind::kNormUp, .job = "a", .step = 1};
  const Operation clip{.kind = OperationKind::kClipDown, .job = "a", .step = 1};
  const Operation step{.kind = OperationKind::kStep, .job = "a", .step = 1, .learning_rate = 1};
  const Operation save{.kind = OperationKind::kSave, .job = "a", .step = 1};
  const Operation free{.kind = OperationKind::kFreeSlot, .job = "a"};
  const Operation load{.kind = OperationKind::kLoadSlot, .job = "a"};
  struct Case {
    std::vector<Operation> operations;
    std::string expected;
  };
  const Case cases[] = {
      {{f0, b0, norm, clip, step, save}, ""},
      {{load, f0, b0, norm, clip, step, save, free}, ""},
      {{f0, b0, norm, clip, step, free, save},
       "stage 0, operation 6 (SAVE a/1): the job has no slot"},
      {{free, f0, b0, norm, clip, step}, "stage 0, operation 1 (F0): job a has no slot"},
      {{f0, load, b0, norm, clip, step},
       "stage 0, operation 1 (LOAD a/0): the job is loaded already"},
      {{f0, norm, b0, clip, step}, "stage 0, operation 1 (NORM_UP a/1): B0 is yet to come"},
      {{f0, b0, clip, norm, step}, "stage 0, operation 2 (CLIP_DOWN a/1): NORM_UP is yet to come"},
      {{f0, b0, norm, step, clip},
       "stage 0, operation 3 (STEP a/1 lr=1): CLIP_DOWN is yet to come"},
      {{save, f0, b0, norm, clip, step},
       "stage 0, operation 0 (SAVE a/1): does not stand directly after its Step"},
      {{f0, free, b0, norm, clip, step}, "stage 0, operation 2 (B0): job a has no slot"},
      {{f0, b0, norm, clip, free, step},
       "stage 0, operation 5 (STEP a/1 lr=1): the job has no slot"},
      {{b0, f0, norm, clip, step}, "stage 0, operation 0 (B0): no Forward before it"},
      {{f0, b0, norm, clip}, "stage 0, operation 4 (end): batch a/1 has no Step"},
  };
  for (const Case& c : cases) {
    const Window window{{{0, {Train("a", 1)}}}, {}, {c.operations}};
    CHECK(VerifyWindow(window).message() == c.expected);
  }
  const Operation f1{.kind = OperationKind::kForward, .microbatch = 1};
  const Operation b1{.kind = OperationKind::kBackward, .microbatch = 1};
  const std::vector<Microbatch> two = {{0, {Train("a", 1)}}, {1, {Train("a", 1)}}};
  CHECK(VerifyWindow({two, {}, {{f0, f1, b1, b0, norm, clip, step}}}).message() ==
        "stage 0, operation 2 (B1): B0 is first");
}

// Tries every number of Noops before every microbatch of a train run; fewest that verify.
int FewestNoops(const std::vector<std::vector<std::string>>& jobs_of, int ahead) {
  // Microbatch i holds the next batch of each of its jobs; each batch is one microbatch.
  const size_t count = jobs_of.size();
  for (int total = 0;; ++total) {
    std::vector<int> before(count, 0);
    std::function<bool(size_t, int)> place = [&](size_t at, int left) {
      if (at == count) {
        std::map<std::string, int> last;
        int position = 0;
        for (size_t i = 0; i < count; ++i) {
          position += before[i];
          for (const std::string& job : jobs_of[i]) {
            const auto it = last.find(job);
            // F at `position` on stage 0 comes after the backward of place position - ahead - 1.
            if (it != last.end() && position - ahead - 1 < it->second) return false;
            last[job] = position;
          }
          ++position;
        }
        return true;
      }
      for (int n = 0; n <= left; ++n) {
        before[at] = n;
        if (place(at + 1, left - n)) return true;
      }
      before[at] = 0;
      return false;
    };
    if (place(0, total)) return total;
  }
}

TEST_CASE("Random pipelines verify, with the fewest Noops") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 1000; ++i) {
      const int stages = 1 + static_cast<int>(random() % 4);
      const size_t jobs = 1 + random() % 4;
      std::map<std::string, int64_t> step;
      std::vector<std::vector<std::string>> jobs_of;
      OrderInput input;
      input.stages = stages;
      input.in_flight = static_cast<int>(random() % 6);
      for (size_t m = 0, count = 1 + random() % 5; m < count; ++m) {
        Microbatch microbatch{static_cast<int64_t>(10 + m), {}};
        jobs_of.emplace_back();
        for (size_t j = 0; j < jobs; ++j) {
          if (random() % 2 == 0 && (j + 1 < jobs || !microbatch.segments.empty())) continue;
          const std::string job(1, static_cast<char>('a' + j));
          microbatch.segments.push_back(Train(job, ++step[job]));
          jobs_of.back().push_back(job);
          input.ends.push_back({job, step[job], 1, random() % 3 == 0});
        }
        input.microbatches.push_back(microbatch);
      }
      const auto lists = OrderOperations(input);
      REQUIRE(lists.ok());
      REQUIRE(VerifyWindow({input.microbatches, {}, *lists}).message() == "");
      const auto noops = std::count_if((*lists)[0].begin(), (*lists)[0].end(), [](const auto& o) {
        return o.kind == OperationKind::kNoop;
      });
      REQUIRE(noops == FewestNoops(jobs_of, ForwardsAhead(stages, input.in_flight, 0)));
    }
  }
}

TEST_CASE("A window that runs on is proven joined to what is in flight before and behind it") {
  for (const int in_flight : {0, 2, 3, 5}) {
    INFO(in_flight << " in flight");
    OrderInput first = Input(3, {{Train("a", 1)}, {Train("b", 1)}, {Train("b", 1), Train("c", 1)}},
                             {{"a", 1, 1, false}, {"b", 1, 1, true}, {"c", 1, 1, false}});
    first.in_flight = in_flight;
    PlacesInFlight before;
    const auto lists = OrderOperations(first, &before);
    REQUIRE(lists.ok());
    CHECK(VerifyWindowAmong({first.microbatches, {}, *lists}, in_flight, {}, before).ok());
    OrderInput second;
    second.stages = 3;
    second.in_flight = in_flight;
    second.before = before;
    second.frees = {"c"};
    second.loads = {{"d", 0}};
    second.microbatches = {
        {7, {Evaluate("b", 1)}}, {8, {Train("a", 2)}}, {9, {Train("b", 2), Train("d", 1)}}};
    second.ends = {{"a", 2, 1, false}, {"b", 2, 1, false}, {"d", 1, 1, false}};
    PlacesInFlight left;
    const auto stages = OrderOperations(second, &left);
    REQUIRE(stages.ok());
    const Window good{second.microbatches, {}, *stages};
    REQUIRE(VerifyWindowAmong(good, in_flight, before, left).message() == "");
    for (size_t stage = 0; stage < good.stages.size(); ++stage) {
      for (size_t at = 0; at < good.stages[stage].size(); ++at) {
        const Operation operation = good.stages[stage][at];
        if (operation.kind == OperationKind::kNoop) continue;
        INFO("stage " << stage << ", " << ToText(operation));
        Window bad = good;
        auto& list = bad.stages[stage];
        list.insert(list.begin() + static_cast<ptrdiff_t>(at), operation);
        if (operation.kind != OperationKind::kLoadSlot) {
          CHECK_FALSE(VerifyWindowAmong(bad, in_flight, before, left).ok());
        }
        list = good.stages[stage];
        list.erase(list.begin() + static_cast<ptrdiff_t>(at));
        const bool contradicts = operation.kind != OperationKind::kSave &&
                                 operation.kind != OperationKind::kLoadSlot &&
                                 operation.kind != OperationKind::kFreeSlot;
        if (contradicts) CHECK_FALSE(VerifyWindowAmong(bad, in_flight, before, left).ok());
      }
      // A slot that is freed under what is in flight.
      Window early = good;
      auto& list = early.stages[stage];
      const Operation free{.kind = OperationKind::kFreeSlot, .job = "c"};
      if (list.front() == free) continue;
      std::erase(list, free);
      list.insert(list.begin(), free);
      CHECK(VerifyWindowAmong(early, in_flight, before, left).message().find("no slot") !=
            std::string::npos);
    }
    // What is said to be in flight and is not, and what is and is not said to be.
    if (before.empty()) continue;
    CHECK_FALSE(VerifyWindowAmong(good, in_flight, {}, left).ok());
    CHECK_FALSE(VerifyWindowAmong(good, in_flight, before, {}).ok());
  }
}

// ---- over borders ----

TEST_CASE("Two stages: what is in flight is left, and taken over") {
  OrderInput first =
      Input(2, {{Train("a", 1)}, {Train("b", 1)}}, {{"a", 1, 1, false}, {"b", 1, 1, false}});
  PlacesInFlight left;
  auto lists = OrderOperations(first, &left);
  REQUIRE(lists.ok());
  CHECK(ToText((*lists)[0]) ==
        "F0; SEND F0>1; F1; SEND F1>1; RECV B0<1; B0; NORM_UP a/1; CLIP_DOWN a/1; STEP a/1 lr=1");
  CHECK(ToText((*lists)[1]) ==
        "RECV F0<0; F0; B0; SEND B0>0; NORM_UP a/1; RECV F1<0; F1; B1; SEND B1>0; NORM_UP b/1; "
        "CLIP_DOWN a/1; STEP a/1 lr=1");
  REQUIRE(left.size() == 1);
  CHECK(left[0] == Place{1, OperationKind::kForward, {{"b", 1, 1, false}}, 10});
  // b is freed behind its step, c loaded behind that, a goes on meanwhile.
  OrderInput second;
  second.stages = 2;
  second.before = left;
  second.frees = {"b"};
  second.loads = {{"c", 0}};
  second.saves = {{"b", 1}};
  second.microbatches = {{2, {Train("a", 2)}}, {3, {Train("c", 1)}}};
  second.ends = {{"a", 2, 1, false}, {"c", 1, 1, false}};
  lists = OrderOperations(second);
  REQUIRE(lists.ok());
  CHECK(ToText((*lists)[0]) ==
        "F2; SEND F2>1; RECV B1<1; B1; NORM_UP b/1; CLIP_DOWN b/1; STEP b/1 lr=1; SAVE b/1; "
        "FREE b; LOAD c/0; "
        "F3; SEND F3>1; RECV B2<1; B2; NORM_UP a/2; CLIP_DOWN a/2; STEP a/2 lr=1; "
        "RECV B3<1; B3; NORM_UP c/1; CLIP_DOWN c/1; STEP c/1 lr=1");
  CHECK(ToText((*lists)[1]) ==
        "RECV F2<0; F2; B2; SEND B2>0; NORM_UP a/2; CLIP_DOWN b/1; STEP b/1 lr=1; SAVE b/1; "
        "FREE b; LOAD c/0; "
        "RECV F3<0; F3; B3; SEND B3>0; NORM_UP c/1; CLIP_DOWN a/2; STEP a/2 lr=1; "
        "CLIP_DOWN c/1; STEP c/1 lr=1");
}

TEST_CASE("With nothing else to run, a slot that is freed lets the pipeline go on by Noops") {
  PlacesInFlight left;
  REQUIRE(OrderOperations(Input(3, {{Train("a", 1)}}, {{"a", 1, 1, false}}), &left).ok());
  REQUIRE(left.size() == 1);
  OrderInput next;
  next.stages = 3;
  next.before = left;
  next.frees = {"a"};
  const auto lists = OrderOperations(next, &left);
  REQUIRE(lists.ok());
  CHECK(ToText((*lists)[0]) ==
        "NOOP 1; NOOP 2; RECV B0<1; B0; NORM_UP a/1; CLIP_DOWN a/1; STEP a/1 lr=1; FREE a");
  CHECK(left.size() == 2);
  CHECK(left[0].kind == OperationKind::kNoop);
}

TEST_CASE("One stage leaves nothing") {
  PlacesInFlight left;
  const OrderInput input =
      Input(1, {{Train("a", 1)}, {Train("a", 2)}}, {{"a", 1, 1, false}, {"a", 2, 1, false}});
  const auto running_on = OrderOperations(input, &left);
  CHECK(left.empty());
  CHECK(*running_on == *OrderOperations(input));
}

// A job as it comes and goes over many windows.
struct Life {
  std::string name;
  int64_t step = 0;
  bool resident = false;
};

// One window at random: jobs join, leave, train a batch of some microbatches, evaluate.
OrderInput RandomWindow(std::mt19937_64& random, int64_t* number, std::vector<Life>* lives) {
  OrderInput input;
  std::vector<std::vector<Segment>> trained, evaluated;
  for (Life& life : *lives) {
    const bool was_resident = life.resident;
    if (random() % 4 == 0) {
      life.resident = !life.resident;
      if (life.resident) {
        input.loads.emplace_back(life.name, life.step);
      } else {
        input.frees.push_back(life.name);
      }
    }
    if (!life.resident) continue;
    if (was_resident && random() % 4 == 0) evaluated.push_back({Evaluate(life.name, life.step)});
    if (random() % 5 == 0) continue;
    ++life.step;
    const size_t count = 1 + random() % 3;
    for (size_t i = 0; i < count; ++i) {
      const bool shares = !trained.empty() && random() % 3 == 0 &&
                          trained.back().front().job != life.name && i == 0;
      if (shares) {
        trained.back().push_back(Train(life.name, life.step));
      } else {
        trained.push_back({Train(life.name, life.step)});
      }
    }
    input.ends.push_back({life.name, life.step, 1, random() % 3 == 0});
  }
  // Evaluations of a step that this window's batches follow come before these.
  evaluated.insert(evaluated.end(), trained.begin(), trained.end());
  for (std::vector<Segment>& segments : evaluated) {
    input.microbatches.push_back({(*number)++, std::move(segments)});
  }
  return input;
}

TEST_CASE("Windows that run on are right when joined, whoever joins, leaves or evaluates") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const int stages = 1 + static_cast<int>(random() % 4);
    const int in_flight = static_cast<int>(random() % 7);
    INFO("round " << round << ", " << stages << " stages, " << in_flight << " in flight");
    std::vector<Life> lives = {{"a"}, {"b"}, {"c"}, {"d"}};
    int64_t number = 0;
    PlacesInFlight left;
    std::vector<Window> windows;
    const int count = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < count; ++i) {
      OrderInput input = RandomWindow(random, &number, &lives);
      input.stages = stages;
      input.in_flight = in_flight;
      input.before = left;
      const bool last = i + 1 == count;
      auto lists = OrderOperations(input, last ? nullptr : &left);
      REQUIRE(lists.ok());
      CHECK(left.size() <= static_cast<size_t>(ForwardsAhead(stages, in_flight, 0)));
      windows.push_back({input.microbatches, {}, *lists});
      const PlacesInFlight behind = last ? PlacesInFlight() : left;
      REQUIRE(VerifyWindowAmong(windows.back(), in_flight, input.before, behind).message() == "");
    }
    const absl::Status status = VerifyWindows(windows);
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
}

}  // namespace
}  // namespace lorad::planner
