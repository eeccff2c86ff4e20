// The driver's work outside of the core's thread: looking at rows. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/events/plan.h"
#include "server/core/events/records.pb.h"
#include "server/driver/clock.h"

namespace lorad::storage {
class Files;
}

namespace lorad::server {

struct SolvedPlan {
  StageWindows window;
  PackingReport packing;
  std::vector<UnitFailure> failures;  // units that the window is without
  std::vector<BatchLines> lines = {};
};

class Solver {
 public:
  virtual ~Solver() = default;
  // Ends soon, with CANCELLED, once `cancelled` is set.
  virtual absl::StatusOr<records::RowsSummary> CheckRows(const RowSource& source,
                                                         const std::atomic<bool>& cancelled) = 0;
  // What is at hand of the dataset of that path is let go; rows of it may be asked for all the
  // same.
  virtual void CloseRows(const std::string& dataset_path) = 0;
  // Asks `hurry` now and then: once it says true, what only makes the window better is left out.
  virtual absl::StatusOr<SolvedPlan> Plan(const PlanInput& input,
                                          const std::function<bool()>& hurry) = 0;
};

// The data feed over the datasets below `data_dir`. `files` and `clock` must outlive it.
std::unique_ptr<Solver> MakeFeedSolver(const std::string& data_dir, storage::Files& files,
                                       Clock& clock);

}  // namespace lorad::server
