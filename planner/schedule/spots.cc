#include "planner/schedule/spots.h"

#include <algorithm>

#include "planner/schedule/improve.h"

namespace lorad::planner {
namespace {

bool AreTwins(const GroupState& a, const GroupState& b) {
  return a.worker_kind == b.worker_kind && a.device_name == b.device_name &&
         a.delay_s == b.delay_s && a.pace.slowness == b.pace.slowness;
}

}  // namespace

Spots::Spots(Round& round, const std::vector<GroupState*>& groups,
             const std::vector<GroupState*>& idle, const std::vector<GroupState*>& vacant,
             int64_t* work)
    : round_(&round), work_(work) {
  const auto add = [&](GroupState* group) -> Spot& {
    Spot& spot = spots_.emplace_back();
    spot.group = group;
    spot.accepts = group->open && round.Ahead(*group) == nullptr;
    spot.known = IsKnown(*group);
    spot.crew = group->crew;
    spot.shape = group->shape;
    spot.bytes = group->bytes;
    spot.slot_bytes = group->slot_bytes;
    spot.jobs = group->jobs;
    return spot;
  };
  for (GroupState* group : groups) {
    add(group);
    AddItems(spots_.size() - 1);
  }
  const size_t first_idle = spots_.size();
  const auto add_empty = [&](GroupState* group) -> Spot& {
    size_t twin = Item::kNowhere;
    for (size_t i = first_idle; i < spots_.size(); ++i) {
      if (AreTwins(*spots_[i].group, *group)) twin = i;
    }
    Spot& spot = add(group);
    spot.twin = twin;
    return spot;
  };
  for (GroupState* group : idle) add_empty(group);
  for (GroupState* group : vacant) add_empty(group).vacant = true;
  for (size_t i = 0; i < spots_.size(); ++i) spots_[i].sum_s = SumIf(i, nullptr, nullptr);
}

void Spots::AddItems(size_t spot) {
  const GroupState& group = *spots_[spot].group;
  const auto add = [&](Item item) {
    item.at = spot;
    spots_[spot].items.push_back(items_.size());
    items_.push_back(item);
  };
  for (const Waiter* waiter : group.joined) {
    const QueuedJob& job = *waiter->job;
    if (job.company_max > 0 || job.alone) continue;
    add({.work = waiter->work,
         .job_class = waiter->job_class,
         .resumes = job.resumes,
         .waiter = waiter});
  }
  if (!round_->view.policy.rebalance || !group.settled() || !spots_[spot].known) return;
  for (size_t m = 0; m < group.members.size(); ++m) {
    const MemberState& member = group.members[m];
    const RunningJob& running = *member.running;
    if (!member.trains || running.coming || running.stays || running.company_max > 0 ||
        running.alone || running.moved_s < round_->view.policy.minimum_run_s) {
      continue;
    }
    add({.work = member.work, .job_class = member.job_class, .member = m, .home = spot});
  }
}

int64_t Spots::CapacityIf(size_t index, const Item* comes) const {
  const Spot& spot = spots_[index];
  if (comes == nullptr || !spot.empty() || !spot.group->fresh()) return spot.shape.capacity_tokens;
  return round_->sizes.AloneOn(comes->job_class, spot.group->worker_kind).shape.capacity_tokens;
}

double Spots::Shortened(size_t index, const Item* comes, const Item* leaves,
                        const GroupShape& shape) const {
  if (shape.capacity_tokens >= CapacityIf(index, comes)) return 0;
  return SumAt(index, comes, leaves, shape.capacity_tokens) - SumIf(index, comes, leaves);
}

double Spots::SumAt(size_t index, const Item* comes, const Item* leaves, int64_t capacity) const {
  const Spot& spot = spots_[index];
  const GroupState& group = *spot.group;
  size_t jobs = spot.crew.size();
  *work_ -= static_cast<int64_t>(jobs) + 1;
  std::optional<size_t> out;
  if (leaves != nullptr) {
    out = spot.crew.Find(leaves->work);
    --jobs;
  }
  const JobWork* in = comes != nullptr ? &comes->work : nullptr;
  jobs += in != nullptr;
  if (jobs == 0) return 0;
  return spot.crew.SumOfEnds(group.pace.times, capacity, in, out) +
         group.delay_s * static_cast<double>(jobs);
}

// Suspects, who are no items, then those that are placed in this round, in queue order.
std::vector<ShapeFor> Spots::JobsOf(const Spot& spot, const Item* without) const {
  std::vector<ShapeFor> jobs;
  for (const Waiter* waiter : spot.group->joined) {
    if (waiter->job->company_max > 0 || waiter->job->alone) {
      jobs.push_back({waiter->job_class, waiter->job->resumes});
    }
  }
  std::vector<size_t> order = spot.items;
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const Item& x = items_[a];
    const Item& y = items_[b];
    if (x.runs() != y.runs()) return y.runs();
    return x.runs() ? a < b : x.waiter < y.waiter;
  });
  for (const size_t item : order) {
    if (&items_[item] != without) jobs.push_back({items_[item].job_class, items_[item].resumes});
  }
  return jobs;
}

std::optional<GroupShape> Spots::ShapeIf(size_t index, const Item& comes,
                                         const Item* leaves) const {
  const Spot& spot = spots_[index];
  const GroupState& group = *spot.group;
  --*work_;
  const size_t staying = spot.jobs - (leaves != nullptr ? 1 : 0);
  if (staying >= static_cast<size_t>(spot.shape.slots_max)) return std::nullopt;
  if (comes.waiter != nullptr &&
      (!Mix(group, *comes.waiter->job) ||
       !round_->Helps(group, spot.shape, *comes.waiter->job, comes.work))) {
    return std::nullopt;
  }
  if (comes.runs() && group.alone) return std::nullopt;
  if (!group.fresh()) {
    if (!Covers(spot.shape, round_->sizes.of(comes.job_class)) ||
        round_->sizes.Avoids(comes.job_class, group.worker_kind)) {
      return std::nullopt;
    }
    StageBytes bytes =
        spot.bytes + spot.slot_bytes + round_->sizes.SlotBytes(comes.job_class, group.worker_kind);
    if (leaves != nullptr) {
      bytes -= round_->sizes.SlotBytes(leaves->job_class, group.worker_kind);
    }
    if (!round_->sizes.Fit(bytes, group.worker_kind)) return std::nullopt;
    return spot.shape;
  }
  std::vector<ShapeFor> jobs = JobsOf(spot, leaves);
  jobs.push_back({comes.job_class, comes.resumes});
  *work_ -= kWorkOfShape * static_cast<int64_t>(jobs.size());
  std::optional<GroupShape> shape = ShapeOf(round_->sizes, group, jobs);
  const bool shorter = shape && shape->capacity_tokens < spot.shape.capacity_tokens;
  if (shorter && !group.pace.known) return std::nullopt;
  return shape;
}

void Spots::Leave(size_t index) {
  Item& item = items_[index];
  Spot& spot = spots_[item.at];
  std::erase(spot.items, index);
  spot.crew.Remove(item.work);
  if (item.runs()) return;
  spot.slot_bytes -= round_->sizes.SlotBytes(item.job_class, spot.group->worker_kind);
  --spot.jobs;
  if (!spot.group->fresh()) return;
  SetShape(spot,
           spot.empty()
               ? EmptyShape(spot.shape.device)
               : ShapeOf(round_->sizes, *spot.group, JobsOf(spot, nullptr)).value_or(spot.shape));
}

void Spots::Move(size_t index, size_t to, const GroupShape& shape) {
  Leave(index);
  const size_t from = items_[index].at;
  Item& item = items_[index];
  Spot& spot = spots_[to];
  item.at = to;
  item.moved = true;
  spot.items.push_back(index);
  spot.crew.Add(item.work);
  spot.slot_bytes += round_->sizes.SlotBytes(item.job_class, spot.group->worker_kind);
  ++spot.jobs;
  if (spot.group->fresh()) SetShape(spot, shape);
  spots_[from].sum_s = SumIf(from, nullptr, nullptr);
  spot.sum_s = SumIf(to, nullptr, nullptr);
}

void Spots::SetShape(Spot& spot, const GroupShape& shape) {
  spot.shape = shape;
  spot.bytes = spot.empty() ? StageBytes()
                            : round_->sizes.GroupBytes(spot.group->base, *spot.group->model, shape,
                                                       spot.group->worker_kind);
}

void Spots::WriteBack() {
  for (Spot& spot : spots_) {
    GroupState& group = *spot.group;
    std::erase_if(group.joined, [](const Waiter* waiter) {
      return waiter->job->company_max == 0 && !waiter->job->alone;
    });
    for (const size_t item : spot.items) {
      if (!items_[item].runs()) group.joined.push_back(items_[item].waiter);
    }
    std::ranges::sort(group.joined);
    group.crew = spot.crew;
    group.shape = spot.shape;
    group.bytes = spot.bytes;
    group.slot_bytes = spot.slot_bytes;
    group.jobs = spot.jobs;
  }
}

}  // namespace lorad::planner
