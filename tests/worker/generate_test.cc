// What generates: a token depends on its prefix, its adapter and its Sampling, and on nothing that
// is beside it; what trains beside it keeps its bits; what cannot be generated is said.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <set>

#include "sizes/group.h"
#include "tests/worker/answers.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"

namespace lorad::worker {
namespace {

using Kind = v1::Operation;

constexpr int kTokens = 10;

Harness::Options Group() {
  return {.model_path = MakeRandomModel(std::filesystem::temp_directory_path() / "generate_model"),
          .threads = 1,
          .capacity_tokens = 128,
          .longest_sequence = 100};
}

Harness::Options InStages(std::vector<int32_t> cuts) {
  Harness::Options options = Group();
  options.in_flight = static_cast<int32_t>(cuts.size()) + 1;
  options.cuts = std::move(cuts);
  return options;
}

TestJob JobA() { return MakeJob("a", 4, {"q_proj", "down_proj"}, RandomRows(12, 20, 100, 1), 4); }
TestJob JobB() { return MakeJob("b", 8, {"v_proj", "up_proj"}, RandomRows(12, 20, 100, 2), 4); }

std::string ShardAlone(TestJob job, int64_t steps) {
  Harness harness(Group());
  harness.Form();
  harness.Load(job);
  while (job.step < steps) harness.Step({&job}, job.step + 1 == steps);
  return harness.Shard(job);
}

// At step 2, where B is no longer zero.
TestJob Load(TestJob job, Harness* harness) {
  job.step = 2;
  job.content = job.name() + "-2";
  harness->bulk.SetContent(job.content, ShardAlone(job.name() == "a" ? JobA() : JobB(), 2));
  harness->Load(job);
  REQUIRE(harness->slot_failed().empty());
  return job;
}

// Of every kind, for both jobs and for none.
std::vector<Answer> Questions() {
  const std::vector<TestRow> prompts = RandomRows(9, 1, 80, 7);
  std::vector<Answer> questions;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string job = i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "";
    const double temperature = i < 3 ? 0 : i < 6 ? 1 : 0.7;
    questions.push_back(Ask(job, prompts[i].ids, temperature, 40 + i, i < 6 ? 1 : 0.9));
  }
  return questions;
}

std::vector<Answer*> AllOf(std::vector<Answer>& answers) {
  std::vector<Answer*> all;
  for (Answer& answer : answers) all.push_back(&answer);
  return all;
}

// Each by itself: every window has one segment.
std::vector<Answer> OneByOne() {
  Harness harness(Group());
  harness.Form();
  Load(JobA(), &harness);
  Load(JobB(), &harness);
  std::vector<Answer> answers = Questions();
  for (Answer& answer : answers) {
    for (int i = 0; i < kTokens; ++i) Continue(&harness, {&answer});
  }
  return answers;
}

// All at once, in any order, in other slots than OneByOne.
std::vector<Answer> Together(const Harness::Options& options, uint64_t seed) {
  std::mt19937_64 random(seed);
  Harness harness(options);
  harness.Form();
  Load(JobB(), &harness);
  Load(JobA(), &harness);
  std::vector<Answer> answers = Questions();
  for (int i = 0; i < kTokens; ++i) Continue(&harness, AllOf(answers), {}, false, &random);
  return answers;
}

TEST_CASE("a token is the same in any company, slot and order, and on a late device") {
  const std::vector<Answer> alone = OneByOne();
  // It says something: answers differ, and not all are the most likely ones.
  std::set<std::vector<int32_t>> tokens;
  for (const Answer& answer : alone) tokens.insert(answer.tokens());
  REQUIRE(tokens.size() == alone.size());
  for (const int32_t capacity : {128, 1000}) {
    for (const int threads : {1, 2}) {
      for (const bool late : {false, true}) {
        INFO("capacity " << capacity << ", threads " << threads << ", late " << late);
        Harness::Options options = Group();
        options.capacity_tokens = capacity;
        options.threads = threads;
        options.late = late;
        options.recomputation = late ? v1::FormGroup::BLOCKS : v1::FormGroup::NOTHING;
        CHECK(Together(options, 3) == alone);
      }
    }
  }
}

TEST_CASE("two, three and four stages give the tokens that one gives") {
  const std::vector<Answer> one = Together(Group(), 4);
  for (const std::vector<int32_t>& cuts :
       std::vector<std::vector<int32_t>>{{3}, {1}, {5}, {1, 4}, {1, 2, 5}}) {
    for (const bool late : {false, true}) {
      INFO(cuts.size() + 1 << " stages, the second from block " << cuts[0] << " on"
                           << (late ? ", late devices" : ""));
      Harness::Options options = InStages(cuts);
      options.late = late;
      CHECK(Together(options, 5) == one);
    }
  }
}

TEST_CASE("an adapter that is on is not one that is off, and the model itself has none") {
  Harness harness(Group());
  harness.Form();
  Load(JobA(), &harness);
  const std::vector<int32_t> prompt = RandomRows(1, 30, 30, 8)[0].ids;
  std::vector<Answer> answers = {Ask("a", prompt), Ask("", prompt)};
  Continue(&harness, AllOf(answers));
  CHECK(answers[0].log_probability != answers[1].log_probability);
  Harness bare(Group());
  bare.Form();
  Answer answer = Ask("", prompt);
  Continue(&bare, {&answer});
  CHECK(answer == answers[1]);
}

TEST_CASE("a slot that only answers gives the tokens of one that trains, and trains nothing") {
  const TestRow prompt = RandomRows(1, 30, 30, 8)[0];
  std::vector<Answer> answers;
  std::vector<int64_t> bytes;
  for (const bool only : {false, true}) {
    Harness harness(Group());
    harness.Form();
    TestJob job = JobA();
    job.spec.set_answers_only(only);
    job.step = 2;
    job.content = "a-2";
    harness.bulk.SetContent(job.content, ShardAlone(JobA(), 2));
    bytes.push_back(harness.Load(job).bytes());
    REQUIRE(harness.slot_failed().empty());
    answers.push_back(Ask("a", prompt.ids, 1, 3));
    for (int i = 0; i < kTokens; ++i) Continue(&harness, {&answers.back()});
    CHECK(std::isfinite(harness.Evaluate(job, {prompt})));
    if (!only) continue;
    CHECK_THROWS_WITH(harness.Step({&job}, false), Catch::Contains("only answers"));
  }
  Harness harness(Group());
  harness.Form();
  TestJob job = JobA();
  job.spec.set_answers_only(true);
  job.spec.mutable_target_modules()->RemoveLast();
  job.content = "a-2";
  harness.bulk.SetContent(job.content, ShardAlone(JobA(), 2));
  harness.Load(job);
  REQUIRE(harness.slot_failed().size() == 1);
  CHECK(harness.slot_failed()[0].reason() == "CONTENT_INVALID");
  CHECK(answers[0] == answers[1]);
  CHECK(bytes[0] > 6 * bytes[1]);  // moments, gradients, staging: 28 bytes more to 4
}

TEST_CASE("a log probability is the one that evaluation finds") {
  Harness harness(Group());
  harness.Form();
  const TestJob a = Load(JobA(), &harness);
  Answer answer = Ask("a", RandomRows(1, 30, 30, 9)[0].ids, 1, 3);
  Continue(&harness, {&answer});
  TestRow row{.ids = answer.ids, .labels = std::vector<int32_t>(answer.ids.size(), -100)};
  row.labels.back() = answer.ids.back();
  CHECK(answer.log_probability[0] == Approx(-harness.Evaluate(a, {row})).margin(1e-5));
}

TEST_CASE("more segments than logits are kept of at a time") {
  std::vector<Answer> many;
  for (int32_t i = 0; i < 37; ++i) {
    many.push_back(Ask(i % 2 == 0 ? "a" : "", {i, 2 * i}, i % 3 == 0 ? 0 : 1, 7));
  }
  REQUIRE(static_cast<int64_t>(many.size()) > 2 * sizes::kLogitRows);
  std::vector<Answer> alone = many;
  for (const bool late : {false, true}) {
    for (const std::vector<int32_t>& cuts : std::vector<std::vector<int32_t>>{{}, {3}}) {
      Harness::Options options = InStages(cuts);
      options.late = late;
      Harness harness(options);
      harness.Form();
      Load(JobA(), &harness);
      std::vector<Answer> answers = many;
      Continue(&harness, AllOf(answers));  // 74 tokens: one microbatch
      if (alone == many) {
        for (Answer& answer : alone) Continue(&harness, {&answer});
      }
      CHECK(answers == alone);
    }
  }
}

// The shards of both jobs at step 3, of whom "a" generated, and the model, at every step.
std::pair<std::string, std::string> TrainBeside(const Harness::Options& options, uint64_t seed) {
  std::mt19937_64 random(seed);
  Harness harness(options);
  harness.Form();
  TestJob b = JobB();
  harness.Load(b);
  TestJob a = JobA();
  harness.Load(a);
  std::vector<Answer> answers;
  for (const Answer& question : Questions()) {
    if (question.job != "b") answers.push_back(question);
  }
  while (a.step < 3) {
    Continue(&harness, AllOf(answers), {&a, &b}, a.step == 2, &random);
    Continue(&harness, AllOf(answers), {}, false, &random);
  }
  return {harness.Shard(a), harness.Shard(b)};
}

TEST_CASE("what trains beside what generates keeps its bits, the job that generates too") {
  const auto want = std::pair(ShardAlone(JobA(), 3), ShardAlone(JobB(), 3));
  for (const auto recomputation :
       {v1::FormGroup::NOTHING, v1::FormGroup::PRODUCTS, v1::FormGroup::BLOCKS}) {
    for (const bool late : {false, true}) {
      INFO(v1::FormGroup::Recomputation_Name(recomputation) << ", late " << late);
      Harness::Options options = Group();
      options.threads = 2;
      options.recomputation = recomputation;
      options.late = late;
      CHECK(TrainBeside(options, 11) == want);
    }
  }
  for (const std::vector<int32_t>& cuts : std::vector<std::vector<int32_t>>{{3}, {1, 4}}) {
    for (const bool late : {false, true}) {
      INFO(cuts.size() + 1 << " stages, late " << late);
      Harness::Options options = InStages(cuts);
      options.late = late;
      CHECK(TrainBeside(options, 12) == want);
    }
  }
}

void CheckNone(const Answer& answer) {
  REQUIRE(answer.tokens() == std::vector<int32_t>{-1});
  CHECK(std::isnan(answer.log_probability.at(0)));
}

TEST_CASE("what has no token is told so, and its neighbours have theirs") {
  const std::vector<int32_t> prompt = RandomRows(1, 20, 20, 10)[0].ids;
  for (const std::vector<int32_t>& cuts : std::vector<std::vector<int32_t>>{{}, {3}, {1, 4}}) {
    INFO(cuts.size() + 1 << " stages");
    Harness harness(InStages(cuts));
    harness.Form();
    const TestJob a = Load(JobA(), &harness);
    // Not finite.
    TestJob b = JobB();
    b.step = 1;
    b.content = "spoiled";
    harness.bulk.SetContent("spoiled", Spoiled(ShardAlone(JobB(), 1)));
    harness.Load(b);
    // Not loaded.
    TestJob c = MakeJob("c", 4, {"q_proj"}, RandomRows(4, 20, 30, 3), 1);
    c.content = "nowhere";
    harness.Load(c);
    REQUIRE_FALSE(harness.slot_failed().empty());
    std::vector<Answer> answers = {Ask("b", prompt), Ask("a", prompt), Ask("c", prompt),
                                   Ask("", prompt)};
    Continue(&harness, AllOf(answers));
    CheckNone(answers[0]);
    CheckNone(answers[2]);
    // Generating fails no job: training does, and from there on its rows are left out.
    CHECK(harness.not_finite().empty());
    TestJob training = a;
    harness.Step({&training, &b});
    REQUIRE(harness.not_finite().size() == 1);
    std::vector<Answer> later = {Ask("", prompt), Ask("b", prompt), Ask("", prompt),
                                 Ask("b", prompt)};
    Continue(&harness, AllOf(later));
    CHECK(later[0] == answers[3]);
    CheckNone(later[1]);
    CHECK(later[2] == answers[3]);
    CheckNone(later[3]);

    Harness alone(InStages(cuts));
    alone.Form();
    Load(JobA(), &alone);
    std::vector<Answer> want = {Ask("a", prompt), Ask("", prompt)};
    Continue(&alone, AllOf(want));
    CHECK(answers[1] == want[0]);
    CHECK(answers[3] == want[1]);
  }
}

TEST_CASE("a microbatch counts the adapters that are on in it") {
  Harness harness(Group());
  harness.Form();
  Load(JobA(), &harness);
  Load(JobB(), &harness);
  v1::Window window = harness.NewWindow();
  harness.AddGenerations({NextOf(Ask("a", {1, 2}), "0"), NextOf(Ask("", {3}), "1"),
                          NextOf(Ask("a", {4}), "2"), NextOf(Ask("b", {5, 6, 7}), "3")},
                         &window);
  std::vector<v1::MicrobatchDone> done;
  for (const v1::Report& report : harness.Run(std::move(window))) {
    if (report.has_microbatch_done()) done.push_back(report.microbatch_done());
    CHECK_FALSE(report.has_evaluate_done());
  }
  REQUIRE(done.size() == 1);
  CHECK(done[0].adapters() == 2);
  CHECK(done[0].tokens() == 7);
  CHECK(done[0].forward_ms() > 0);
  CHECK(done[0].backward_ms() == 0);
}

TEST_CASE("what a cut drops is not generated, and is generated when it comes again") {
  Harness harness(Group());
  harness.Form();
  TestJob a = Load(JobA(), &harness);
  harness.Cut(1);
  Answer kept = Ask("a", {1, 2, 3});
  Answer dropped = Ask("", {4, 5, 6});
  v1::Window window = harness.NewWindow();
  harness.AddGenerations({NextOf(kept, "kept")}, &window);
  harness.AddGenerations({NextOf(dropped, "dropped")}, &window);
  harness.Submit(window);  // held at its first microbatch, so what runs is ours to say
  harness.CutAt(1, window.microbatches(1).number());
  harness.WaitIdle();
  int generated = 0;
  for (const v1::Report& report : harness.TakeReports()) {
    if (report.has_window_done()) CHECK(report.window_done().dropped_operations() == 1);
    if (!report.has_generated()) continue;
    ++generated;
    CHECK(report.generated().generation() == "kept");
    CHECK(report.generated().token() >= 0);
  }
  CHECK(generated == 1);
  Continue(&harness, {&dropped}, {&a}, true);
  CHECK(dropped.tokens()[0] >= 0);
  CHECK(harness.Shard(a) == ShardAlone(JobA(), 3));
}

TEST_CASE("a window whose segments generate where they should not ends the group") {
  struct Case {
    const char* what;
    std::function<void(v1::Window*)> change;
    const char* message;
  };
  const auto segment = [](v1::Window* window) {
    return window->mutable_microbatches(0)->mutable_segments(0);
  };
  const Case cases[] = {
      {"evaluated", [](v1::Window* w) { w->mutable_operations(0)->set_kind(Kind::EVALUATE); },
       "EVALUATE of microbatch"},
      {"trained", [](v1::Window* w) { w->mutable_operations(0)->set_kind(Kind::FORWARD); },
       "FORWARD of microbatch"},
      {"generates what is to be evaluated",
       [=](v1::Window* w) {
         for (v1::Segment& each : *w->mutable_microbatches(0)->mutable_segments()) {
           each.set_mode(v1::Segment::EVALUATE);
           each.mutable_labels()->Add(each.input_ids().begin(), each.input_ids().end());
         }
       },
       "GENERATE of microbatch"},
      {"mixed",
       [](v1::Window* w) {
         w->mutable_microbatches(0)->mutable_segments(1)->set_mode(v1::Segment::EVALUATE);
       },
       "some of its microbatch generate"},
      {"no slot", [=](v1::Window* w) { segment(w)->set_job("z"); }, "no slot"},
      {"no prompt", [=](v1::Window* w) { segment(w)->clear_input_ids(); }, "is not in 1..100"},
      {"an id", [=](v1::Window* w) { segment(w)->set_input_ids(0, 384); }, "vocabulary"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    Harness harness(Group());
    harness.Form();
    Load(JobA(), &harness);
    v1::Window window = harness.NewWindow();
    harness.AddGenerations({NextOf(Ask("a", {1, 2}), "0"), NextOf(Ask("a", {3}), "1")}, &window);
    c.change(&window);
    harness.Submit(window);
    harness.WaitIdle();
    const std::vector<v1::Report> reports = harness.TakeReports();
    REQUIRE_FALSE(reports.empty());
    REQUIRE(reports.back().has_group_failed());
    CHECK(reports.back().group_failed().reason() == "BAD_WINDOW");
    CHECK_THAT(reports.back().group_failed().message(), Catch::Contains(c.message));
  }
}

}  // namespace
}  // namespace lorad::worker
