// Which workers a model is cut over, and where: planner/stages/place.h.
#include "planner/stages/place.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

const AdapterShape kAdapter(8, {"q_proj", "v_proj", "down_proj"});
constexpr DeviceShape kCpu = {.threads = 2};

ModelShape Small(int64_t layers, bool tied) {
  ModelShape model = SmolLm2();
  model.layers = layers;
  model.vocabulary = 4096;
  model.tied_head = tied;
  return model;
}

// Like the policy's on a CPU: what recomputes less is better.
std::vector<ShapeChoice> Shapes(const std::vector<const StageWorker*>& workers) {
  GroupShape shape{256, 100, workers[0]->device};
  shape.in_flight = static_cast<int>(workers.size());
  GroupShape blocks = shape;
  blocks.recomputation = Recomputation::kBlocks;
  return {{shape, 1}, {blocks, 1}};
}

std::string Text(const std::optional<Placement>& placement,
                 const std::vector<StageWorker>& workers) {
  if (!placement) return "nowhere";
  std::string text;
  for (size_t s = 0; s < placement->workers.size(); ++s) {
    const StageRange& range = placement->ranges[s];
    text += (s == 0 ? "" : " | ") + workers[placement->workers[s]].name + " " +
            std::to_string(range.first_block) + "-" + std::to_string(range.end_block - 1);
  }
  return text;
}

// The bytes that a worker must have for these blocks, in the least shape.
int64_t Budget(const ModelShape& model, int stages, StageRange range, int64_t percent = 100) {
  GroupShape shape{256, 100, kCpu};
  shape.recomputation = Recomputation::kBlocks;
  shape.in_flight = stages;
  const int64_t bytes =
      BytesOfGroup(model, shape, range).total() + BytesOfSlot(model, kAdapter, kCpu, range).total();
  return bytes * 102 / 100 * percent / 100 + 1;
}

StageWorker Worker(const std::string& name, int64_t budget, const std::string& host = "h",
                   const std::string& numerics = "n") {
  return {
      .name = name, .device = kCpu, .budget_bytes = budget, .numerics_id = numerics, .host = host};
}

std::string Place(const ModelShape& model, const std::vector<StageWorker>& workers,
                  int32_t stages = 0) {
  return Text(PlaceStages({model, kAdapter, 100, stages}, workers, Shapes), workers);
}

TEST_CASE("The fewest workers of one numerics id, one host first") {
  const ModelShape model = Small(4, true);
  const int64_t half = Budget(model, 2, {0, 4}, 130), third = Budget(model, 3, {0, 3}, 110);
  REQUIRE(third < half);
  CHECK(Place(model, {}) == "nowhere");
  CHECK(Place(model, {Worker("a", half)}) == "nowhere");
  CHECK(Place(model, {Worker("a", half), Worker("b", half)}) == "a 0-3 | b 4-7");
  CHECK(Place(model, {Worker("a", half, "h", "n"), Worker("b", half, "h", "m")}) == "nowhere");
  CHECK(Place(model, {Worker("a", half, "h", ""), Worker("b", half, "h", "")}) == "nowhere");
  // Two that reach each other, though the first has more memory.
  std::vector<StageWorker> reach = {Worker("a", 2 * half), Worker("b", half), Worker("c", half)};
  reach[0].transport = "mpi";
  CHECK(Place(model, reach) == "b 0-3 | c 4-7");
  reach.pop_back();
  CHECK(Place(model, reach) == "nowhere");
  // Two of one host, though the first is of another.
  CHECK(Place(model, {Worker("a", half, "g"), Worker("b", half), Worker("c", half)}) ==
        "b 0-3 | c 4-7");
  // Of one host, where one has less memory, rather than of two.
  CHECK(Place(model, {Worker("a", half, "g"), Worker("b", half), Worker("c", third),
                      Worker("d", third)}) == "b 0-5 | c 6-7");
  // As many as are asked for, and no more than there are blocks.
  const std::vector<StageWorker> nine = [&] {
    std::vector<StageWorker> workers;
    for (char name = 'a'; name < 'j'; ++name) workers.push_back(Worker({name}, half));
    return workers;
  }();
  CHECK(Place(model, nine, 4) == "a 0-1 | b 2-3 | c 4-6 | d 7-7");
  CHECK(Place(model, nine, 8).substr(0, 5) == "a 0-0");
  CHECK(Place(model, nine, 9) == "nowhere");
  CHECK(Place(model, {nine[0], nine[1]}, 3) == "nowhere");
}

TEST_CASE("Where GPUs are on two hosts, a stage has what NCCL takes for its borders between them") {
  const ModelShape model = Small(6, true);
  const auto place = [&](std::vector<std::string> hosts, const std::string& transport = "",
                         const std::string& by_nccl_alone = "") {
    std::vector<StageWorker> workers;
    for (const std::string& host : hosts) {
      const std::string name(1, 'a' + static_cast<char>(workers.size()));
      StageWorker worker = Worker(name, int64_t{8} << 30, host);
      worker.device = {.kind = DeviceKind::kCuda, .multiprocessors = 132, .value_bytes = 2};
      worker.transport = transport;
      worker.nccl = by_nccl_alone.find(name) != std::string::npos;
      workers.push_back(worker);
    }
    return *PlaceStages({model, kAdapter, 100, static_cast<int32_t>(hosts.size())}, workers,
                        Shapes);
  };
  const Placement one_host = place({"h", "h", "h"});
  const auto more = [&](const Placement& placement) {
    CHECK(placement.ranges == one_host.ranges);
    std::vector<int64_t> bytes;
    for (size_t s = 0; s < 3; ++s) bytes.push_back(placement.bytes[s] - one_host.bytes[s]);
    return bytes;
  };
  const int64_t one = BytesOfNccl(1), two = BytesOfNccl(2);
  CHECK(one > int64_t{1} << 30);
  CHECK(two > one);
  CHECK(more(place({"h", "h", "g"})) == std::vector<int64_t>{0, one, one});
  CHECK(more(place({"f", "g", "h"})) == std::vector<int64_t>{one, two, one});
  CHECK(more(place({"f", "g", "h"}, "mpi")) == std::vector<int64_t>{0, 0, 0});
  // On one host where they were told to take no other way; a neighbour follows.
  CHECK(more(place({"h", "h", "h"}, "", "abc")) == std::vector<int64_t>{one, two, one});
  CHECK(more(place({"h", "h", "h"}, "", "a")) == std::vector<int64_t>{one, one, 0});
  CHECK(BytesOfNccl(0) == 0);
}

TEST_CASE("Of alike workers each has the stage whose blocks it holds") {
  const ModelShape model = Small(6, true);
  const int64_t third = Budget(model, 3, {0, 4}, 120);
  const std::vector<StageWorker> alike = {Worker("a", third), Worker("b", third),
                                          Worker("c", third)};
  REQUIRE(Place(model, alike, 3) == "a 0-3 | b 4-8 | c 9-11");
  const auto holding = [&](const std::vector<std::optional<StageRange>>& ranges) {
    std::vector<StageWorker> workers = alike;
    for (size_t i = 0; i < workers.size(); ++i) workers[i].holds = ranges[i];
    return workers;
  };
  // What lives of a group, and a spare: of the first stage, the middle, the last.
  CHECK(Place(model, holding({{{4, 9}}, {{9, 12}}, {}}), 3) == "c 0-3 | a 4-8 | b 9-11");
  CHECK(Place(model, holding({{{0, 4}}, {{9, 12}}, {}}), 3) == "a 0-3 | c 4-8 | b 9-11");
  CHECK(Place(model, holding({{}, {{4, 9}}, {{0, 4}}}), 3) == "c 0-3 | b 4-8 | a 9-11");
  // All of them, in any order; two the same; blocks of another cut.
  CHECK(Place(model, holding({{{9, 12}}, {{0, 4}}, {{4, 9}}}), 3) == "b 0-3 | c 4-8 | a 9-11");
  CHECK(Place(model, holding({{{4, 9}}, {{4, 9}}, {{4, 9}}}), 3) == "a 0-3 | b 4-8 | c 9-11");
  CHECK(Place(model, holding({{{0, 5}}, {{5, 12}}, {}}), 3) == "a 0-3 | b 4-8 | c 9-11");
  // Not where it has other memory, or is on another host.
  std::vector<StageWorker> other = holding({{{4, 9}}, {}, {}});
  other[0].budget_bytes += 1;
  CHECK(Place(model, other, 3) == "a 0-3 | b 4-8 | c 9-11");
  other = holding({{{4, 9}}, {}, {}});
  other[0].host = "g";
  CHECK(Place(model, other, 3) == "b 0-3 | c 4-8 | a 9-11");
}

TEST_CASE("GPUs of two hosts that would hold a model without NCCL do not with it") {
  const ModelShape model = Small(6, true);
  const Placement need = [&] {
    std::vector<StageWorker> workers = {Worker("a", int64_t{8} << 30),
                                        Worker("b", int64_t{8} << 30)};
    for (StageWorker& worker : workers) {
      worker.device = {.kind = DeviceKind::kCuda, .multiprocessors = 132, .value_bytes = 2};
    }
    return *PlaceStages({model, kAdapter, 100}, workers, Shapes);
  }();
  const auto holds = [&](int64_t budget, const std::string& host) {
    std::vector<StageWorker> workers = {Worker("a", budget), Worker("b", budget, host)};
    for (StageWorker& worker : workers) {
      worker.device = {.kind = DeviceKind::kCuda, .multiprocessors = 132, .value_bytes = 2};
    }
    return PlaceStages({model, kAdapter, 100}, workers, Shapes).has_value();
  };
  const int64_t bytes = std::max(need.bytes[0], need.bytes[1]);
  CHECK(holds(bytes * 103 / 100, "h"));
  CHECK(!holds(bytes * 103 / 100, "g"));
  CHECK(holds((bytes + BytesOfNccl(1)) * 103 / 100, "g"));
}

TEST_CASE("A stage short of memory has fewer blocks than time would give it") {
  const ModelShape model = Small(6, false);
  const int64_t large = Budget(model, 2, {0, 12}), small = Budget(model, 2, {8, 12});
  const std::vector<StageWorker> workers = {Worker("a", small), Worker("b", large)};
  const auto placement = PlaceStages({model, kAdapter, 100}, workers, Shapes);
  REQUIRE(placement);
  CHECK(placement->workers == std::vector<size_t>{1, 0});
  CHECK(placement->ranges.back().end_block - placement->ranges.back().first_block <= 4);
  CHECK(placement->fits);
  // The fewest that lack memory are named where nothing fits.
  const std::vector<StageWorker> tight = {Worker("a", small / 4), Worker("b", small / 4)};
  CHECK(!PlaceStages({model, kAdapter, 100}, tight, Shapes));
  const auto nearest = PlaceNearest({model, kAdapter, 100}, tight, Shapes);
  REQUIRE(nearest);
  CHECK(!nearest->fits);
  CHECK(nearest->bytes[nearest->tightest] > small / 4);
  CHECK(!PlaceNearest({model, kAdapter, 100}, {tight[0]}, Shapes));
}

// Whether some cut of the blocks from `first` on lets every stage fit, gone through one by one.
bool CutExists(const ModelShape& model, const GroupShape& shape,
               const std::vector<const StageWorker*>& workers, size_t stage, int first) {
  const auto blocks = static_cast<int>(2 * model.layers);
  if (stage == workers.size()) return first == blocks;
  for (int end = first + 1; end <= blocks; ++end) {
    const StageRange range{first, end};
    const int64_t bytes = BytesOfGroup(model, shape, range).total() +
                          BytesOfSlot(model, kAdapter, kCpu, range).total();
    if (!Fits(bytes, workers[stage]->budget_bytes)) return false;
    if (CutExists(model, shape, workers, stage + 1, end)) return true;
  }
  return false;
}

bool HoldsIn(const ModelShape& model, std::vector<const StageWorker*> set) {
  for (const ShapeChoice& choice : Shapes(set)) {
    if (CutExists(model, choice.shape, set, 0, 0)) return true;
  }
  return false;
}

// The fewest equal workers that hold the model, and whether those of one host do; by every subset.
struct Fewest {
  size_t workers = 0;  // 0: none hold it
  size_t hosts = 0;
};
Fewest FewestOf(const ModelShape& model, const std::vector<StageWorker>& workers) {
  Fewest fewest;
  for (uint32_t mask = 1; mask < (1u << workers.size()); ++mask) {
    std::vector<const StageWorker*> set;
    std::set<std::string> hosts, numerics;
    for (size_t i = 0; i < workers.size(); ++i) {
      if ((mask >> i & 1) == 0) continue;
      set.push_back(&workers[i]);
      hosts.insert(workers[i].host);
      numerics.insert(workers[i].numerics_id);
    }
    if (set.size() < 2 || numerics.size() > 1) continue;
    const std::pair<size_t, size_t> size(set.size(), hosts.size());
    if (fewest.workers > 0 && size >= std::pair(fewest.workers, fewest.hosts)) continue;
    if (HoldsIn(model, set)) fewest = {set.size(), hosts.size()};
  }
  return fewest;
}

TEST_CASE("A worker that holds no block has no stage") {
  const ModelShape model = Small(4, true);
  const int64_t half = Budget(model, 2, {0, 4}, 130);
  const StageWorker large = Worker("a", 4 * half), small = Worker("b", 1);
  CHECK(Place(model, {large, small}, 2) == "nowhere");
  CHECK(Place(model, {large, small, Worker("c", half)}, 2) == "a 0-4 | c 5-7");
  CHECK(Place(model, {large, small, Worker("c", half)}, 3) == "nowhere");
  const auto nearest = PlaceNearest({model, kAdapter, 100, 2}, {large, small}, Shapes);
  REQUIRE(nearest.has_value());
  CHECK_FALSE(nearest->fits);
}

// In the least shape, the larger worker first.
bool AnyCutFits(const ModelShape& model, const std::vector<StageWorker>& two) {
  GroupShape shape{256, 100, kCpu};
  shape.recomputation = Recomputation::kBlocks;
  shape.in_flight = 2;
  const auto fits = [&](const StageWorker& worker, StageRange range) {
    return Fits(BytesOfGroup(model, shape, range).total() +
                    BytesOfSlot(model, kAdapter, kCpu, range).total(),
                worker.budget_bytes);
  };
  const bool ordered = two[0].budget_bytes >= two[1].budget_bytes;
  const StageWorker& first = two[ordered ? 0 : 1];
  const StageWorker& last = two[ordered ? 1 : 0];
  const auto blocks = static_cast<int32_t>(2 * model.layers);
  for (int32_t cut = 1; cut < blocks; ++cut) {
    if (fits(first, {0, cut}) && fits(last, {cut, blocks})) return true;
  }
  return false;
}

TEST_CASE("Two workers of any memory hold a model if some cut does, by brute force") {
  int found = 0, without = 0;
  for (const uint32_t seed : Seeds()) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 2000; ++i) {
      INFO("seed " << seed << " pair " << i);
      const ModelShape model = Small(1 + static_cast<int64_t>(random() % 6), random() % 2 == 0);
      const auto blocks = static_cast<int32_t>(2 * model.layers);
      const auto most = static_cast<uint64_t>(Budget(model, 2, {0, blocks}));
      const std::vector<StageWorker> two = {
          Worker("a", static_cast<int64_t>(1 + random() % most)),
          Worker("b", static_cast<int64_t>(1 + random() % (random() % 3 == 0 ? most / 8 : most)))};
      const auto placement = PlaceStages({model, kAdapter, 100, 2}, two, Shapes);
      REQUIRE(placement.has_value() == AnyCutFits(model, two));
      REQUIRE(PlaceNearest({model, kAdapter, 100, 2}, two, Shapes).has_value());
      ++(placement ? found : without);
      if (!placement) continue;
      REQUIRE(placement->fits);
      REQUIRE(placement->ranges[0].end_block > 0);
      REQUIRE(placement->ranges[1].end_block > placement->ranges[1].first_block);
    }
  }
  CHECK(found > 100);
  CHECK(without > 100);
}

TEST_CASE("Of random clusters the fewest workers on the fewest hosts, by brute force") {
  size_t by_count[6] = {};
  for (const uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    for (int i = 0; i < 1000; ++i) {
      INFO("seed " << seed << " cluster " << i);
      const ModelShape model = Small(1 + static_cast<int64_t>(random() % 4), random() % 2 == 0);
      const auto blocks = static_cast<int32_t>(2 * model.layers);
      const auto part = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(blocks));
      const int64_t budget = Budget(model, 2, {0, part}, 80 + static_cast<int64_t>(random() % 80));
      std::vector<StageWorker> workers;
      const size_t count = 2 + random() % 4;
      for (size_t w = 0; w < count; ++w) {
        workers.push_back(Worker("w" + std::to_string(w), budget, random() % 2 == 0 ? "g" : "h",
                                 random() % 4 == 0 ? "m" : "n"));
      }
      const Fewest fewest = FewestOf(model, workers);
      const auto placement = PlaceStages({model, kAdapter, 100}, workers, Shapes);
      REQUIRE(placement.has_value() == (fewest.workers > 0));
      if (!placement) {
        ++by_count[0];
        continue;
      }
      ++by_count[placement->workers.size()];
      REQUIRE(placement->workers.size() == fewest.workers);
      std::set<std::string> hosts, numerics;
      int32_t at = 0;
      for (size_t s = 0; s < placement->workers.size(); ++s) {
        const StageWorker& worker = workers[placement->workers[s]];
        const StageRange& range = placement->ranges[s];
        hosts.insert(worker.host);
        numerics.insert(worker.numerics_id);
        REQUIRE(range.first_block == at);
        REQUIRE(range.end_block > at);
        at = range.end_block;
        const int64_t bytes = BytesOfGroup(model, placement->shape, range).total() +
                              BytesOfSlot(model, kAdapter, kCpu, range).total();
        REQUIRE(bytes == placement->bytes[s]);
        REQUIRE(Fits(bytes, worker.budget_bytes));
      }
      REQUIRE(at == blocks);
      REQUIRE(numerics.size() == 1);
      REQUIRE(hosts.size() == fewest.hosts);
    }
  }
  for (const size_t count : {0, 2, 3}) CHECK(by_count[count] > 20);
  CHECK(by_count[4] > 0);
}

}  // namespace
}  // namespace lorad::planner
