// What the driver has done outside of the core's thread: looking at rows. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/core/plan.h"
#include "server/core/records.pb.h"

namespace lorad::storage {
class Files;
}

namespace lorad::server {

class Solver {
 public:
  virtual ~Solver() = default;
  virtual absl::StatusOr<records::RowsSummary> CheckRows(const RowSource& source) = 0;
  virtual absl::StatusOr<worker::v1::Window> Plan(const PlanInput& input) = 0;
  // Checks of rows, under way or to come, end soon (CANCELLED).
  virtual void Cancel() {}
};

// The data feed over the datasets below `data_dir`.
std::unique_ptr<Solver> MakeFeedSolver(const std::string& data_dir, storage::Files& files);

}  // namespace lorad::server
