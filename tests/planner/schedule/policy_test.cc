// Eviction, aging, fair share and the number of jobs that still helps; schedule_test.cc has the
// rest of the policy.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "sizes/bytes_text.h"
#include "tests/planner/schedule/fixtures.h"

namespace lorad::planner {
namespace {

using sizes::NeededText;
using sizes::ThereText;

TEST_CASE("Evictions") {
  const int64_t two = BudgetFor(500, {64, 64});
  const int64_t three = BudgetFor(500, {64, 64, 64});
  constexpr int64_t kHour = 3600;
  struct Case {
    std::string what;
    ClusterView view;
    std::string expected;
  };
  const std::string makes_room = "wait #1: x (group g makes room for it)\n";
  const Case cases[] = {
      {"room is taken without driving anyone out",
       View({Group("g", "m", three, {{"a"}, {"b"}})}, {Job("x", 1)}), "admit g: x\n"},
      {"the lowest priority goes first",
       View({Group("g", "m", two, {{"a", 1}, {"b", 0}})}, {Job("x", 2)}),
       "evict g: b for x\n" + makes_room},
      {"among equals the one that came last",
       View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 1)}),
       "evict g: b for x\n" + makes_room},
      {"as many as it takes, and no more than that",
       View({Group("g", "m", two, {{"a", 0, 9, 64}, {"b", 0, 9, 1}, {"c", 0, 9, 63}})},
            {Job("x", 1, 0, "", 64)}),
       "evict g: c for x\nevict g: b for x\n" + makes_room},
      {"a large one makes the small one's leaving unnecessary",
       View({Group("g", "m", BudgetFor(500, {64, 4}), {{"a", 1, 9, 64}, {"b", 0, 9, 4}})},
            {Job("x", 2)}),
       "evict g: a for x\n" + makes_room},
      {"minimum run time does not protect from a higher priority",
       View({Group("g", "m", two, {{"a", 0, 1}, {"b", 0, 1}})}, {Job("x", 1)}),
       "evict g: b for x\n" + makes_room},
      {"nobody is driven out for an equal that has just come",
       View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 0)}),
       "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
       "one of them ends or gives way)\n"},
      {"nor before the minimum run time for one that has waited",
       View({Group("g", "m", two, {{"a", 0, 899}, {"b", 0, 899}})}, {Job("x", 0, 9 * kHour)}),
       "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
       "one of them ends or gives way)\n"},
      {"but after it, for one that has a point",
       View({Group("g", "m", two, {{"a", 0, 900}, {"b", 0, 899}})}, {Job("x", 0, kHour)}),
       "evict g: a for x\n" + makes_room},
      {"no waiting lifts a job over a higher priority",
       View({Group("g", "m", two, {{"a", 1}, {"b", 1}})}, {Job("x", 0, 1000 * kHour)}),
       "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
       "one of them ends or gives way)\n"},
      {"not even in the queue",
       View({Group("g", "m", three, {{"a", 1}, {"b", 1}})},
            {Job("x", 0, 1000 * kHour), Job("y", 1, 0, "", 64, 200)}),
       "admit g: y\nwait #1: x (does not fit beside the 3 jobs of group g in its worker's memory; "
       "waits until one of them ends or gives way)\n"},
      {"who is leaving already is enough",
       View({Group("g", "m", two, {{"a"}, {"b", 0, 9, 64, "", 100, true}})}, {Job("x", 1)}),
       makes_room},
      {"another base model takes the whole group",
       View({Group("g", "m", two, {{"a"}, {"b"}})}, {Other(Job("x", 1))}),
       "evict g: b for x\nevict g: a for x\n" + makes_room},
      {"one group at a time: while it is cut, nobody is driven out of another",
       [&] {
         ClusterView view = View({Group("g", "m", two, {{"a", 0, 9, 64, "", 100, true}}),
                                  Group("h", "m", two, {{"b"}})},
                                 {Other(Job("x", 1)), Other(Job("y", 1))});
         view.groups[0].open = false;
         view.groups[0].changes = true;
         view.groups[0].makes_room_for = "x";
         return view;
       }(),
       makes_room + "evict h: b for y\nwait #2: y (group h makes room for it)\n"},
      {"or none of it", View({Group("g", "m", two, {{"a", 1}, {"b"}})}, {Other(Job("x", 1))}),
       "wait #1: x (all workers train other base models (m); waits until one is free)\n"},
      {"the group with the least important job",
       View({Group("g", "m", two, {{"a", 1}, {"b", 1}}), Group("h", "m", two, {{"c", 1}, {"d"}})},
            {Job("x", 2)}),
       "evict h: d for x\nwait #1: x (group h makes room for it)\n"},
      {"longer rows need memory too, and then the group is formed again",
       View({Group("g", "m", BudgetFor(3000, {64}), {{"a"}, {"b"}, {"c"}})},
            {Long(Job("x", 1), 3000)}),
       "evict g: c for x\nevict g: b for x\nevict g: a for x\n" + makes_room},
      {"re-placed rather than evicted, whatever its priority",
       View({Group("g", "m", BudgetFor(1000, {64, 64}), {{"a", 5}, {"b", 0}}, 1000),
             Group("h", "m", two, {{"c", 0}})},
            {Long(Job("x", 1), 900)}),
       "replace g -> h: b for x\n" + makes_room},
      {"at once, if it never was",
       View({Group("g", "m", BudgetFor(1000, {64, 64}), {{"a", 5, 10}, {"b", 5, 10}}, 1000),
             Group("h", "m", two, {{"c", 5}})},
            {Long(Job("x", 1), 900)}),
       "replace g -> h: b for x\n" + makes_room},
      {"else after the minimum run time",
       View({Group("g", "m", BudgetFor(1000, {64, 64}),
                   {{"a", 5, 10, 64, "", 100, false, 899}, {"b", 5, 10, 64, "", 100, false, 899}},
                   1000),
             Group("h", "m", two, {{"c", 5}})},
            {Long(Job("x", 1), 900)}),
       "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
       "one of them ends or gives way)\n"},
      {"one for the first; those behind it do not drive out others there",
       View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 2), Job("y", 1)}),
       "evict g: b for x\n" + makes_room + "wait #2: y (group g is being formed or changed)\n"},
      {"what fits a worker that is away alone waits for that one",
       [&] {
         ClusterView view =
             View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 9, 0, "", 500)});
         view.away = {"big", int64_t{1} << 40};
         return view;
       }(),
       "wait #1: x (needs " +
           NeededText(BlocksAgain(1024, 100) + BytesOfSlot(SmolLm2(), Rank(500)).total()) +
           "; waits for worker big, which offers 1048576 MiB and is away)\n"},
      {"or for one that is drained, too, where there is no other",
       [&] {
         ClusterView view =
             View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 9, 0, "", 500)});
         view.away = {"small", 1};
         view.drained_away = {"big", int64_t{1} << 40};
         return view;
       }(),
       "wait #1: x (needs " +
           NeededText(BlocksAgain(1024, 100) + BytesOfSlot(SmolLm2(), Rank(500)).total()) +
           "; waits for worker big, which offers 1048576 MiB, is away and drained)\n"},
      {"what fits no worker drives nobody out, nor keeps others from it",
       View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 9, 0, "", 500), Job("y", 1)}),
       "wait #1: x (needs " +
           NeededText(BlocksAgain(1024, 100) + BytesOfSlot(SmolLm2(), Rank(500)).total()) +
           "; the largest worker offers " + ThereText(two) +
           ")\nevict g: b for y\nwait #2: y (group g makes room for it)\n"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(Text(c.view) == c.expected);
  }
  // Re-placed no more than there are slots for.
  ClusterView slots = View(
      {Group("g", "m", BudgetFor(9000, {64}), {{"a"}, {"b"}}), Group("h", "m", three, {{"c"}})},
      {Long(Job("x", 1), 9000)});
  CHECK(Text(slots) == "replace g -> h: b for x\nreplace g -> h: a for x\n" + makes_room);
  slots.groups[1].shape.slots_max = 2;
  CHECK(Text(slots) == "replace g -> h: b for x\nevict g: a for x\n" + makes_room);
  // Where that is not allowed nobody is evicted.
  ClusterView view = View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 1)});
  view.policy.evict = false;
  CHECK(Text(view) ==
        "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
        "one of them ends)\n");
}

TEST_CASE("Jobs make room on a larger worker by going to idle ones") {
  const int64_t two = BudgetFor(500, {64, 64}), large = BudgetFor(9000, {64, 64, 64});
  const auto view = [&](const std::vector<Trains>& jobs, int idle, std::vector<QueuedJob> queue) {
    ClusterView view = View({Group("g", "m", large, jobs)}, std::move(queue));
    for (int i = 0; i < idle; ++i) {
      view.workers.push_back({"i" + std::to_string(i), two, {.threads = 2}, true});
    }
    return view;
  };
  const QueuedJob x = Other(Long(Job("x", 1), 9000));
  const std::string makes_room = "wait #1: x (group g makes room for it)\n";
  // Whatever their priority: nobody loses more than the move.
  CHECK(Text(view({{"a", 5}}, 1, {x})) ==
        "replace g -> i0 base=m 1024/100: a for x\n" + makes_room);
  CHECK(Text(view({{"a", 5}, {"b", 5}}, 1, {x})) ==
        "replace g -> i0 base=m 1024/100: b for x\nreplace g -> i0 base=m 1024/100: a for x\n" +
            makes_room);
  CHECK(Text(view({{"a", 5}, {"b", 5}}, 2, {x})) ==
        "replace g -> i0 base=m 1024/100: b for x\nreplace g -> i1 base=m 1024/100: a for x\n" +
            makes_room);
  // Not one that fits no idle worker, was moved lately, or is suspected of ending workers.
  const std::string waits = "wait #1: x (needs 2269 MiB, and worker i0, which is idle, offers " +
                            ThereText(two) +
                            "; the workers with room for it train other base models (m); waits "
                            "until one is free)\n";
  CHECK(Text(view({{"a", 5}, {"b", 5, 10, 500}}, 2, {x})) == waits);
  CHECK(Text(view({{"a", 5, 10, 64, "", 100, false, 899}}, 1, {x})) == waits);
  ClusterView suspect = view({{"a", 5}}, 1, {x});
  suspect.groups[0].running[0].company_max = 1;
  CHECK(Text(suspect) == waits);
  // Nor where that takes longer than it has to go on: 100 steps of 0.3 s.
  ClusterView loads = view({{"a", 5}}, 1, {x});
  loads.groups[0].running[0].remaining_steps = 100;
  loads.times[{"m", ""}] = {100, 1, 0};
  loads.load_s[{"m", ""}] = 28;
  CHECK(Text(loads) == waits);
  loads.load_s[{"m", ""}] = 27;
  CHECK(Text(loads).find("replace g -> i0 base=m 1024/100: a for x\n" + makes_room) == 0);
  // Its rounds may take longer than by the model, as they have lately.
  loads.load_s[{"m", ""}] = 40;
  CHECK(Text(loads) == waits);
  loads.groups[0].computed = 200;
  loads.groups[0].computed_s = 0.6;
  CHECK(Text(loads).find("replace g -> i0 base=m 1024/100: a for x\n" + makes_room) == 0);
  // In company they are longer, too.
  loads.load_s[{"m", ""}] = 28;
  loads.groups[0] = Group("g", "m", large, {{"a", 5}, {"b", 5}});
  for (RunningJob& job : loads.groups[0].running) job.remaining_steps = 100;
  CHECK(Text(loads).find("replace g -> i0 base=m 1024/100: b for x\n") == 0);
  // A refuge is taken once.
  ClusterView both = View({Group("g", "m", large, {{"a"}}), Group("h", "m", large, {{"b"}})},
                          {x, Other(Long(Job("y", 1, 0, "", 64, 200), 9000))});
  both.workers.push_back({"i0", two, {.threads = 2}, true});
  CHECK(Text(both) == "replace g -> i0 base=m 1024/100: a for x\n" + makes_room +
                          "evict h: b for y\nwait #2: y (group h makes room for it)\n");
}

TEST_CASE("An ask waits like a job, but nobody is evicted for it") {
  QueuedJob ask = Other(Job("x", 9));
  ClusterView view = View({Group("g", "m", int64_t{1} << 40, {{"a"}})}, {ask, Job("y", 0)});
  CHECK(Text(view) ==
        "evict g: a for x\nwait #1: x (group g makes room for it)\n"
        "wait #2: y (group g is being formed or changed)\n");
  view.queue[0].asks = true;
  CHECK(Text(view) ==
        "wait #1: x (all workers train other base models (m); waits until one is free)\n"
        "wait #2: y (behind an ask of 'n', for which group g is draining)\n");
}

std::string OrderOf(const ClusterView& view) {
  std::string order;
  for (size_t i : QueueOrder(view)) order += (order.empty() ? "" : " ") + view.queue[i].job;
  return order;
}

TEST_CASE("The order of the queue") {
  constexpr int64_t kHour = 3600;
  struct Case {
    std::string what;
    std::vector<QueuedJob> queue;
    std::vector<Trains> running;
    bool fair;
    std::string expected;
  };
  const auto job = [](const std::string& name, int64_t arrival, int32_t priority = 0,
                      int64_t waited_s = 0, const std::string& label_group = "") {
    return Job(name, priority, waited_s, label_group, 8, arrival);
  };
  const Case cases[] = {
      {"arrival", {job("b", 2), job("a", 1), job("c", 3)}, {}, false, "a b c"},
      {"priority first", {job("a", 1), job("b", 2, 1)}, {}, false, "b a"},
      {"an evicted job is behind those who waited longer",
       {job("a", 1, 0, 0), job("b", 2, 0, kHour)},
       {},
       false,
       "b a"},
      {"points end at the most, then who has waited longer goes first, else some would never come",
       {job("a", 1, 0, 4 * kHour), job("b", 2, 0, 90 * kHour), job("c", 3, 0, 4 * kHour)},
       {},
       false,
       "b a c"},
      {"points never cross priorities",
       {job("a", 1, 0, 90 * kHour), job("b", 2, 1)},
       {},
       false,
       "b a"},
      {"fair share alternates",
       {job("a1", 1, 0, 0, "a"), job("a2", 2, 0, 0, "a"), job("b1", 3, 0, 0, "b"),
        job("b2", 4, 0, 0, "b")},
       {},
       true,
       "a1 b1 a2 b2"},
      {"running jobs count",
       {job("a1", 1, 0, 0, "a"), job("b1", 3, 0, 0, "b"), job("b2", 4, 0, 0, "b")},
       {{"a0", 0, 9, 8, "a"}, {"a9", 0, 9, 8, "a"}},
       true,
       "b1 b2 a1"},
      {"waiting makes up for it",
       {job("a1", 1, 0, 2 * kHour + 1, "a"), job("b1", 3, 0, 0, "b")},
       {{"a0", 0, 9, 8, "a"}, {"a9", 0, 9, 8, "a"}},
       true,
       "a1 b1"},
      {"within a priority alone",
       {job("a1", 1, 1, 0, "a"), job("a2", 2, 1, 0, "a"), job("b1", 3, 0, 0, "b")},
       {},
       true,
       "a1 a2 b1"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    ClusterView view = View({Group("g", "m", 1, c.running)}, c.queue);
    view.policy.fair_share = c.fair;
    CHECK(OrderOf(view) == c.expected);
  }
}

TEST_CASE("Who has had places lately stands behind who had none, ever less so") {
  ClusterView view =
      View({Group("g", "m", 1, {})}, {Job("a2", 0, 60, "a", 8, 1), Job("b1", 0, 1, "b", 8, 2)});
  view.policy.fair_share = true;
  CHECK(OrderOf(view) == "a2 b1");
  LeftLately ended;
  ended.Add("a", 100);
  view.left_lately = ended.Counts(100);
  CHECK(OrderOf(view) == "b1 a2");
  CHECK(ended.Counts(100 + LeftLately::kHalvedS) == std::map<std::string, double>{{"a", 0.5}});
  ended.Add("b", 100 + LeftLately::kHalvedS);
  view.left_lately = ended.Counts(100 + LeftLately::kHalvedS);
  CHECK(OrderOf(view) == "a2 b1");
  CHECK(ended.Counts(100 + 9 * LeftLately::kHalvedS).empty());
}

// One after another, as each that is taken counts against its label group.
std::string FairOrderOf(const ClusterView& view) {
  std::map<std::string, int> shares;
  for (const RunningJob& running : view.groups[0].running) ++shares[running.label_group];
  std::vector<const QueuedJob*> left;
  for (const QueuedJob& job : view.queue) left.push_back(&job);
  std::string order;
  while (!left.empty()) {
    const auto key = [&](const QueuedJob* job) {
      return std::tuple(!job->resumes, -job->priority,
                        shares[job->label_group] - PointsOf(view.policy, job->waited_s),
                        -job->waited_s, job->arrival);
    };
    const auto first = std::ranges::min_element(left, {}, key);
    absl::StrAppend(&order, order.empty() ? "" : " ", (*first)->job);
    ++shares[(*first)->label_group];
    left.erase(first);
  }
  return order;
}

TEST_CASE("Fair share takes one after another") {
  std::mt19937_64 random(7);
  const auto draw = [&](uint64_t count) { return static_cast<int>(random() % count); };
  for (int round = 0; round < 200; ++round) {
    std::vector<QueuedJob> queue;
    for (int i = 0; i < 30; ++i) {
      const std::string user = absl::StrCat("u", draw(4));
      queue.push_back(Job(absl::StrCat("j", i), draw(3), draw(6) * 1800, user, 8, i));
      queue.back().resumes = draw(8) == 0;
    }
    std::ranges::shuffle(queue, random);
    ClusterView view =
        View({Group("g", "m", 1, {{"r", 0, 9, 8, "u1"}, {"s", 0, 9, 8, "u1"}})}, queue);
    view.policy.fair_share = true;
    CHECK(OrderOf(view) == FairOrderOf(view));
  }
}

TEST_CASE("Where users share, a place goes to a user from one that has more, or from itself") {
  const int64_t three = BudgetFor(500, {64, 64, 64});
  const auto decided = [&](const QueuedJob& waits, const std::vector<std::string>& users) {
    ClusterView view = View({Group("g", "m", three,
                                   {{"r", 0, 10000, 64, users[0]},
                                    {"s", 0, 10000, 64, users[1]},
                                    {"t", 0, 10000, 64, users[2]}})},
                            {waits});
    view.policy.fair_share = true;
    view.policy.points_max = 8;
    const std::string text = Text(view);
    return text.substr(0, text.find('\n'));
  };
  const int64_t long_s = 20 * 3600;
  // Not the only one of another, though it came last.
  CHECK(decided(Job("x", 0, long_s, "a"), {"a", "a", "b"}) == "evict g: s for x");
  CHECK(decided(Job("x", 0, long_s, "b"), {"a", "a", "b"}) == "evict g: s for x");
  // Of who has most, not of who came last.
  CHECK(decided(Job("x", 0, long_s, "c"), {"a", "a", "b"}) == "evict g: s for x");
  CHECK(decided(Job("x", 0, long_s, "c"), {"b", "a", "a"}) == "evict g: t for x");
  CHECK(decided(Job("x", 0, long_s, "a"), {"a", "b", "c"}) == "evict g: r for x");
  // Others have no more than it would have, and none is its own.
  CHECK(decided(Job("x", 1, 0, "a"), {"b", "c", "d"}) == "evict g: t for x");
}

TEST_CASE("The reason is of a worker with room for the job, not of a group that never has") {
  const int64_t small = BudgetFor(500, {8}), big = int64_t{8} << 30;  // x needs one of rank 1024
  ClusterView view = View({Group("g", "m", small, {}), Group("h", "n", big, {{"a", 5, 9}})},
                          {Job("x", 0, 0, "", 1024)});
  CHECK(Text(view) ==
        "wait #1: x (the workers with room for it train other base models (n); waits until one "
        "is free)\n");
  view.groups[1] = Group("h", "m", BudgetFor(500, {1024}), {{"a", 5, 9, 1024}});
  CHECK(Text(view).find("beside the one job of group h") != std::string::npos);
}

TEST_CASE("One that has done no step in its place keeps it against equals, however short it is") {
  ClusterView view =
      View({Group("g", "m", int64_t{8} << 30, {{"a", 0, 0}})}, {Other(Job("x", 0, 9 * 3600))});
  view.policy.minimum_run_s = 0;
  CHECK(Text(view).starts_with("wait #1: x"));
  view.groups[0].running[0].running_s = 1;
  CHECK(Text(view).starts_with("evict g: a for x\n"));
}

TEST_CASE("A job that was re-placed goes where it was sent, not back into the group that it left") {
  const int64_t big = int64_t{8} << 30;
  ClusterView view = View({Group("g", "m", big, {}), Group("h", "m", big, {{"b"}})}, {});
  QueuedJob moved = Job("a", 0, 0, "", 64, 1);
  moved.resumes = true;
  view.queue = {moved, Other(Job("x", 0))};
  // x had g's worker but for a.
  CHECK(Text(view).starts_with("admit g: a\n"));
  view.queue[0].to = "h";
  CHECK(Text(view) == "admit h: a\ndissolve #1 g: x\n");
  view.queue[0].to = "gone";
  CHECK(Text(view).starts_with("admit g: a\n"));
}

TEST_CASE("As many jobs as still help") {
  // 10 ms and 0.01 ms a token: 200 tokens take 12 ms, 400 take 14, 1024 take 20.24.
  const TimeCoefficients times{10, 0.01, 0};
  CHECK(SharingGain(times, 200, 200, 1024) == Approx(24 / 14.0 - 1));
  CHECK(SharingGain(times, 1024, 1024, 1024) == Approx(0));
  std::vector<Trains> five, six;
  for (int i = 0; i < 6; ++i) {
    if (i < 5) five.push_back({"j" + std::to_string(i)});
    six.push_back({"j" + std::to_string(i)});
  }
  const int64_t big = int64_t{8} << 30;
  ClusterView view = View({Group("g", "m", big, five)}, {Job("x", 0)});
  view.times[{"m", ""}] = times;
  view.policy.least_gain = 0.01;
  CHECK(Text(view) == "admit g: x\n");  // 1000 tokens become 1200: the rest of a microbatch
  view.groups = {Group("g", "m", big, six)};
  const std::string full =
      "wait #1: x (the 6 jobs of group g use all its worker can do; waits until one of them "
      "ends or gives way)\n";
  CHECK(Text(view) == full);
  view.queue = {Job("x", 1)};  // a higher priority may slow the others down
  CHECK(Text(view) == "admit g: x\n");
  view.queue = {Job("x", 0)};
  view.workers.push_back({"idle", big, {.threads = 2}, true});
  CHECK(Text(view) == "form idle base=m 1024/100: x\n");
  view.workers.pop_back();
  view.policy.least_gain = 0;
  CHECK(Text(view) == "admit g: x\n");
}

TEST_CASE("a group of those alone who are late to come makes way") {
  ClusterView view =
      View({Group("g", "m", BudgetFor(1000, {64, 64}), {{"a"}})}, {Other(Job("x", 0))});
  RunningJob& comes = view.groups[0].running[0];
  comes.coming = true;
  CHECK_THAT(Text(view), Catch::StartsWith("wait #1: x"));
  comes.comes_late = true;
  CHECK(Text(view) == "dissolve #1 g: x\n");
  view.queue[0].base_model = "m";  // who could join does
  view.queue[0].model = view.groups[0].model;
  CHECK(Text(view) == "admit g: x\n");
  view = View({Group("g", "m", BudgetFor(1000, {64, 64}), {{"a"}, {"b"}})}, {Other(Job("x", 0))});
  view.groups[0].running[0].coming = view.groups[0].running[0].comes_late = true;
  CHECK_THAT(Text(view), Catch::StartsWith("wait #1: x"));
}

}  // namespace
}  // namespace lorad::planner
