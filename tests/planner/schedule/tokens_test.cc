// How long microbatches are where nobody says: planner/schedule/schedule.h, kMicrobatchTokens.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/planner/schedule/fixtures.h"

namespace lorad::planner {
namespace {

const DeviceShape kTwoThreads = {.threads = 2};
const DeviceShape kGpu = {
    .kind = DeviceKind::kCuda, .threads = 1, .multiprocessors = 132, .value_bytes = 2};

int64_t GiB(double count) { return static_cast<int64_t>(count * (int64_t{1} << 30)); }

QueuedJob LlamaJob(const std::string& name, int64_t arrival, int64_t longest = 1024,
                   int64_t rank = 16) {
  QueuedJob job{name, "m", Shared(Llama8B()), 0, arrival, longest, ShareAdapter(Rank(rank))};
  job.step_tokens = 4096;
  return job;
}

// On all seven linears.
QueuedJob LargeJob(const std::string& name, int64_t arrival, int64_t rank) {
  QueuedJob job = LlamaJob(name, arrival, 1024, rank);
  job.adapter = ShareAdapter(AdapterShape(
      rank, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}));
  return job;
}

int64_t SlotBytes(const QueuedJob& job) {
  return BytesOfSlot(*job.model, *job.adapter, kGpu).total();
}

GroupShape GpuShape(int64_t capacity, int64_t longest) {
  GroupShape shape = EmptyShape(kGpu);
  shape.capacity_tokens = capacity;
  shape.longest_sequence = longest;
  return shape;
}

// What a group of that shape with these jobs just fits in.
int64_t BudgetOf(const GroupShape& shape, const std::vector<QueuedJob>& jobs) {
  int64_t bytes = BytesOfGroup(Llama8B(), shape).total();
  for (const QueuedJob& job : jobs) bytes += SlotBytes(job);
  return bytes + bytes * 2 / 100 + 1;
}

GroupView LlamaGroup(const GroupShape& shape, int64_t budget, const std::vector<QueuedJob>& jobs) {
  GroupView group{"g", "m", Shared(Llama8B()), shape, budget, true, {}, {}};
  for (const QueuedJob& job : jobs) {
    group.jobs.push_back(job.job);
    group.adapters.push_back(*job.adapter);
    group.running.push_back({.priority = job.priority,
                             .arrival = job.arrival,
                             .running_s = 10000,
                             .longest_sequence = job.longest_sequence,
                             .step_tokens = job.step_tokens});
  }
  return group;
}

std::string TextOf(const ClusterView& view) {
  std::string text;
  for (const Decision& decision : Schedule(view)) text += ToText(decision) + "\n";
  return text;
}

TEST_CASE("A group formed for one job has as long microbatches as leave room for company") {
  const QueuedJob small{"a", "m", Shared(SmolLm2()), 0, 1, 100, ShareAdapter(Rank(8))};
  QueuedJob small_long = small;
  small_long.longest_sequence = 3000;
  const QueuedJob llama = LlamaJob("a", 1, 2048);
  struct Case {
    std::string what;
    QueuedJob job;
    DeviceShape device;
    int64_t budget;
    int64_t said;
    int64_t capacity;
    Recomputation recomputation;
  };
  const Case cases[] = {
      {"a CPU", small, kTwoThreads, GiB(8), 0, 1024, Recomputation::kProducts},
      {"a CPU, long", small_long, kTwoThreads, GiB(8), 0, 3000, Recomputation::kProducts},
      {"a CPU, said", small, kTwoThreads, GiB(8), 64, 100, Recomputation::kProducts},
      {"a GPU", small, kGpu, GiB(70), 0, 8192, Recomputation::kNothing},
      {"a GPU, long", small_long, kGpu, GiB(70), 0, 8192, Recomputation::kNothing},
      {"a GPU, said", small, kGpu, GiB(70), 512, 512, Recomputation::kNothing},
      {"a large model", llama, kGpu, GiB(78), 0, 8192, Recomputation::kNothing},
      {"room for half", llama, kGpu, GiB(44), 0, 4096, Recomputation::kNothing},
      {"room for a quarter", llama, kGpu, GiB(30), 0, 2048, Recomputation::kNothing},
      {"room for one large adapter and one more", LargeJob("a", 1, 128), kGpu, GiB(78), 0, 8192,
       Recomputation::kNothing},
      {"but not for the one more", LargeJob("a", 1, 256), kGpu, GiB(78), 0, 4096,
       Recomputation::kNothing},
      {"recomputed only with the shortest", llama, kGpu, GiB(24), 0, 2048,
       Recomputation::kProducts},
      {"nowhere", llama, kGpu, GiB(8), 0, 2048, Recomputation::kBlocks},
      {"said, though there is no room", llama, kGpu, GiB(30), 8192, 8192, Recomputation::kBlocks},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    const GroupShape shape = ShapeAlone(c.job, c.device, c.budget, c.said);
    CHECK(shape.capacity_tokens == c.capacity);
    CHECK(shape.recomputation == c.recomputation);
    if (c.said > 0 || c.capacity <= std::max(kMicrobatchTokens, c.job.longest_sequence)) continue;
    const int64_t slot = BytesOfSlot(*c.job.model, *c.job.adapter, c.device).total();
    CHECK(Fits(BytesOfGroup(*c.job.model, shape).total() + kAdaptersOfGpu * slot, c.budget));
  }
}

TEST_CASE("Microbatches become shorter where that lets a job in, and not otherwise") {
  const std::vector<QueuedJob> two = {LlamaJob("a", 1), LlamaJob("b", 2)};
  const QueuedJob next = LlamaJob("x", 3);
  std::vector<QueuedJob> three = two;
  three.push_back(next);
  const GroupShape longest = GpuShape(8192, 1024);
  const GroupShape half = GpuShape(4096, 1024);
  const GroupShape least = GpuShape(1024, 1024);
  const auto view = [&](const GroupShape& shape, int64_t budget, std::vector<QueuedJob> queue) {
    return ClusterView{
        {{"w", budget, kGpu, false}}, {LlamaGroup(shape, budget, two)}, std::move(queue)};
  };
  const std::string full =
      "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
      "one of them ends or gives way)\n";
  CHECK(TextOf(view(longest, BudgetOf(longest, three), {next})) == "admit g: x\n");
  CHECK(TextOf(view(longest, BudgetOf(longest, two), {next})) == "reform #1 g 4096/1024: x\n");
  CHECK(TextOf(view(half, BudgetOf(half, three), {next})) == "admit g: x\n");
  CHECK(TextOf(view(least, BudgetOf(least, two), {next})) == full);
  // No longer than its rows, and no shorter than they.
  CHECK(TextOf(view(longest, BudgetOf(GpuShape(3000, 3000), three), {LlamaJob("x", 3, 3000)})) ==
        "reform #1 g 3000/3000: x\n");
  // As they were told to be, they stay.
  ClusterView said = view(longest, BudgetOf(longest, two), {next});
  said.microbatch_tokens = 8192;
  CHECK(TextOf(said) == full);
  // Nor do they become shorter for a job that would not make the group faster.
  ClusterView gain = view(longest, BudgetOf(longest, two), {next});
  gain.policy.least_gain = 0.05;
  gain.times[{"m", ""}] = {.constant_ms = 10, .token_ms = 1};
  CHECK(TextOf(gain) == full);
  // A group that is being formed has the room that its jobs need together.
  ClusterView fresh{{{"w", BudgetOf(longest, three), kGpu, true}}, {}, two};
  CHECK(TextOf(fresh) == "form w base=m 8192/1024: a b\n");
  fresh.queue.push_back(LargeJob("x", 3, 64));
  CHECK(TextOf(fresh) == "form w base=m 4096/1024: a b x\n");
  // Nor where an empty group can make way, or for one that may not have the group.
  ClusterView empty = view(longest, BudgetOf(longest, two), {next});
  empty.groups.push_back(LlamaGroup(longest, BudgetOf(longest, three), {}));
  empty.groups[1].name = "h";
  empty.groups[1].base_model = "n";
  CHECK(TextOf(empty) == "dissolve #1 h: x\n");
  QueuedJob other = LlamaJob("y", 3);
  other.base_model = "n";
  CHECK(TextOf(view(longest, BudgetOf(longest, two), {other, LlamaJob("x", 4)})) ==
        "wait #1: y (all workers train other base models (m); waits until one is free)\n"
        "wait #2: x (behind job y, for which group g is draining)\n");
  // One that fits no worker may not have it.
  CHECK(TextOf(view(longest, BudgetOf(longest, two), {LlamaJob("y", 3, 900000), LlamaJob("x", 4)}))
            .ends_with("reform #2 g 4096/1024: x\n"));
  // What jobs asked for that have left goes first.
  CHECK(TextOf(view(GpuShape(8192, 8192), BudgetOf(GpuShape(8192, 8192), two), {next})) ==
        "reform #1 g 4096/1024: x\n");
  const std::vector<QueuedJob> many(static_cast<size_t>(longest.slots_max), two[0]);
  const int64_t for_many = BudgetOf(longest, many);
  const ClusterView slots{
      {{"w", for_many, kGpu, false}}, {LlamaGroup(longest, for_many, many)}, {next}};
  CHECK(TextOf(slots) == "wait #1: x (group g is full)\n");
  // One group for one job: what becomes of it is waited for.
  ClusterView changing = view(longest, BudgetOf(longest, two), {next});
  changing.groups.push_back(changing.groups[0]);
  changing.groups[1].name = "h";
  changing.groups[1].open = false;
  changing.groups[1].changes = true;
  CHECK(TextOf(changing) == "wait #1: x (group h is being formed or changed)\n");
  // A group that is being formed has no shorter ones while a worker is idle.
  const int64_t half_a_gpu = GiB(44);
  ClusterView idle{{{"w1", half_a_gpu, kGpu, true}, {"w2", half_a_gpu, kGpu, true}},
                   {},
                   {LlamaJob("a", 1), LargeJob("b", 2, 128), LargeJob("c", 3, 128)}};
  CHECK(TextOf(idle) == "form w1 base=m 4096/1024: a c\nform w2 base=m 2048/1024: b\n");
  // Also where loading takes long, unless it is known that shorter microbatches cost less.
  idle.load_s[{"m", ""}] = 1e6;
  idle.workers[0].loaded_base_model = "m";
  CHECK(TextOf(idle) == "form w1 base=m 4096/1024: a c\nform w2 base=m 2048/1024: b\n");
  idle.times[{"m", ""}] = {.constant_ms = 10, .token_ms = 1};
  CHECK(TextOf(idle) == "form w1 base=m 2048/1024: a b c\n");
  // On a worker that may have less, now and when its group is formed again.
  ClusterView less = view(least, GiB(78), {LargeJob("x", 3, 128)});
  CHECK(TextOf(less) == "reform #1 g 8192/1024: x\n");
  less.groups[0].microbatch_tokens = 1024;
  CHECK(TextOf(less) == "reform #1 g 1024/1024: x\n");
  ClusterView rests{{{"w", GiB(78), kGpu, true, 1024}}, {}, {next, LlamaJob("y", 4, 1500)}};
  CHECK(TextOf(rests) == "form w base=m 1500/1500: x y\n");
  // Who may evict does so only where the shortest do not do.
  QueuedJob important = next;
  important.priority = 1;
  ClusterView evict = view(longest, BudgetOf(longest, two), {important});
  evict.policy.evict = true;
  CHECK(TextOf(evict) == "reform #1 g 4096/1024: x\n");
  evict = view(least, BudgetOf(least, two), {important});
  evict.policy.evict = true;
  CHECK(TextOf(evict) == "evict g: b for x\nwait #1: x (group g makes room for it)\n");
}

TEST_CASE("Microbatches grow back when those that needed the room have left, if that pays") {
  const std::vector<QueuedJob> two = {LlamaJob("a", 1), LlamaJob("b", 2)};
  const GroupShape longest = GpuShape(8192, 1024);
  const GroupShape least = GpuShape(1024, 1024);
  ClusterView view{{{"w", GiB(78), kGpu, false}}, {LlamaGroup(least, GiB(78), two)}, {}};
  // A round of 8,192 tokens takes 8 x 100 + 820 ms, in one microbatch 100 + 820 ms.
  view.times[{"m", ""}] = {.constant_ms = 100, .token_ms = 0.1};
  view.load_s[{"m", ""}] = 20;
  view.groups[0].formed_s = 900;
  for (RunningJob& job : view.groups[0].running) job.remaining_steps = 100;
  CHECK(TextOf(view) ==
        "reform g 8192/1024 (its jobs end 140.0 s earlier in the sum, 44.0 s it costs them)\n");
  struct Case {
    std::string what;
    std::function<void(ClusterView&)> change;
  };
  const Case cases[] = {
      {"they are as long as can be", [&](ClusterView& v) { v.groups[0].shape = longest; }},
      {"somebody said how long", [](ClusterView& v) { v.microbatch_tokens = 1024; }},
      {"just formed", [](ClusterView& v) { v.groups[0].formed_s = 899; }},
      {"they nearly end",
       [](ClusterView& v) {
         for (RunningJob& job : v.groups[0].running) job.remaining_steps = 30;
       }},
      {"who knows when they end",
       [](ClusterView& v) { v.groups[0].running[0].remaining_steps = 0; }},
      {"loading takes long",
       [](ClusterView& v) {
         v.load_s[{"m", ""}] = 69;
       }},
      {"steps fill no microbatch",
       [](ClusterView& v) {
         for (RunningJob& job : v.groups[0].running) job.step_tokens = 512;
       }},
      {"not asked for", [](ClusterView& v) { v.policy.rebalance = false; }},
      {"one leaves", [](ClusterView& v) { v.groups[0].running[0].leaving = true; }},
      {"one comes", [](ClusterView& v) { v.groups[0].running[0].coming = true; }},
      {"it is being formed", [](ClusterView& v) { v.groups[0].forming = true; }},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    ClusterView changed = view;
    c.change(changed);
    CHECK(TextOf(changed).empty());
  }
  // Recomputation goes likewise: a third of a step for blocks.
  view.groups[0].shape = longest;
  view.groups[0].shape.recomputation = Recomputation::kBlocks;
  CHECK(TextOf(view).starts_with("reform g 8192/1024 ("));
  view.times[{"m", ""}] = {.constant_ms = 1, .token_ms = 0.01};
  CHECK(TextOf(view).empty());
}

// One GPU, jobs that come and go.
class World {
 public:
  World(std::mt19937& random, int64_t budget) : random_(random), budget_(budget) {
    for (int i = 0; i < 40; ++i) {
      const std::string name = "j" + std::to_string(i);
      const auto rank = int64_t{8} << random_() % 4;
      QueuedJob job = random_() % 3 > 0 ? LargeJob(name, i, rank) : LlamaJob(name, i, 0, rank);
      job.longest_sequence = static_cast<int64_t>(200 + random_() % 3000);
      job.priority = static_cast<int32_t>(random_() % 3);
      coming_.push_back(std::move(job));
    }
  }

  void Run() {
    for (int round = 0; !coming_.empty() || !queue_.empty() || !members_.empty(); ++round) {
      REQUIRE(round < 1000);
      for (size_t come = random_() % 4; come > 0 && !coming_.empty(); --come) {
        queue_.push_back(coming_.front());
        coming_.erase(coming_.begin());
      }
      if (queue_.empty() && members_.empty()) continue;
      // Until nothing more changes: each time a group is formed again lets a job in.
      for (int changes = 0; Carry(); ++changes) REQUIRE(changes < 2 * kJobsAtOnce);
      REQUIRE_FALSE(members_.empty());
      if (random_() % 2 == 0) continue;
      members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(random_() % members_.size()));
    }
  }
  int64_t reforms() const { return reforms_; }
  int64_t shorter() const { return shorter_; }
  int64_t most_jobs() const { return most_jobs_; }

 private:
  static constexpr int kJobsAtOnce = 32;

  ClusterView ViewNow() const {
    ClusterView view;
    view.policy.evict = false;
    view.workers.push_back({"w", budget_, kGpu, !formed_});
    if (formed_) view.groups.push_back(LlamaGroup(shape_, budget_, members_));
    view.queue = queue_;
    return view;
  }

  // Whether the group has been formed, or will be formed again.
  bool Carry() {
    bool changed = false;
    for (const Decision& decision : Schedule(ViewNow())) {
      INFO(ToText(decision));
      REQUIRE(decision.kind != Decision::Kind::kEvict);
      if (decision.kind == Decision::Kind::kReform) {
        ++reforms_;
        shorter_ += decision.shape.capacity_tokens < shape_.capacity_tokens;
        for (QueuedJob& job : members_) job.resumes = true;
        queue_.insert(queue_.end(), members_.begin(), members_.end());
        members_.clear();
        formed_ = false;
        promised_ = decision;
        return true;
      }
      if (decision.kind == Decision::Kind::kDissolve) {
        REQUIRE(members_.empty());
        formed_ = false;
        return true;
      }
      if (decision.kind == Decision::Kind::kFormGroup) {
        formed_ = changed = true;
        shape_ = decision.shape;
      } else if (decision.kind != Decision::Kind::kAdmit) {
        continue;
      }
      for (const std::string& name : decision.jobs) Join(name);
    }
    // As it was said: nobody who trained is put out, and the job for which it was done is in.
    if (promised_) {
      CHECK(std::ranges::none_of(queue_, [](const QueuedJob& job) { return job.resumes; }));
      CHECK(std::ranges::any_of(
          members_, [&](const QueuedJob& job) { return job.job == promised_->jobs.at(0); }));
      promised_.reset();
    }
    most_jobs_ = std::max<int64_t>(most_jobs_, std::ssize(members_));
    return changed;
  }

  void Join(const std::string& name) {
    const auto found = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const QueuedJob& job) { return job.job == name; });
    REQUIRE(found != queue_.end());
    REQUIRE(found->longest_sequence <= shape_.capacity_tokens);
    members_.push_back(*found);
    members_.back().resumes = false;
    queue_.erase(found);
    int64_t bytes = BytesOfGroup(Llama8B(), shape_).total();
    for (const QueuedJob& job : members_) bytes += SlotBytes(job);
    REQUIRE(Fits(bytes, budget_));
  }

  std::mt19937& random_;
  const int64_t budget_;
  std::vector<QueuedJob> coming_, queue_, members_;
  GroupShape shape_;
  bool formed_ = false;
  std::optional<Decision> promised_;
  int64_t reforms_ = 0;
  int64_t shorter_ = 0;
  int64_t most_jobs_ = 0;
};

TEST_CASE("Jobs of a group that is formed again come first, fair share or not") {
  ClusterView view;
  for (const bool fair_share : {false, true}) {
    view.policy.fair_share = fair_share;
    QueuedJob urgent = LlamaJob("x", 1);
    urgent.priority = 5;
    QueuedJob resumes = LlamaJob("y", 2);
    resumes.resumes = true;
    QueuedJob urgent_and_resumes = urgent;
    urgent_and_resumes.resumes = true;
    QueuedJob equal = LlamaJob("z", 0);
    view.queue = {urgent, resumes, urgent_and_resumes, equal};
    CHECK(QueueOrder(view) == std::vector<size_t>{2, 1, 0, 3});
  }
}

TEST_CASE("Jobs come and go on a GPU: memory holds, all end, groups settle") {
  int64_t shorter = 0, most_jobs = 0;
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    for (int i = 0; i < 40; ++i) {
      const double budget = 24 + 6 * (i % 10);
      INFO("seed " << seed << ", " << budget << " GiB");
      World world(random, GiB(budget));
      world.Run();
      CHECK(world.reforms() < 40);
      shorter += world.shorter();
      most_jobs = std::max(most_jobs, world.most_jobs());
    }
  }
  CHECK(shorter > 4);
  CHECK(most_jobs > 10);
}

}  // namespace
}  // namespace lorad::planner
