// The places of one base model's jobs during the local search (improve.h): its groups, and one on
// every idle worker that it might have. Within the planner only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "planner/schedule/shapes.h"
#include "planner/schedule/state.h"

namespace lorad::planner {

// A job that may have another place.
struct Item {
  static constexpr size_t kNowhere = std::numeric_limits<size_t>::max();

  JobWork work;
  size_t job_class = 0;
  bool resumes = false;
  const Waiter* waiter = nullptr;  // placed in this round, or else
  size_t member = 0;               // it runs in the group `home`
  size_t home = kNowhere;          // a spot
  size_t at = 0;                   // likewise
  bool moved = false;              // a running one, in this round

  bool runs() const { return waiter == nullptr; }
};

// A group as it would be.
struct Spot {
  GroupState* group = nullptr;
  bool accepts = false;          // newcomers
  bool known = false;            // all its times are, and its jobs' steps
  size_t twin = Item::kNowhere;  // an idle worker before it that is just like it
  bool vacant = false;           // on its worker is a group without jobs, for running jobs alone
  // These change.
  Crew crew;
  GroupShape shape;
  StageBytes bytes;       // without slots
  StageBytes slot_bytes;  // those of jobs that move away too: they leave later
  size_t jobs = 0;        // likewise
  std::vector<size_t> items;
  double sum_s = 0;  // of its jobs' ends

  bool empty() const { return jobs == 0; }
};

class Spots {
 public:
  // `idle` are groups without jobs on idle workers, `vacant` such on workers that have another
  // group without jobs. What is asked is taken off `work` (improve.h).
  Spots(Round& round, const std::vector<GroupState*>& groups, const std::vector<GroupState*>& idle,
        const std::vector<GroupState*>& vacant, int64_t* work);

  size_t size() const { return spots_.size(); }
  const Spot& operator[](size_t spot) const { return spots_[spot]; }
  const std::vector<Item>& items() const { return items_; }

  // The sums of ends in seconds: of a spot, and if one of its items, or another's, had left or
  // come; in the shape that it has now.
  double Sum(size_t spot) const { return spots_[spot].sum_s; }
  double SumIf(size_t spot, const Item* comes, const Item* leaves) const {
    return SumAt(spot, comes, leaves, CapacityIf(spot, comes));
  }
  // By how much more the sum of ends rises where `shape` has shorter microbatches than now.
  double Shortened(size_t spot, const Item* comes, const Item* leaves,
                   const GroupShape& shape) const;

  // The shape in which the spot holds the item as well, `leaves` (of this round) not any more; none
  // where it does not, or would have shorter microbatches and it is not known what these cost.
  std::optional<GroupShape> ShapeIf(size_t spot, const Item& comes, const Item* leaves) const;

  void Move(size_t item, size_t to, const GroupShape& shape);

  // Into the groups of the round: who joins them, and their shapes.
  void WriteBack();

 private:
  void AddItems(size_t spot);
  int64_t CapacityIf(size_t spot, const Item* comes) const;
  double SumAt(size_t spot, const Item* comes, const Item* leaves, int64_t capacity) const;
  std::vector<ShapeFor> JobsOf(const Spot& spot, const Item* without) const;
  void Leave(size_t item);
  void SetShape(Spot& spot, const GroupShape& shape);

  Round* round_;
  int64_t* work_;
  std::vector<Spot> spots_;
  std::vector<Item> items_;
};

}  // namespace lorad::planner
