#include "planner/schedule/improve.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "planner/cost/move.h"
#include "planner/schedule/shapes.h"
#include "planner/schedule/spots.h"

namespace lorad::planner {
namespace {

// Sums of ends that differ by less, of their size, are equal.
constexpr double kTie = 1e-9;
// A running job is weighed against so many groups: those where one like it would have the shortest
// rounds.
constexpr size_t kDestinations = 8;

// Splits of so many jobs at most are kicked, so often.
constexpr size_t kKickedMax = 64;
constexpr int kKicks = 160;

// Numbers that are drawn the same on every machine (Knuth's MMIX generator).
class Draw {
 public:
  size_t Below(size_t bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % bound;
  }

 private:
  uint64_t state_ = 1;
};

// One base model's search.
class Search {
 public:
  Search(Round& round, Spots& spots, const int64_t& work)
      : round_(round), spots_(spots), work_(work) {}

  // To a split that no move and no swap betters, and from there on from some that are kicked away
  // from the best so far.
  void ImproveFree() {
    const size_t free = Free();
    if (free == 0) return;
    Descend();
    if (free < 2 || free > kKickedMax) return;
    Draw draw;
    double least_s = Total();
    Spots best = spots_;
    for (int kick = 0; kick < kKicks && work_ > 0; ++kick) {
      for (size_t i = 0; i < spots_.items().size(); ++i) {
        if (!item(i).runs() && draw.Below(3) <= static_cast<size_t>(kick % 3))
          Kick(i, draw.Below(spots_.size()));
      }
      Descend();
      const double sum_s = Total();
      if (sum_s < least_s * (1 - kTie)) {
        least_s = sum_s;
        best = spots_;
      } else {
        spots_ = best;
      }
    }
    spots_ = best;
  }

  void Descend() {
    for (bool better = true; better && work_ > 0;) {
      better = false;
      for (size_t i = 0; i < spots_.items().size() && work_ > 0; ++i) {
        if (!spots_.items()[i].runs()) better |= MoveFree(i);
      }
      for (size_t i = 0; i < spots_.items().size() && work_ > 0; ++i) {
        if (!spots_.items()[i].runs()) better |= SwapFree(i);
      }
    }
  }

  // Until nothing more pays.
  void ImproveRunning(std::vector<std::pair<size_t, std::string>>* moved) {
    while (work_ > 0) {
      std::optional<Option> best = BestMove();
      if (!best) best = BestSwap();
      if (!best) return;
      const size_t from = spots_.items()[best->item].at;
      if (best->other) {
        const size_t other_from = spots_.items()[*best->other].at;
        spots_.Move(*best->other, from, best->other_shape);
        moved->emplace_back(*best->other, best->why);
        spots_.Move(best->item, other_from, best->shape);
      } else {
        spots_.Move(best->item, best->to, best->shape);
      }
      moved->emplace_back(best->item, best->why);
    }
  }

 private:
  struct Option {
    size_t item = 0;
    size_t to = 0;
    GroupShape shape;
    std::optional<size_t> other;  // that goes to where the item is
    GroupShape other_shape;
    double gain_s = 0;
    std::string why;
  };

  const Item& item(size_t i) const { return spots_.items()[i]; }

  size_t Free() const {
    return static_cast<size_t>(
        std::ranges::count_if(spots_.items(), [](const Item& job) { return !job.runs(); }));
  }

  double Total() const {
    double total_s = 0;
    for (size_t spot = 0; spot < spots_.size(); ++spot) total_s += spots_.Sum(spot);
    return total_s;
  }

  void Kick(size_t i, size_t to) {
    if (to == item(i).at || !IsOpen(to) || spots_[to].vacant) return;
    if (const auto shape = spots_.ShapeIf(to, item(i), nullptr)) spots_.Move(i, to, *shape);
  }

  // An idle worker just like one before it that is free is not worth a look.
  bool IsOpen(size_t spot) const {
    const Spot& place = spots_[spot];
    return place.accepts &&
           !(place.empty() && place.twin != Item::kNowhere && spots_[place.twin].empty());
  }

  // Free ones: any gain is one.
  bool MoveFree(size_t i) {
    const Item& job = item(i);
    const size_t from = job.at;
    const double now_s = spots_.Sum(from);
    const double gained_s = now_s - spots_.SumIf(from, nullptr, &job);
    std::optional<size_t> best;
    double best_s = kTie * now_s;
    GroupShape shape;
    for (size_t to = 0; to < spots_.size(); ++to) {
      if (to == from || !IsOpen(to) || spots_[to].vacant) continue;
      double gain_s = gained_s - (spots_.SumIf(to, &job, nullptr) - spots_.Sum(to));
      if (gain_s <= best_s) continue;
      const auto fits = spots_.ShapeIf(to, job, nullptr);
      if (!fits) continue;
      gain_s -= spots_.Shortened(to, &job, nullptr, *fits);
      if (gain_s <= best_s) continue;
      best = to;
      best_s = gain_s;
      shape = *fits;
    }
    if (best) spots_.Move(i, *best, shape);
    return best.has_value();
  }

  bool SwapFree(size_t i) {
    bool better = false;
    for (size_t j = i + 1; j < spots_.items().size() && work_ > 0; ++j) {
      if (item(j).runs() || item(j).at == item(i).at || item(j).work == item(i).work) continue;
      const auto swap = Swap(i, j);
      if (!swap) continue;
      const size_t from = item(i).at, to = item(j).at;
      spots_.Move(j, from, swap->other_shape);
      spots_.Move(i, to, swap->shape);
      better = true;
    }
    return better;
  }

  // None where it would not fit, or gains nothing.
  std::optional<Option> Swap(size_t i, size_t j) {
    const Item& a = item(i);
    const Item& b = item(j);
    if (!spots_[a.at].accepts || !spots_[b.at].accepts) return std::nullopt;
    const double before_s = spots_.Sum(a.at) + spots_.Sum(b.at);
    const double after_s = spots_.SumIf(a.at, &b, &a) + spots_.SumIf(b.at, &a, &b);
    if (before_s - after_s <= kTie * before_s) return std::nullopt;
    // A running job has its room until it has left.
    const auto here = spots_.ShapeIf(a.at, b, a.runs() ? nullptr : &a);
    const auto there = spots_.ShapeIf(b.at, a, b.runs() ? nullptr : &b);
    if (!here || !there) return std::nullopt;
    const double shortened_s =
        spots_.Shortened(a.at, &b, &a, *here) + spots_.Shortened(b.at, &a, &b, *there);
    const double gain_s = before_s - after_s - shortened_s;
    if (gain_s <= kTie * before_s) return std::nullopt;
    return Option{i, b.at, *there, j, *here, gain_s, ""};
  }

  bool MayMove(size_t i) const { return item(i).runs() && !item(i).moved; }

  // The spots that may take one of `from`: the first where its mean job would have the shortest
  // rounds. Where a job is to come, and not to change places with one, those with room for any.
  std::vector<size_t> Destinations(size_t from, bool comes) {
    const Crew& crew = spots_[from].crew;
    const Workload mean = 1 / static_cast<double>(std::max<size_t>(1, crew.size())) * crew.round();
    std::vector<std::pair<double, size_t>> order;
    for (size_t to = 0; to < spots_.size(); ++to) {
      const Spot& spot = spots_[to];
      if (to == from || !IsOpen(to) || !spot.known) continue;
      const int64_t capacity = spot.shape.capacity_tokens;
      Workload round = spot.crew.round();
      round += mean;
      // An idle one has no microbatches yet.
      const TimeCoefficients& times = spot.group->pace.times;
      order.emplace_back(capacity > 0 ? RoundMs(times, round, capacity) : times.Ms(round, 1), to);
    }
    std::ranges::sort(order);
    std::vector<size_t> destinations;
    for (const auto& [round_ms, to] : order) {
      if (destinations.size() == kDestinations) break;
      if (!comes || HasRoomForOneOf(to, from)) destinations.push_back(to);
    }
    return destinations;
  }

  bool HasRoomForOneOf(size_t to, size_t from) {
    return std::ranges::any_of(spots_[from].items, [&](size_t i) {
      return MayMove(i) && work_ > 0 && spots_.ShapeIf(to, item(i), nullptr).has_value();
    });
  }

  // The spots of which a job may go, the busiest first: there it is that the work may end before all
  // were looked at.
  std::vector<size_t> Sources() const {
    std::vector<std::pair<double, size_t>> order;
    for (size_t from = 0; from < spots_.size(); ++from) {
      const Spot& spot = spots_[from];
      if (std::ranges::none_of(spot.items, [&](size_t i) { return MayMove(i); })) continue;
      order.emplace_back(
          -RoundMs(spot.group->pace.times, spot.crew.round(), spot.shape.capacity_tokens), from);
    }
    std::ranges::sort(order);
    std::vector<size_t> sources;
    for (const auto& [round_ms, from] : order) sources.push_back(from);
    return sources;
  }

  // The move of a running job that gains the most of those that pay.
  std::optional<Option> BestMove() {
    std::optional<Option> best;
    for (const size_t from : Sources()) {
      const double from_s = spots_.Sum(from);
      for (const size_t to : Destinations(from, true)) {
        const double to_s = spots_.Sum(to);
        for (const size_t i : spots_[from].items) {
          if (!MayMove(i) || work_ <= 0) continue;
          const double after_s =
              spots_.SumIf(from, nullptr, &item(i)) + spots_.SumIf(to, &item(i), nullptr);
          Option option{i, to, {}, std::nullopt, {}, 0, ""};
          if (!Pays(from_s + to_s, after_s, 1, spots_[to].group->delay_s, option) ||
              (best && option.gain_s <= best->gain_s)) {
            continue;
          }
          const auto shape = spots_.ShapeIf(to, item(i), nullptr);
          if (!shape) continue;
          const double shortened_s = spots_.Shortened(to, &item(i), nullptr, *shape);
          if (shortened_s > 0 &&
              !Pays(from_s + to_s, after_s + shortened_s, 1, spots_[to].group->delay_s, option)) {
            continue;
          }
          if (best && option.gain_s <= best->gain_s) continue;
          option.shape = *shape;
          best = option;
        }
      }
    }
    return best;
  }

  std::optional<Option> BestSwap() {
    std::optional<Option> best;
    std::set<std::pair<size_t, size_t>> seen;  // of two spots each may be the other's destination
    for (size_t from = 0; from < spots_.size(); ++from) {
      if (!spots_[from].known || !spots_[from].accepts) continue;
      for (const size_t to : Destinations(from, false)) {
        if (!seen.emplace(std::min(from, to), std::max(from, to)).second) continue;
        const double before_s = spots_.Sum(from) + spots_.Sum(to);
        for (const size_t i : spots_[from].items) {
          for (const size_t j : spots_[to].items) {
            if (work_ <= 0) return best;
            if (!MayMove(i) || !MayMove(j) || item(i).work == item(j).work) continue;
            auto swap = Swap(i, j);
            if (!swap || !Pays(before_s, before_s - swap->gain_s, 2, 0, *swap)) continue;
            if (!best || swap->gain_s > best->gain_s) best = std::move(swap);
          }
        }
      }
    }
    return best;
  }

  // Sets gain_s and why.
  bool Pays(double before_s, double after_s, int jobs, double delay_s, Option& option) const {
    MoveQuestion question;
    question.current_step_s = before_s;
    question.new_step_s = after_s - delay_s;
    question.remaining_steps = 1;
    question.checkpoint_s = jobs * round_.view.move_s;
    question.reload_s = delay_s;
    question.least_share = round_.view.policy.least_share;
    const double cost_s = question.checkpoint_s + question.reload_s;
    // Before a text is made of it.
    if (question.new_step_s <= 0 || before_s - question.new_step_s <= cost_s) return false;
    const auto decision = DecideMove(question);
    if (!decision.ok() || !decision->move) return false;
    option.gain_s = decision->gain_s;
    option.why = absl::StrFormat(
        "the jobs of both groups end %.1f s earlier in the sum, and moving costs %.1f s",
        decision->gain_s + cost_s, cost_s);
    return true;
  }

  Round& round_;
  Spots& spots_;
  const int64_t& work_;
};

bool IsEmpty(const GroupState& group) {
  return group.settled() && group.jobs == 0 && group.stages.empty() && group.kept_for == nullptr;
}

// It has no jobs, and was formed for shorter sequences or lower ranks than some running job's of its
// base model: not all of those could come.
bool IsTooSmall(const Round& round, const GroupState& group) {
  if (!IsEmpty(group)) return false;
  return std::ranges::any_of(round.groups, [&](const GroupState& other) {
    return other.base == group.base && other.stages.empty() &&
           std::ranges::any_of(other.members, [&](const MemberState& member) {
             return member.trains && !Covers(group.shape, round.sizes.of(member.job_class));
           });
  });
}

// As OnIdle, on each worker whose group has no jobs, and is of a base model that nobody asks for or
// too small; by the indexes of those groups.
std::vector<std::pair<size_t, GroupState>> OnVacant(Round& round, Lookahead& lookahead,
                                                    const GroupState& like) {
  std::vector<std::pair<size_t, GroupState>> groups;
  for (size_t g = 0; g < round.groups.size(); ++g) {
    const GroupState& group = round.groups[g];
    const bool makes_way = group.base == like.base ? IsTooSmall(round, group)
                                                   : IsEmpty(group) && !lookahead.Asked(group);
    if (!makes_way) continue;
    const auto worker = std::ranges::find(round.view.workers, group.worker, &WorkerView::name);
    if (worker == round.view.workers.end()) continue;
    groups.emplace_back(g, StateOf({&*worker, round.KindOf(*worker)}, like.base_model, *like.model,
                                   round.sizes, round.paces));
  }
  return groups;
}

std::vector<GroupState*> Pointers(std::vector<std::pair<size_t, GroupState>>& groups) {
  std::vector<GroupState*> pointers;
  for (auto& [index, group] : groups) pointers.push_back(&group);
  return pointers;
}

void ImproveBase(Round& round, Lookahead& lookahead, size_t base, int64_t& work,
                 Improvement* improvement) {
  std::vector<GroupState*> groups;
  std::vector<size_t> index;  // of the spots, in round.groups
  for (size_t g = 0; g < round.groups.size(); ++g) {
    // Jobs of several workers stay where they are placed.
    const GroupState& group = round.groups[g];
    if (group.base != base || !group.open || !group.stages.empty()) continue;
    if (IsTooSmall(round, group)) continue;
    groups.push_back(&round.groups[g]);
    index.push_back(g);
  }
  if (groups.empty()) return;
  std::vector<std::pair<size_t, GroupState>> on_idle = OnIdle(round, *groups[0]);
  std::vector<std::pair<size_t, GroupState>> on_vacant = OnVacant(round, lookahead, *groups[0]);
  if (groups.size() + on_idle.size() + on_vacant.size() < 2) return;
  Spots spots(round, groups, Pointers(on_idle), Pointers(on_vacant), &work);
  if (spots.items().empty()) return;
  Search search(round, spots, work);
  search.ImproveFree();
  std::vector<std::pair<size_t, std::string>> moved;
  search.ImproveRunning(&moved);
  spots.WriteBack();
  for (auto& [i, group] : on_idle) {
    index.push_back(round.groups.size());
    if (group.jobs == 0) continue;
    round.idle[i].taken = true;
    round.groups.push_back(std::move(group));
  }
  const size_t first_vacant = spots.size() - on_vacant.size();
  const size_t vacated = improvement->vacated.size();
  for (size_t i = 0; i < on_vacant.size(); ++i) {
    if (spots[first_vacant + i].empty()) continue;
    round.groups[on_vacant[i].first].open = false;
    improvement->vacated.push_back(on_vacant[i].first);
  }
  if (improvement->vacated.size() > vacated) return;
  for (auto& [i, why] : moved) {
    const Item& item = spots.items()[i];
    const size_t from = index[item.home], to = index[item.at];
    const double slowness = round.groups[from].pace.slowness;
    if (slowness > round.groups[to].pace.slowness) {
      absl::StrAppendFormat(&why, "; its worker has %.2g x the speed of its kind", 1 / slowness);
    }
    improvement->replacements.push_back({from, item.member, to, std::move(why)});
  }
}

}  // namespace

Improvement Improve(Round& round, Lookahead& lookahead) {
  std::vector<size_t> bases;
  for (const GroupState& group : round.groups) bases.push_back(group.base);
  std::ranges::sort(bases);
  bases.erase(std::unique(bases.begin(), bases.end()), bases.end());
  Improvement improvement;
  // What one has not used is for those behind it.
  int64_t work = kWork;
  for (size_t i = 0; i < bases.size(); ++i) {
    const int64_t share = work / static_cast<int64_t>(bases.size() - i);
    int64_t left = share;
    ImproveBase(round, lookahead, bases[i], left, &improvement);
    work -= share - left;
  }
  return improvement;
}

}  // namespace lorad::planner
