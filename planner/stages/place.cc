#include "planner/stages/place.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/stages/blocks.h"
#include "planner/stages/cut.h"

namespace lorad::planner {
namespace {

using Workers = std::vector<const StageWorker*>;

constexpr char kMpi[] = "mpi";  // StageWorker.transport

// The largest of lo .. hi for which `holds`, which holds up to some number and not beyond; lo - 1
// where it holds for none.
int Largest(int lo, int hi, absl::FunctionRef<bool(int)> holds) {
  while (lo <= hi) {
    const int middle = lo + (hi - lo) / 2;
    holds(middle) ? lo = middle + 1 : hi = middle - 1;
  }
  return hi;
}

GroupShape On(const DeviceShape& device, GroupShape shape) {
  shape.device = device;
  return shape;
}

// Where a stage on that worker may end, by its first block. Blocks are alike but for their kind, so
// what is between the first and the last is looked at once for each kind.
std::vector<int> ReachOn(const StageWorker& worker, int borders, const StageJob& job,
                         const ShapeChoice& choice) {
  const GroupShape shape = On(worker.device, choice.shape);
  const auto fits = [&](int first, int end) {
    const StageRange range{first, end};
    const int64_t slot = BytesOfSlot(job.model, job.adapter, worker.device, range).total();
    return Fits(BytesOfGroup(job.model, shape, range).total() + BytesOfNccl(borders) +
                    choice.adapters * slot,
                worker.budget_bytes);
  };
  const auto blocks = static_cast<int>(2 * job.model.layers);
  int lengths[2] = {0,
                    0};  // of stages without the embedding and the head that begin with that kind
  for (const int first : {1, 2}) {
    lengths[first % 2] =
        Largest(1, blocks - 1 - first, [&](int length) { return fits(first, first + length); });
  }
  // The stage with the head begins here at the earliest.
  const int last = blocks - Largest(1, blocks - 1, [&](int n) { return fits(blocks - n, blocks); });
  std::vector<int> reach = {Largest(1, blocks, [&](int end) { return fits(0, end); })};
  for (int first = 1; first < blocks; ++first) {
    reach.push_back(first >= last ? blocks : std::min(first + lengths[first % 2], blocks - 1));
  }
  return reach;
}

// Whether any cut keeps to the reach, each stage having a block at least. A stage that begins later
// ends no earlier, so of the blocks at which one may begin the last before an end decides it.
bool CanBeCut(const Reach& reach) {
  const size_t blocks = reach[0].size();
  std::vector<char> ends(blocks + 1, 0);  // whether the stages so far may end there
  ends[0] = 1;
  for (const std::vector<int>& of_stage : reach) {
    std::vector<char> next(blocks + 1, 0);
    int reached = 0;  // by a stage that begins at the last such block
    for (size_t end = 1; end <= blocks; ++end) {
      if (ends[end - 1] != 0) reached = of_stage[end - 1];
      next[end] = reached >= static_cast<int>(end) ? 1 : 0;
    }
    ends = std::move(next);
  }
  return ends[blocks] != 0;
}

Reach ReachOf(const Workers& workers, const StageJob& job, const ShapeChoice& choice) {
  Reach reach;
  const std::vector<int> borders = BordersByNccl(workers);
  for (size_t s = 0; s < workers.size(); ++s) {
    const auto is_like = [&](size_t other) {
      return workers[other]->device == workers[s]->device &&
             workers[other]->budget_bytes == workers[s]->budget_bytes &&
             borders[other] == borders[s];
    };
    size_t like = 0;
    while (!is_like(like)) ++like;
    reach.push_back(like < s ? reach[like] : ReachOn(*workers[s], borders[s], job, choice));
  }
  return reach;
}

// Whether the two may change seats: nothing that is counted or sent would be another then.
bool AreAlike(const StageWorker& a, const StageWorker& b) {
  return a.device == b.device && a.budget_bytes == b.budget_bytes && a.host == b.host &&
         a.nccl == b.nccl;
}

// Those that hold the blocks of a stage take it, where it is one of their like that has it.
void SeatByWeights(const std::vector<StageRange>& ranges, Workers* workers) {
  for (size_t s = 0; s < workers->size(); ++s) {
    for (size_t other = 0; other < workers->size(); ++other) {
      const StageWorker*& here = (*workers)[s];
      const StageWorker*& there = (*workers)[other];
      if (here->holds == ranges[s] || there->holds != ranges[s]) continue;
      if (AreAlike(*here, *there)) std::swap(here, there);
    }
  }
}

// What it takes where it is cut by time within the reach. REQUIRES: there is such a cut.
Placement Cutting(Workers workers, const StageWorker* all, const StageJob& job,
                  const GroupShape& shape, const Reach& reach) {
  // Sequences are half as long as the longest in the mean: how much attention takes beside MLPs
  // hardly moves a cut, as stages have as many of the one as of the other.
  const auto cut = CutStages(FlopsOfBlocks(job.model, job.longest_sequence / 2),
                             static_cast<int>(workers.size()), reach);
  Placement placement;
  placement.shape = shape;
  for (size_t s = 0; s < workers.size(); ++s) {
    placement.ranges.push_back({cut->first[s], cut->first[s + 1]});
  }
  SeatByWeights(placement.ranges, &workers);
  std::vector<DeviceShape> devices;
  for (size_t s = 0; s < workers.size(); ++s) {
    placement.workers.push_back(static_cast<size_t>(workers[s] - all));
    devices.push_back(workers[s]->device);
  }
  placement.bytes =
      BytesOfStages(job.model, shape, placement.ranges, devices, BordersByNccl(workers)) +
      SlotBytesOfStages(job.model, job.adapter, placement.ranges, devices);
  const auto share = [&](size_t s) {
    return static_cast<double>(placement.bytes[s]) /
           static_cast<double>(std::max<int64_t>(1, workers[s]->budget_bytes));
  };
  placement.fits = true;
  for (size_t s = 0; s < workers.size(); ++s) {
    placement.fits &= Fits(placement.bytes[s], workers[s]->budget_bytes);
    if (share(s) > share(placement.tightest)) placement.tightest = s;
  }
  return placement;
}

// Workers that may have the stages of one group, by host.
using Hosts = std::map<std::string, Workers>;

// By falling budget; of equals those that hold the model.
bool IsBefore(const StageWorker* a, const StageWorker* b) {
  return std::tuple(-a->budget_bytes, !a->holds, std::string_view(a->name)) <
         std::tuple(-b->budget_bytes, !b->holds, std::string_view(b->name));
}

std::vector<Hosts> Classes(const std::vector<StageWorker>& workers) {
  std::map<std::tuple<std::string, std::string, int, int>, Hosts> classes;
  for (const StageWorker& worker : workers) {
    if (worker.numerics_id.empty()) continue;
    const DeviceShape& device = worker.device;
    Hosts& hosts = classes[{worker.numerics_id, worker.transport, static_cast<int>(device.kind),
                            device.value_bytes}];
    hosts[worker.host].push_back(&worker);
  }
  std::vector<Hosts> all;
  for (auto& [key, hosts] : classes) {
    for (auto& [host, of_host] : hosts) std::ranges::sort(of_host, IsBefore);
    all.push_back(std::move(hosts));
  }
  return all;
}

// Stages of one host lie side by side, so that the fewest of their borders are between hosts.
Workers ByHost(Workers workers) {
  std::map<std::string_view, size_t> of_host;
  for (const StageWorker* worker : workers) ++of_host[worker->host];
  std::ranges::stable_sort(workers, [&](const StageWorker* a, const StageWorker* b) {
    const auto key = [&](const StageWorker* worker) {
      return std::tuple(~of_host[worker->host], std::string_view(worker->host));
    };
    return key(a) != key(b) ? key(a) < key(b) : IsBefore(a, b);
  });
  return workers;
}

// Sets of so many workers of one class that are worth a look.
void AddSets(const Hosts& hosts, size_t count, std::vector<Workers>* sets) {
  Workers all;
  std::vector<const Workers*> by_count;
  for (const auto& [host, workers] : hosts) {
    all.insert(all.end(), workers.begin(), workers.end());
    by_count.push_back(&workers);
    if (workers.size() < count) continue;
    sets->emplace_back(workers.begin(), workers.begin() + static_cast<ptrdiff_t>(count));
  }
  if (all.size() < count) return;
  std::ranges::stable_sort(
      by_count, [](const Workers* a, const Workers* b) { return a->size() > b->size(); });
  Workers fewest_hosts;
  for (const Workers* workers : by_count) {
    for (const StageWorker* worker : *workers) {
      if (fewest_hosts.size() < count) fewest_hosts.push_back(worker);
    }
  }
  std::ranges::sort(all, IsBefore);
  all.resize(count);
  sets->push_back(ByHost(std::move(fewest_hosts)));
  sets->push_back(ByHost(std::move(all)));
}

// Hosts, workers that would have to load, no GPUs, -budgets, name.
using Rank = std::tuple<size_t, int64_t, bool, int64_t, std::string_view>;
Rank RankOf(const Workers& workers) {
  std::set<std::string_view> hosts;
  int64_t lacking = 0, budget = 0;
  for (const StageWorker* worker : workers) {
    hosts.insert(worker->host);
    lacking += !worker->holds;
    budget += worker->budget_bytes;
  }
  return {hosts.size(), lacking, workers[0]->device.kind != DeviceKind::kCuda, -budget,
          workers[0]->name};
}

// The sets of so many workers, the one that is wanted most first.
std::vector<Workers> SetsOf(const std::vector<Hosts>& classes, size_t count) {
  std::vector<Workers> sets;
  for (const Hosts& hosts : classes) AddSets(hosts, count, &sets);
  using Ranked = std::pair<Rank, Workers>;
  std::vector<Ranked> ranked;
  for (Workers& set : sets) {
    const Rank rank = RankOf(set);
    ranked.emplace_back(rank, std::move(set));
  }
  std::ranges::stable_sort(ranked, {}, &Ranked::first);
  sets.clear();
  for (Ranked& next : ranked) sets.push_back(std::move(next.second));
  return sets;
}

// What memory sees of a set: sets of which it sees the same fit, or fit not, alike.
using Like = std::pair<std::string, std::vector<std::tuple<int64_t, int, int, int64_t, int>>>;
Like LikeOf(const Workers& workers) {
  Like like{workers[0]->numerics_id, {}};
  const std::vector<int> borders = BordersByNccl(workers);
  for (size_t s = 0; s < workers.size(); ++s) {
    const StageWorker& worker = *workers[s];
    like.second.emplace_back(worker.budget_bytes, worker.device.threads,
                             worker.device.multiprocessors, worker.microbatch_tokens, borders[s]);
  }
  return like;
}

// visit(set) for the sets of every number of stages that the job may have, the fewest first, until
// it says that it has seen enough.
void ForEachSet(const StageJob& job, const std::vector<StageWorker>& workers,
                absl::FunctionRef<bool(const Workers& set)> visit) {
  const std::vector<Hosts> classes = Classes(workers);
  const int most = static_cast<int>(std::min<int64_t>(kStagesMax, 2 * job.model.layers));
  const int from = job.stages > 0 ? job.stages : 2;
  const int to = job.stages > 0 ? std::min(job.stages, most) : most;
  for (int count = from; count <= to; ++count) {
    for (const Workers& set : SetsOf(classes, static_cast<size_t>(count))) {
      if (visit(set)) return;
    }
  }
}

}  // namespace

std::vector<int> BordersByNccl(const std::vector<const StageWorker*>& workers) {
  std::vector<int> borders(workers.size());
  for (size_t s = 0; s + 1 < workers.size(); ++s) {
    const StageWorker& one = *workers[s];
    const StageWorker& next = *workers[s + 1];
    const bool gpus = one.device.kind == DeviceKind::kCuda && next.device.kind == DeviceKind::kCuda;
    const bool asked = one.host != next.host || one.nccl || next.nccl;
    if (!gpus || !asked || one.transport == kMpi) continue;
    ++borders[s];
    ++borders[s + 1];
  }
  return borders;
}

StageBytes BytesOfStages(const ModelShape& model, const GroupShape& shape,
                         const std::vector<StageRange>& ranges,
                         const std::vector<DeviceShape>& devices, const std::vector<int>& borders) {
  StageBytes bytes;
  for (size_t s = 0; s < ranges.size(); ++s) {
    bytes.Append(BytesOfGroup(model, On(devices[s], shape), ranges[s]).total() +
                 BytesOfNccl(borders[s]));
  }
  return bytes;
}

StageBytes SlotBytesOfStages(const ModelShape& model, const AdapterShape& adapter,
                             const std::vector<StageRange>& ranges,
                             const std::vector<DeviceShape>& devices) {
  StageBytes bytes;
  for (size_t s = 0; s < ranges.size(); ++s) {
    bytes.Append(BytesOfSlot(model, adapter, devices[s], ranges[s]).total());
  }
  return bytes;
}

std::optional<Placement> PlaceStages(const StageJob& job, const std::vector<StageWorker>& workers,
                                     ShapesOn shapes) {
  std::optional<Placement> placement;
  std::set<Like> too_small;
  ForEachSet(job, workers, [&](const Workers& set) {
    if (!too_small.insert(LikeOf(set)).second) return false;
    for (const ShapeChoice& choice : shapes(set)) {
      const Reach reach = ReachOf(set, job, choice);
      if (!CanBeCut(reach)) continue;
      placement = Cutting(set, workers.data(), job, choice.shape, reach);
      return true;
    }
    return false;
  });
  return placement;
}

std::optional<Placement> PlaceNearest(const StageJob& job, const std::vector<StageWorker>& workers,
                                      ShapesOn shapes) {
  std::optional<Placement> nearest;
  double least = 0;
  ForEachSet(job, workers, [&](const Workers& set) {
    Placement placement = Cutting(set, workers.data(), job, shapes(set).back().shape, {});
    const size_t s = placement.tightest;
    const double share = static_cast<double>(placement.bytes[s]) /
                         static_cast<double>(std::max<int64_t>(1, set[s]->budget_bytes));
    if (!nearest || share < least) {
      least = share;
      nearest = std::move(placement);
    }
    return false;
  });
  return nearest;
}

std::string WorkersLackFor(int32_t stages) {
  return absl::StrCat("its base model is registered for ", stages, " stages, and no ", stages,
                      " workers of one numerics id and transport are connected");
}

}  // namespace lorad::planner
