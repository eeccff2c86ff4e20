// What one job, or one base model, must not take from others: room that drains for one that waits,
// preemption, a worker that idles, the work of the search.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/planner/by_name.h"
#include "tests/planner/schedule/timed.h"

namespace lorad::planner {
namespace {

size_t Count(const ClusterView& view, Decision::Kind kind) {
  return static_cast<size_t>(std::ranges::count(Schedule(view), kind, &Decision::kind));
}

// That group's only job is a suspect that is tried alone.
void TryAlone(GroupView& group) {
  group.running[0].company_max = 1;
  group.running[0].alone = true;
}

// On "small-worker" a full group, on "large-worker" one with room, which alone holds long rows, and
// for which one such waits that fits there by itself only.
ClusterView Draining() {
  ClusterView view = View({Group("small", "m", BudgetFor(500, {64, 64}), {{"a"}, {"b"}}),
                           Group("large", "m", BudgetFor(2000, {64, 64}), {{"c"}})},
                          {Long(Job("long", 0, 0, "", 64, 1), 2000), Job("late", 0, 0, "", 64, 2)});
  view.workers[0].name = view.groups[0].worker = "small-worker";
  view.workers[1].name = view.groups[1].worker = "large-worker";
  view.groups[1].shape.slots_max = 3;
  return view;
}

TEST_CASE("Nobody is sent into a group that drains for a job that waits") {
  ClusterView view = Draining();
  // There is room for one that makes room, were nobody ahead.
  ClusterView alone = view;
  alone.queue.erase(alone.queue.begin());
  REQUIRE(Count(alone, Decision::Kind::kReplace) + Count(alone, Decision::Kind::kAdmit) > 0);
  alone.groups[1].running[0].priority = 1;
  for (GroupView& group : view.groups) {
    for (RunningJob& running : group.running) running.priority = 1;
  }
  // The late one would drive them out of the small group, or have one sent elsewhere.
  view.queue[0].priority = view.queue[1].priority = 1;
  const std::string text = Text(view);
  INFO(text);
  CHECK(Count(view, Decision::Kind::kReplace) == 0);
  CHECK(Count(view, Decision::Kind::kAdmit) == 0);
}

TEST_CASE("One that is tried alone is no room, and hides none") {
  const int64_t budget = BudgetFor(500, {64});
  ClusterView view =
      View({Group("g", "m", budget, {{"suspect"}}), Group("h", "k", budget, {{"low"}})},
           {Other(Job("urgent", 5))});
  TryAlone(view.groups[0]);
  CHECK(Text(view).starts_with("evict h: low for urgent\n"));
  // Nor is it taken for one that leaves: who waits for its worker starts when it ends.
  ClusterView timed =
      With(Timed({}, {Steps("x", 100, 200, 0, "n")}), {Running("g", "slow", {{200, 1000}})});
  TryAlone(timed.groups[0]);
  const ByName foresight = ForeseeByName(timed);
  REQUIRE(foresight.contains("g0"));
  CHECK(foresight.at("g0").end_s == Approx(300));
  CHECK(foresight.at("x").start_s == Approx(300));
}

TEST_CASE("One that is tried alone keeps nobody from preempting on other workers") {
  const int64_t budget = BudgetFor(500, {64});
  ClusterView view =
      View({Group("g", "m", budget, {{"suspect"}}), Group("h", "m", budget, {{"low"}})},
           {Job("urgent", 5)});
  TryAlone(view.groups[0]);
  CHECK(Text(view).starts_with("evict h: low for urgent\n"));
  // A suspect drives out nobody.
  view.queue[0].company_max = 1;
  CHECK(Count(view, Decision::Kind::kEvict) == 0);
}

TEST_CASE("Who has room beside a job that others make room for drives out nobody elsewhere") {
  const auto text = [](ClusterView view) {
    for (GroupView& group : view.groups) group.worker = group.name + "-worker";
    return Text(view);
  };
  const int64_t two = BudgetFor(500, {64, 64});
  const std::string shares = "wait #2: y (group g makes room for x, and for it beside that)\n";
  const std::vector<QueuedJob> urgent = {Other(Job("x", 2)), Other(Job("y", 2))};
  const GroupView other = Group("h", "m", two, {{"b", 1}, {"c", 1}});
  CHECK(text(View({Group("g", "m", two, {{"a"}, {"d"}}), other}, urgent)) ==
        "evict g: d for x\nevict g: a for x\nwait #1: x (group g makes room for it)\n" + shares);
  // Nor while those leave, the group is cut, or is empty.
  ClusterView leave = View({Group("g", "m", two, {{"a", 0, 9, 64, "", 100, true}}), other}, urgent);
  CHECK(text(leave) == "wait #1: x (group g makes room for it)\n" + shares);
  leave.groups[0].open = false;
  leave.groups[0].changes = true;
  leave.groups[0].makes_room_for = "x";
  CHECK(text(leave) == "wait #1: x (group g makes room for it)\n" + shares);
  CHECK_THAT(text(View({Group("g", "m", two, {}), other}, urgent)),
             Catch::StartsWith("dissolve") && Catch::EndsWith(shares));
  // Who has none does.
  std::vector<QueuedJob> three = urgent;
  three.push_back(Other(Job("z", 2)));
  CHECK_THAT(text(View({Group("g", "m", two, {{"a"}, {"d"}}), other}, three)),
             Catch::Contains("evict h: c for z\nevict h: b for z\n") && Catch::Contains(shares));
}

TEST_CASE("One that is to be tried alone drives out whom others of its priority would") {
  const int64_t budget = BudgetFor(500, {64, 64, 64});
  ClusterView view =
      View({Group("g", "m", budget, {{"a"}, {"b"}}), Group("h", "m", budget, {{"c", 1}})},
           {Job("suspect", 5)});
  view.queue[0].company_max = 1;
  view.queue[0].alone = true;
  // All of a group, and of one alone: they may go on in the other.
  const std::string text = Text(view);
  INFO(text);
  CHECK(Count(view, Decision::Kind::kEvict) + Count(view, Decision::Kind::kReplace) > 0);
  CHECK(text.find(" for suspect") != std::string::npos);
  CHECK(text.find("makes room for it") != std::string::npos);
  // Once they leave it waits for them, and once they have left it has the group.
  for (RunningJob& running : view.groups[0].running) running.leaving = true;
  CHECK(Text(view) == "wait #1: suspect (group g makes room for it)\n");
  view.groups[0].jobs.clear();
  view.groups[0].adapters.clear();
  view.groups[0].running.clear();
  CHECK(Text(view).find("admit g: suspect\n") != std::string::npos);
  // Of its own priority nobody leaves before it has waited long enough.
  ClusterView equal = View({Group("g", "m", budget, {{"a"}, {"b"}})}, {Job("suspect", 0)});
  equal.queue[0].company_max = 1;
  equal.queue[0].alone = true;
  CHECK(Count(equal, Decision::Kind::kEvict) == 0);
  equal.queue[0].waited_s = 7200;
  CHECK(Count(equal, Decision::Kind::kEvict) == 2);
}

TEST_CASE("One that waits to be tried alone holds up no more than one group, and nobody above it") {
  const int64_t budget = BudgetFor(500, {64, 64, 64});
  QueuedJob suspect = Job("suspect", -3);
  suspect.company_max = 1;
  suspect.alone = suspect.first_of_equals = true;
  ClusterView view =
      View({Group("g", "m", budget, {{"a"}}), Group("h", "m", budget, {{"b"}})}, {suspect});
  view.policy.evict = false;
  view.groups[0].running[0].remaining_steps = view.groups[1].running[0].remaining_steps = 1000;
  QueuedJob late = Job("late", -3);
  late.arrival = 200;
  view.queue.push_back(late);
  // One of the groups drains for it, the other takes who comes later.
  const std::string text = Text(view);
  INFO(text);
  CHECK(text.find("wait #1: suspect") != std::string::npos);
  CHECK(text.find("admit") != std::string::npos);
  CHECK(text.find(": late") != std::string::npos);
  // An important one of another base model has somebody evicted.
  view.policy.evict = true;
  view.queue = {suspect, Other(Job("urgent", 100))};
  CHECK(Text(view).find("for urgent") != std::string::npos);
}

TEST_CASE("Of equals those go first whose worker was drained, and behind who is more important") {
  ClusterView view = View({}, {Job("a", 0, 7200, "", 64, 1), Job("drained", 0, 0, "", 64, 2),
                               Job("urgent", 1, 0, "", 64, 3), Job("moves", -1, 0, "", 64, 4)});
  view.queue[1].first_of_equals = true;
  view.queue[3].resumes = true;
  CHECK(QueueOrder(view) == std::vector<size_t>{3, 2, 1, 0});
}

TEST_CASE("A base model with many jobs leaves others their share of the search") {
  std::mt19937 random(3);
  std::vector<GroupView> groups;
  for (int g = 0; g < 24; ++g) {
    std::vector<JobWork> jobs;
    for (int j = 0; j < 16; ++j) {
      jobs.push_back({static_cast<double>(100 + random() % 400),
                      static_cast<int64_t>(10'000 + random() % 100'000)});
    }
    groups.push_back(Running("big" + std::to_string(g), "slow", jobs));
  }
  // Ten of another, and a worker that has room for those alone.
  GroupView others = Running("others", "slow", std::vector(10, JobWork{400, 50'000}));
  others.base_model = "n";
  ModelShape small = SmolLm2();
  small.layers = 4;
  others.model = Shared(small);
  groups.push_back(others);
  ClusterView view = With(Timed({IdleOn("late")}, {}), groups);
  view.workers[0].budget_bytes = 2 * BytesOfGroup(small, {1024, 100, {.threads = 2}}).total();
  int moves = 0;
  for (const Decision& decision : Schedule(view)) moves += decision.worker == "late";
  CHECK(moves >= 4);
}

TEST_CASE("Idle workers that are of no use do not hide the one that is") {
  std::vector<WorkerView> idle;
  for (int i = 0; i < 12; ++i) {
    idle.push_back(IdleOn("a" + std::to_string(i), "slowest"));
    idle.back().budget_bytes += i;  // no two are alike
  }
  idle.push_back(IdleOn("late", "slow"));
  ClusterView view =
      With(Timed(idle, {}), {Running("g", "slow", std::vector(10, JobWork{400, 10'000}))});
  view.times[{"m", "slowest"}] = {1e5, 1000, 0};
  int moves = 0;
  for (const Decision& decision : Schedule(view)) {
    CHECK(decision.worker == "late");
    ++moves;
  }
  CHECK(moves == 5);
  // Nor do such as have no room.
  for (WorkerView& worker : view.workers) {
    if (worker.device_name == "slowest") worker.device_name = "fast", worker.budget_bytes = 1'000;
  }
  CHECK(Schedule(view).size() == 5);
}

TEST_CASE("Groups that have no room do not hide the one that has") {
  std::vector<GroupView> groups = {Running("g", "slow", std::vector(6, JobWork{200, 10'000})),
                                   Running("h", "slow", std::vector(3, JobWork{200, 10'000}))};
  // One like those of `g` would have its shortest rounds here, if memory were not full.
  for (int i = 0; i < 10; ++i) {
    groups.push_back(Running("full" + std::to_string(i), "slow", {{300, 10'000}}));
    groups.back().budget_bytes = BudgetFor(500, {64});
  }
  const ClusterView view = With(Timed({}, {}), groups);
  const std::vector<Decision> decisions = Schedule(view);
  CHECK(decisions.size() == 1);
  for (const Decision& decision : decisions) CHECK(decision.to == "h");
}

TEST_CASE("Two jobs change places, wherever their groups stand") {
  // That of `c` had better be on the fast worker, but not beside the other's.
  std::vector<GroupView> groups = {Running("a", "fast", {{400, 100'000}})};
  for (int i = 0; i < 10; ++i) {
    groups.push_back(Running("b" + std::to_string(i), "slow", {{100, 100}}));
  }
  groups.push_back(Running("c", "slow", {{400, 140'000}}));
  const std::vector<Decision> decisions = Schedule(With(Timed({}, {}), groups));
  REQUIRE(decisions.size() == 2);
  for (const Decision& decision : decisions) {
    CHECK(decision.to == (decision.jobs[0] == "a0" ? "c" : "a"));
  }
}

TEST_CASE("One that a quota would keep from coming back stays, and so does its group") {
  const std::vector<JobWork> four(4, JobWork{400, 10'000});
  ClusterView view = With(Timed({IdleOn("late", "slow")}, {}), {Running("g", "slow", four)});
  REQUIRE(Count(view, Decision::Kind::kReplace) == 2);
  for (RunningJob& running : view.groups[0].running) running.stays = true;
  CHECK(Schedule(view).empty());
  // Nor does it make room for another, on a worker that idles.
  ClusterView full =
      View({Group("g", "m", BudgetFor(9000, {64}), {{"a"}})}, {Other(Long(Job("long", 0), 9000))});
  full.workers.push_back({"idle", BudgetFor(500, {64}), {.threads = 2}, true});
  REQUIRE(Count(full, Decision::Kind::kReplace) == 1);
  full.groups[0].running[0].stays = true;
  CHECK(Count(full, Decision::Kind::kReplace) == 0);
}

}  // namespace
}  // namespace lorad::planner
