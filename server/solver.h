// What the driver has done outside of the core's thread: looking at rows. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/core/plan.h"
#include "server/core/records.pb.h"

namespace lorad::storage {
class Files;
}

namespace lorad::server {

struct SolvedPlan {
  worker::v1::Window window;
  PackingReport packing;
};

class Solver {
 public:
  virtual ~Solver() = default;
  virtual absl::StatusOr<records::RowsSummary> CheckRows(const RowSource& source) = 0;
  // Asks `hurry` now and then: once it says true, what only makes the window better is left out.
  virtual absl::StatusOr<SolvedPlan> Plan(const PlanInput& input,
                                          const std::function<bool()>& hurry) = 0;
  // Checks of rows, under way or to come, end soon (CANCELLED).
  virtual void Cancel() {}
};

// The data feed over the datasets below `data_dir`.
std::unique_ptr<Solver> MakeFeedSolver(const std::string& data_dir, storage::Files& files);

}  // namespace lorad::server
