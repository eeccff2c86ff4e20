// The coordinator's heart: all state that is shared, and every decision about it, in one
// single-threaded function Apply(event) -> effects. No clock, file, thread or network: the same
// code runs under the driver (driver.h) and under the seeded simulator (tests/sim). See
// docs/coordinator.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/events/effects.h"
#include "server/core/events/events.h"
#include "server/core/events/kept.h"
#include "server/core/events/options.h"
#include "server/core/events/stored_state.h"

namespace lorad::server {

class Core {
 public:
  // Takes up the stored state. A job whose group may come back stays in it
  // (docs/adr/0028-groups-are-found-again.md); every other one that had a place waits in the queue
  // again, to go on from its newest checkpoint. The effects are carried out before any event is
  // applied. DATA_LOSS where a record cannot be read.
  static absl::StatusOr<std::unique_ptr<Core>> Create(const CoreOptions& options,
                                                      StoredState stored, Moment now,
                                                      std::vector<Effect>* effects);
  ~Core();

  std::vector<Effect> Apply(const Event& event);

  // Answers what is of this process alone, and changes nothing: the cluster, workers, and estimates
  // of jobs whose rows are checked. None: that takes an event. `unwritable`: why the store cannot
  // be written, for which all that it shows waits.
  std::optional<ReplyValue> Look(const Request& request, const absl::Status& unwritable);

  CoreSizes SizesNow() const;

  // OK where all that is kept agrees with itself, else INTERNAL and what does not: for tests,
  // between two events. It takes time in proportion to the jobs.
  absl::Status CheckInvariants() const;

  // Paths below the data directory that records name (files that are not among them are
  // left-overs).
  std::vector<std::string> PathsInUse() const;
  // Those of ended jobs' checkpoints: nothing is written into them any more.
  std::vector<std::string> SettledFolders() const;

 private:
  class State;
  explicit Core(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lorad::server
