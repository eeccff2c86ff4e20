// Jobs of one base model share a turn, though others wait in between (planner/schedule/overtake.cc).
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "tests/planner/schedule/timed.h"

namespace lorad::planner {
namespace {

constexpr double kLoadS = 4;
constexpr double kMoveS = 2;

QueuedJob OfM(const std::string& name, int64_t steps, int64_t tokens = 200) {
  return Steps(name, steps, tokens, 0, "m");
}
QueuedJob OfN(const std::string& name, int64_t steps, int64_t tokens = 200) {
  return Steps(name, steps, tokens, 0, "n");
}
QueuedJob Urgent(QueuedJob job, int32_t priority) {
  job.priority = priority;
  return job;
}

// In this order.
ClusterView Queue(std::vector<WorkerView> workers, std::vector<QueuedJob> queue) {
  for (size_t i = 0; i < queue.size(); ++i) queue[i].arrival = static_cast<int64_t>(i);
  ClusterView view = Timed(std::move(workers), std::move(queue), kLoadS);
  view.move_s = kMoveS;
  return view;
}

// Who joins groups in this round, a group in a line.
std::string Placed(const ClusterView& view) {
  std::string text;
  for (const Decision& decision : Schedule(view)) {
    if (decision.kind == Decision::Kind::kAdmit) text += "admit";
    if (decision.kind == Decision::Kind::kFormGroup) text += "form";
    if (decision.kind == Decision::Kind::kWait) continue;
    for (const std::string& job : decision.jobs) text += " " + job;
    text += "\n";
  }
  return text;
}

TEST_CASE("Who may overtake") {
  QueuedJob drained = OfN("b", 10);
  drained.first_of_equals = true;
  QueuedJob comes_back = OfN("b", 10);
  comes_back.resumes = true;
  QueuedJob first = Urgent(OfM("a", 10), 1);
  QueuedJob goes_on = OfM("a", 10);
  goes_on.resumes = true;
  ClusterView unknown = Queue({IdleOn("w")}, {OfM("a", 10), OfN("b", 10), OfM("c", 10)});
  unknown.times.clear();
  ClusterView elsewhere = Queue({IdleOn("w", "other")}, {OfM("a", 10), OfN("b", 10), OfM("c", 10)});
  ClusterView running =
      With(Queue({}, {OfN("b", 10), OfM("c", 10)}), {Running("g", "slow", {{200, 10}})});
  ClusterView forming =
      With(Queue({}, {OfN("b", 10), OfM("c", 10)}), {Forming(Running("g", "slow", {{200, 10}}))});
  ClusterView empty = With(Queue({}, {OfM("a", 10), OfN("b", 10), OfM("c", 10), OfM("long", 100)}),
                           {Running("g", "slow", {})});
  ClusterView behind = With(Queue({}, {OfN("b", 10), OfM("c", 10)}), {Running("g", "slow", {})});
  struct Case {
    std::string what;
    ClusterView view;
    std::string expected;
  };
  // A step of 200 tokens alone takes 300 ms, and each of 200 tokens beside it 200 ms more.
  const Case cases[] = {
      {"short jobs that come by turns",
       Queue({IdleOn("w")},
             {OfM("a", 10), OfN("b", 10), OfM("c", 10), OfN("d", 10), OfM("e", 10), OfN("f", 10)}),
       "form a c e\n"},
      {"long ones that use all of their worker stay in order",
       Queue({IdleOn("w")}, {OfM("a", 1000, 2000), OfN("b", 1000, 2000), OfM("c", 1000, 2000)}),
       "form a\n"},
      {"a turn lasts a tenth longer, and what a change takes: 9.3 s here",
       Queue({IdleOn("w")}, {OfM("a", 10), OfN("b", 10), OfM("c", 24)}), "form a c\n"},
      {"and no more", Queue({IdleOn("w")}, {OfM("a", 10), OfN("b", 10), OfM("c", 25)}), "form a\n"},
      {"all who overtake count together: 36 s here of 37",
       Queue({IdleOn("w")},
             {OfM("a", 94), OfN("b", 1), OfM("c", 20), OfN("d", 1), OfM("e", 19), OfM("f", 6)}),
       "form a c e\n"},
      {"who came before others wait counts as the first does",
       Queue({IdleOn("w")}, {OfM("a", 10), OfM("long", 100), OfN("b", 10), OfM("c", 30)}),
       "form a long c\n"},
      {"those of a base model keep their order",
       Queue({IdleOn("w")}, {OfM("a", 10), OfN("b", 10), OfM("long", 100), OfM("c", 1)}),
       "form a\n"},
      {"no higher priority is overtaken",
       Queue({IdleOn("w")}, {first, Urgent(OfN("b", 10), 1), OfM("c", 10)}), "form a\n"},
      {"but an equal one",
       Queue({IdleOn("w")}, {first, Urgent(OfN("b", 10), 1), Urgent(OfM("c", 10), 1), OfM("d", 1)}),
       "form a c\n"},
      {"nor who goes before its equals", Queue({IdleOn("w")}, {first, drained, OfM("c", 10)}),
       "form a\n"},
      {"nor who comes back from a group that is formed again",
       Queue({IdleOn("w")}, {goes_on, comes_back, OfM("c", 10)}), "form a\n"},
      {"a group that has jobs takes none past who waits", running, ""},
      {"nor one that is being formed", forming, ""},
      {"one without jobs does as a new one, behind one that is in front", empty,
       "admit a\nadmit c\n"},
      {"and for nobody else", behind, " b\n"},
      {"without times nobody knows how long others would wait", unknown, "form a\n"},
      {"nor without those of the device", elsewhere, "form a\n"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(Placed(c.view) == c.expected);
  }
}

double LastEnd(const std::vector<const QueuedJob*>& jobs, int64_t capacity) {
  std::vector<JobWork> works;
  for (const QueuedJob* job : jobs) works.push_back({StepOf(*job), job->remaining_steps});
  return std::ranges::max(EndsOf({100, 1, 0}, capacity, works));
}

// Of each group that is formed: who overtakes, and that the next one may not.
TEST_CASE("Nobody overtakes for long, nor more important jobs, nor its own base model's") {
  int overtakers = 0, kept_out = 0;
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    std::vector<QueuedJob> queue;
    for (uint32_t i = 0, jobs = 2 + random() % 20; i < jobs; ++i) {
      const auto steps = 1 + static_cast<int64_t>(random() % (random() % 2 == 0 ? 20 : 400));
      const auto tokens = 1 + static_cast<int64_t>(random() % 1500);
      const std::string name = "j" + std::to_string(i);
      queue.push_back(random() % 2 == 0 ? OfM(name, steps, tokens) : OfN(name, steps, tokens));
      queue.back().priority = random() % 8 == 0 ? 1 : 0;
    }
    const ClusterView view = Queue({IdleOn("w")}, queue);
    std::map<std::string, const QueuedJob*> by_name;
    std::vector<const QueuedJob*> order;
    for (const size_t i : QueueOrder(view)) {
      order.push_back(&view.queue[i]);
      by_name[view.queue[i].job] = &view.queue[i];
    }
    const std::vector<Decision> decisions = Schedule(view);
    REQUIRE(decisions[0].kind == Decision::Kind::kFormGroup);
    const std::vector<std::string>& group = decisions[0].jobs;
    const auto is_in = [&](const QueuedJob* job) {
      return std::ranges::count(group, job->job) > 0;
    };
    // All fit in memory, so those in front are in, and then others are overtaken.
    const auto first_waits = std::ranges::find_if_not(order, is_in);
    if (first_waits == order.end()) continue;
    CHECK((*first_waits)->base_model != order[0]->base_model);
    std::vector<const QueuedJob*> jobs(order.begin(), first_waits);
    const int64_t capacity = decisions[0].shape.capacity_tokens;
    const double latest_s = 1.1 * LastEnd(jobs, capacity) + kLoadS + kMoveS;
    bool closed = false;
    for (auto next = first_waits; next != order.end(); ++next) {
      if ((*next)->base_model != order[0]->base_model) continue;
      if (closed) {
        CHECK(!is_in(*next));
        continue;
      }
      jobs.push_back(*next);
      const double end_s = LastEnd(jobs, capacity);
      const bool may = end_s <= latest_s && (*next)->priority == (*first_waits)->priority;
      CHECK(is_in(*next) == may);
      closed = !may;
      ++(may ? overtakers : kept_out);
    }
  }
  CHECK(overtakers > 500);
  CHECK(kept_out > 500);
}

}  // namespace
}  // namespace lorad::planner
