// Turn: the changes that one event makes, and the moment at which it makes them. The core's tables
// (Catalog, JobTable, GroupTable, Cluster and theirs) and Core::State, which conducts them, all
// write to the one Turn that they are given; it knows none of them.
//
// Holds: the time by both clocks, the room on the disk, the numbers that are given out, and of the
// event that is being applied the mutations, the effects and whether the queue is to be looked at.
//
// Invariants: time never goes back; a number is given out once; between two events nothing of the
// last one is left, but for the wish to look at the queue where more follow (events.h). Threads:
// the core's one. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/core/events/effects.h"
#include "server/core/events/moment.h"

namespace lorad::server {

// The timers that TimerFired names.
inline constexpr uint64_t kTick = 1;
inline constexpr uint64_t kRestEnds = 2;
inline constexpr uint64_t kPostponedEnds = 3;
inline constexpr uint64_t kShardsWait = 4;
inline constexpr uint64_t kEstimateEnds = 5;
inline constexpr uint64_t kForecastDue = 6;
inline constexpr uint64_t kReturnEnds = 7;
inline constexpr uint64_t kGenerationsUnread = 8;
inline constexpr uint64_t kCancelSaved = 9;
inline constexpr uint64_t kDropAgain = 10;

class Turn {
 public:
  // The coordinator's start on a store that had so many before.
  void Start(Moment now, int64_t starts_before);
  void Begin(Moment now);

  // ---- the world, as the event finds it ----
  int64_t now_us() const { return now_us_; }    // Moment::steady_us
  int64_t wall_us() const { return wall_us_; }  // stamps, and an upper bound of ages
  int64_t start_wall_us() const { return start_wall_us_; }
  int64_t run_us() const { return now_us_ - start_us_; }
  // The wall's clock as it was at the start, and what has gone by since then: ages are not measured
  // by a clock that jumps.
  int64_t SteadyWallUs() const { return start_wall_us_ + run_us(); }
  void Stamp(google::protobuf::Timestamp* time) const { StampWall(wall_us_, time); }
  static void StampWall(int64_t wall_us, google::protobuf::Timestamp* time);
  int64_t starts() const { return starts_; }  // of the coordinator on this store, this one included
  // On the disk: OK, or the answer to those who ask for more.
  const absl::Status& room() const { return room_; }
  void SetRoom(absl::Status room) { room_ = std::move(room); }

  // ---- what it changes ----
  void Put(storage::Mutation mutation) { mutations_.push_back(std::move(mutation)); }
  bool puts() const { return !mutations_.empty(); }
  void Do(Effect effect) { effects_.push_back(std::move(effect)); }
  void Answer(uint64_t request, ReplyValue value);
  // REQUIRES: an error.
  void Fail(uint64_t request, absl::Status status);
  // For the log.
  void Info(std::string message);
  void Warn(std::string message);
  // The queue, or what there is to place its jobs on, has changed.
  void WantSchedule() { schedule_ = true; }
  bool schedule_wanted() const { return schedule_; }
  bool TakeScheduleWanted() { return std::exchange(schedule_, false); }
  // For a plan, a move, a commit or a look.
  uint64_t NewNumber() { return next_number_++; }

  // All that was put in one Persist before all that is to be done.
  std::vector<Effect> End();

  // OK where nothing of an event is left; else INTERNAL. To be asked where no more follow.
  absl::Status CheckInvariants() const;

 private:
  int64_t now_us_ = 0;
  int64_t wall_us_ = 0;
  int64_t start_us_ = 0;
  int64_t start_wall_us_ = 0;
  int64_t starts_ = 1;
  absl::Status room_;
  uint64_t next_number_ = 1;

  std::vector<storage::Mutation> mutations_;
  std::vector<Effect> effects_;
  bool schedule_ = false;
};

}  // namespace lorad::server
