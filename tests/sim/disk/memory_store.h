// A job store in memory, for simulations: what is in it survives a simulated crash.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "storage/job_store.h"

namespace lorad::sim {

class MemoryStore : public storage::JobStore {
 public:
  absl::Status Apply(const std::vector<storage::Mutation>& mutations) override;
  absl::StatusOr<std::optional<std::string>> GetRecord(std::string_view kind,
                                                       std::string_view key) override;
  absl::Status ScanRecords(
      std::string_view kind,
      const std::function<absl::Status(std::string_view, std::string_view)>& visit) override;
  absl::StatusOr<std::vector<storage::Entry>> ReadSeries(std::string_view kind,
                                                         std::string_view key, int64_t after,
                                                         int64_t limit) override;

 private:
  std::map<std::pair<std::string, std::string>, std::string> records_;
  std::map<std::tuple<std::string, std::string, int64_t>, std::string> series_;
};

}  // namespace lorad::sim
