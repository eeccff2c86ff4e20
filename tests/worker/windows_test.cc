// Windows as the coordinator may send them: cut, malformed, with jobs that fail, with a coordinator
// that is away.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/worker/harness.h"
#include "tests/worker/rows.h"

namespace lorad::worker {
namespace {

using Kind = v1::Operation;

Harness::Options SmallGroup() {
  return {.model_path = MakeRandomModel(std::filesystem::temp_directory_path() / "windows_model"),
          .threads = 2,
          .capacity_tokens = 128,
          .longest_sequence = 100};
}

TestJob JobA() { return MakeJob("a", 4, {"q_proj", "down_proj"}, RandomRows(12, 20, 100, 1), 4); }
TestJob JobB() { return MakeJob("b", 8, {"v_proj", "up_proj"}, RandomRows(12, 20, 100, 2), 4); }

std::string ShardAlone(TestJob job, int64_t steps) {
  Harness harness(SmallGroup());
  harness.Form();
  harness.Load(job);
  while (job.step < steps) harness.Step({&job}, job.step + 1 == steps);
  return harness.Shard(job);
}

int64_t Count(const std::vector<v1::Report>& reports, v1::Report::ContentCase kind) {
  return std::count_if(reports.begin(), reports.end(),
                       [&](const v1::Report& report) { return report.content_case() == kind; });
}

TEST_CASE("a job that is cut in mid-batch trains that batch again with the same bits") {
  Harness harness(SmallGroup());
  harness.Form();
  TestJob a = JobA();
  TestJob b = JobB();
  harness.Load(a);
  harness.Load(b);
  harness.Step({&a, &b});
  // Cut before the window comes: it is held at its first Forward, so what runs is ours to say.
  const v1::CutAnswer answer = harness.Cut(5);
  CHECK(answer.cut() == 5);
  v1::Window window = harness.NewWindow();
  harness.AddSteps({&a}, false, nullptr, &window);
  harness.AddSteps({&b}, false, nullptr, &window);
  CHECK(answer.first_not_enqueued() == window.microbatches(0).number());
  const int64_t first_of_b = [&] {
    for (const v1::Microbatch& microbatch : window.microbatches()) {
      if (microbatch.segments(0).job() == "b") return microbatch.number();
    }
    return int64_t{-1};
  }();
  harness.Submit(window);
  harness.CutAt(5, first_of_b + 1);
  harness.driver->WaitIdle();
  const std::vector<v1::Report> reports = harness.TakeReports();
  REQUIRE(Count(reports, v1::Report::kStepDone) == 1);  // a's; b lost its batch
  REQUIRE(reports.back().window_done().dropped_operations() > 0);
  b.step = 1;
  harness.Step({&a, &b}, true);
  CHECK(harness.Shard(a) == ShardAlone(JobA(), 3));
  CHECK(harness.Shard(b) == ShardAlone(JobB(), 2));
}

TEST_CASE("a cut drops every window at hand and none that comes later") {
  Harness harness(SmallGroup());
  harness.Form();
  TestJob a = JobA();
  harness.Load(a);
  const int64_t first = harness.Cut(0).first_not_enqueued();
  for (int i = 0; i < 2; ++i) {
    v1::Window window = harness.NewWindow();
    harness.AddSteps({&a}, true, nullptr, &window);
    harness.Submit(window);
  }
  harness.CutAt(0, first);
  harness.driver->WaitIdle();
  const std::vector<v1::Report> reports = harness.TakeReports();
  CHECK(Count(reports, v1::Report::kWindowDone) == 2);
  CHECK(Count(reports, v1::Report::kMicrobatchDone) == 0);
  CHECK(Count(reports, v1::Report::kStepDone) == 0);
  a.step = 0;
  harness.Step({&a}, true);
  CHECK(harness.Shard(a) == ShardAlone(JobA(), 1));
}

TEST_CASE("a job that is not finite fails alone; its neighbour keeps its bits") {
  Harness harness(SmallGroup());
  harness.Form();
  TestJob a = JobA();
  TestJob b = JobB();
  harness.bulk.SetContent("spoiled", Spoiled(ShardAlone(JobB(), 1)));
  b.content = "spoiled";
  b.step = 1;
  harness.Load(a);
  harness.Load(b);
  harness.Step({&a, &b}, true);
  REQUIRE(harness.not_finite().size() == 1);
  CHECK(harness.not_finite()[0].job() == "b");
  CHECK(harness.not_finite()[0].step() == 2);
  CHECK(harness.not_finite()[0].what() == "loss");
  CHECK(harness.not_finite()[0].sequences_size() == b.batch);
  CHECK(harness.steps("b").empty());
  harness.Step({&a, &b}, true);  // what the coordinator had sent before it knew
  CHECK(harness.not_finite().size() == 1);
  CHECK(harness.Shard(a) == ShardAlone(JobA(), 2));
  harness.Free(b);
  harness.Step({&a}, true);
  CHECK(harness.Shard(a) == ShardAlone(JobA(), 3));
}

TEST_CASE("evaluation trains nothing and does not depend on its packing") {
  Harness harness(SmallGroup());
  harness.Form();
  TestJob a = JobA();
  harness.Load(a);
  harness.Step({&a});
  const double loss = harness.Evaluate(a, a.rows);
  CHECK(loss == harness.Evaluate(a, a.rows));
  CHECK(loss == Approx(std::log(384)).margin(0.2));
  harness.Step({&a}, true);
  CHECK(harness.Shard(a) == ShardAlone(JobA(), 2));
}

TEST_CASE("saves wait for a coordinator that is away, training goes on") {
  Harness harness(SmallGroup());
  harness.Form();
  TestJob a = JobA();
  harness.Load(a);
  harness.bulk.SetAway(true);
  harness.Step({&a}, true);
  harness.Step({&a});
  CHECK(harness.steps("a").size() == 2);
  // The next save needs the staging memory, so it waits.
  v1::Window window = harness.NewWindow();
  harness.AddSteps({&a}, true, nullptr, &window);
  harness.Submit(window);
  harness.bulk.SetAway(false);
  harness.driver->WaitIdle();
  CHECK(harness.Shard(a) == ShardAlone(JobA(), 3));
  CHECK(harness.bulk.Shard("a", 1) == ShardAlone(JobA(), 1));
}

TEST_CASE("a coordinator that never answers a shard holds up no training, and no end") {
  Harness harness(SmallGroup());
  harness.Form();
  TestJob a = JobA();
  TestJob b = JobB();
  harness.Load(a);
  harness.Load(b);
  harness.bulk.SetUnanswered("a");
  harness.Step({&a, &b}, true);
  harness.Step({&a, &b});
  // a's next save finds its staging memory in use; b's goes up.
  harness.Step({&a, &b}, true);
  CHECK(harness.steps("a").size() == 3);
  CHECK(harness.Shard(b) == ShardAlone(JobB(), 3));
  harness.Step({&b}, true);
  CHECK(harness.Shard(b) == ShardAlone(JobB(), 4));
  harness.bulk.SetUnanswered("");
  CHECK(harness.Shard(a) == ShardAlone(JobA(), 3));
  harness.bulk.SetUnanswered("b");
  harness.Step({&b}, true);
}

TEST_CASE("a slot that cannot be loaded fails with its reason, and nothing of it runs") {
  Harness harness(SmallGroup());
  harness.Form();
  struct Case {
    const char* what;
    std::function<void(TestJob*)> change;
    const char* message;
  };
  const Case cases[] = {
      {"content", [](TestJob* job) { job->content = "nowhere"; }, "no content nowhere"},
      {"rank", [](TestJob* job) { job->spec.set_rank(513); }, "rank 513"},
      {"target", [](TestJob* job) { job->spec.add_target_modules("c_attn"); }, "c_attn"},
      {"no target", [](TestJob* job) { job->spec.clear_target_modules(); }, "no target"},
      {"dropout", [](TestJob* job) { job->spec.set_dropout(1); }, "dropout 1"},
      {"layer",
       [](TestJob* job) {
         AddModules(job, "q_proj", {0, 3}, 4);
       },
       "layer 3 of q_proj"},
      {"twice",
       [](TestJob* job) {
         AddModules(job, "q_proj", {}, 4);
         AddModules(job, "q_proj", {1}, 8);
       },
       "q_proj of layer 1 twice"},
      {"pattern", [](TestJob* job) { AddModules(job, "q_proj", {}, 600); }, "rank 600"},
  };
  size_t failed = 0;
  for (const Case& c : cases) {
    INFO(c.what);
    TestJob job = JobA();
    c.change(&job);
    harness.Load(job);
    REQUIRE(harness.slot_failed().size() == ++failed);
    CHECK_THAT(harness.slot_failed().back().message(), Catch::Contains(c.message));
    harness.Step({&job}, true);
    CHECK(harness.steps("a").empty());
    harness.Free(job);
  }
  TestJob job = JobA();
  std::string shard = ShardAlone(JobA(), 1);
  harness.bulk.SetContent("short", shard.substr(0, shard.size() - 1));
  harness.bulk.SetContent("long", shard + "x");
  harness.bulk.SetContent("of another shape", ShardAlone(JobB(), 1));
  for (const char* content : {"short", "long", "of another shape"}) {
    INFO(content);
    job.content = content;
    harness.Load(job);
    REQUIRE(harness.slot_failed().size() == ++failed);
    CHECK(harness.slot_failed().back().reason() == "CONTENT_INVALID");
    harness.Free(job);
  }
}

TEST_CASE("a slot that could not be loaded is loaded by another try") {
  Harness harness(SmallGroup());
  harness.Form();
  TestJob job = JobA();
  job.content = "nowhere";
  harness.Load(job);
  REQUIRE(harness.slot_failed().size() == 1);
  job.content = "";
  harness.Load(job);
  REQUIRE(harness.slot_failed().size() == 1);
  harness.Step({&job}, true);
  harness.driver->WaitIdle();
  CHECK(harness.steps("a").size() == 1);
  CHECK(harness.bulk.Shard("a", 1) == ShardAlone(JobA(), 1));
}

v1::GroupFailed FormFails(Harness::Options options,
                          const std::function<void(v1::FormGroup*)>& change = nullptr) {
  Harness harness(options);
  v1::FormGroup order;
  order.set_epoch(1);
  order.set_model_path(options.model_path);
  order.set_stages(1);
  order.set_capacity_tokens(options.capacity_tokens);
  order.set_longest_sequence(options.longest_sequence);
  if (change) change(&order);
  harness.Order(order);
  harness.driver->WaitIdle();
  const std::vector<v1::Report> reports = harness.link.TakeReports();
  REQUIRE(reports.size() == 1);
  REQUIRE(reports[0].has_group_failed());
  return reports[0].group_failed();
}

TEST_CASE("a group that cannot be formed fails with its reason") {
  Harness::Options options = SmallGroup();
  options.memory_bytes = 100000;
  CHECK(FormFails(options).reason() == "MEMORY");
  CHECK(FormFails(SmallGroup(), [](v1::FormGroup* order) { order->set_stages(2); }).reason() ==
        "BAD_STAGE");
  CHECK(FormFails(SmallGroup(), [](v1::FormGroup* order) {
          order->set_model_fingerprint("other");
        }).reason() == "MODEL_CHANGED");
  CHECK(FormFails(SmallGroup(), [](v1::FormGroup* order) {
          order->set_model_path("/nowhere");
        }).reason() == "MODEL_NOT_FOUND");
}

TEST_CASE("a slot over the budget fails and leaves the group as it was") {
  Harness::Options options = SmallGroup();
  {
    Harness harness(options);
    harness.Form();
    options.memory_bytes = harness.formed().reserved_bytes() + 1000;
  }
  Harness harness(options);
  harness.Form();
  harness.Load(JobA());
  REQUIRE(harness.slot_failed().size() == 1);
  CHECK(harness.slot_failed()[0].reason() == "MEMORY");
}

TEST_CASE("a window that cannot be executed ends the group with a report") {
  struct Case {
    const char* what;
    std::function<void(v1::Window*)> change;
    const char* message;
  };
  const Case cases[] = {
      {"recv", [](v1::Window* w) { *w->add_operations() = Op(Kind::RECV, int64_t{1}); },
       "stage 0 of 1"},
      {"no microbatch",
       [](v1::Window* w) { *w->add_operations() = Op(Kind::FORWARD, int64_t{77}); },
       "not in the window"},
      {"no slot", [](v1::Window* w) { *w->add_operations() = Op(Kind::STEP, "c", 1); }, "no slot"},
      {"norm twice",
       [](v1::Window* w) {
         for (v1::Operation& operation : *w->mutable_operations()) {
           if (operation.kind() == Kind::CLIP_DOWN) operation.set_kind(Kind::NORM_UP);
         }
       },
       "comes twice"},
      {"step twice", [](v1::Window* w) { *w->add_operations() = Op(Kind::STEP, "a", 2); },
       "without its ClipDown"},
      {"save of another step", [](v1::Window* w) { *w->add_operations() = Op(Kind::SAVE, "a", 5); },
       "at step"},
      {"two in flight", [](v1::Window* w) { w->mutable_operations()->SwapElements(1, 2); },
       "memory for 1"},
      {"norm in flight",
       [](v1::Window* w) {
         w->mutable_operations()->SwapElements(w->operations_size() - 4, w->operations_size() - 3);
       },
       "before Backward"},
      {"free in flight",
       [](v1::Window* w) { *w->mutable_operations(1) = Op(Kind::FREE_SLOT, "a", 0); },
       "before Backward"},
      {"microbatches that go back",
       [](v1::Window* w) {
         w->mutable_operations()->SwapElements(0, 2);
         w->mutable_operations()->SwapElements(1, 3);
       },
       " came after "},
      {"token count", [](v1::Window* w) { w->mutable_batches(0)->set_trained_tokens(3); },
       "the window says"},
      {"an id",
       [](v1::Window* w) {
         w->mutable_microbatches(0)->mutable_segments(0)->set_input_ids(0, 384);
       },
       "not in the vocabulary"},
      {"too long",
       [](v1::Window* w) {
         v1::Segment& segment = *w->mutable_microbatches(0)->mutable_segments(0);
         while (segment.input_ids_size() < 101) segment.add_input_ids(1);
       },
       "is not in 1..100"},
      {"wrong step",
       [](v1::Window* w) { w->mutable_microbatches(0)->mutable_segments(0)->set_step(9); },
       "the slot is at step 0"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    Harness harness(SmallGroup());
    harness.Form();
    TestJob a = JobA();
    harness.Load(a);
    v1::Window window = harness.NewWindow();
    harness.AddSteps({&a}, false, nullptr, &window);
    REQUIRE(window.microbatches_size() >= 2);
    c.change(&window);
    harness.Submit(window);
    harness.driver->WaitIdle();
    const std::vector<v1::Report> reports = harness.TakeReports();
    REQUIRE_FALSE(reports.empty());
    REQUIRE(reports.back().has_group_failed());
    CHECK(reports.back().group_failed().reason() == "BAD_WINDOW");
    CHECK_THAT(reports.back().group_failed().message(), Catch::Contains(c.message));
    // It is over: nothing of the epoch runs any more.
    harness.Submit(harness.NewWindow());
    harness.driver->WaitIdle();
    CHECK(harness.TakeReports().empty());
  }
}

TEST_CASE("a group dissolved in mid-window is gone, and another can be formed") {
  Harness harness(SmallGroup());
  harness.Form();
  TestJob a = JobA();
  harness.Load(a);
  harness.Cut(0);  // holds the window
  v1::Window window = harness.NewWindow();
  harness.AddSteps({&a}, false, nullptr, &window);
  harness.Submit(window);
  harness.Dissolve(1);
  harness.driver->WaitIdle();
  CHECK(harness.driver->held().epoch == 0);
  harness.Form();
  a.step = 0;
  harness.Load(a);
  harness.Step({&a}, true);
  CHECK(harness.Shard(a) == ShardAlone(JobA(), 1));
}

}  // namespace
}  // namespace lorad::worker
