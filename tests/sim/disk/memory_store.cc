#include "tests/sim/disk/memory_store.h"

#include <limits>

namespace lorad::sim {

using storage::Mutation;

absl::Status MemoryStore::Apply(const std::vector<Mutation>& mutations) {
  using Action = Mutation::Action;
  constexpr int64_t kFirst = std::numeric_limits<int64_t>::min();
  for (const Mutation& m : mutations) {
    const auto series = [&](int64_t number) { return std::tuple{m.kind, m.key, number}; };
    switch (m.action) {
      case Action::kPutRecord:
        records_[{m.kind, m.key}] = m.value;
        break;
      case Action::kDeleteRecord:
        records_.erase({m.kind, m.key});
        break;
      case Action::kPutEntry:
        series_[series(m.number)] = m.value;
        break;
      case Action::kDeleteEntry:
        series_.erase(series(m.number));
        break;
      case Action::kDeleteSeries:
        series_.erase(series_.lower_bound(series(kFirst)),
                      series_.upper_bound(series(std::numeric_limits<int64_t>::max())));
        break;
      case Action::kTrimSeries:
        series_.erase(series_.lower_bound(series(kFirst)), series_.upper_bound(series(m.number)));
        break;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> MemoryStore::GetRecord(std::string_view kind,
                                                                  std::string_view key) {
  const auto found = records_.find({std::string(kind), std::string(key)});
  if (found == records_.end()) return std::optional<std::string>();
  return std::optional<std::string>(found->second);
}

absl::Status MemoryStore::ScanRecords(
    std::string_view kind,
    const std::function<absl::Status(std::string_view, std::string_view)>& visit) {
  for (auto record = records_.lower_bound({std::string(kind), ""});
       record != records_.end() && record->first.first == kind; ++record) {
    absl::Status status = visit(record->first.second, record->second);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<storage::Entry>> MemoryStore::ReadSeries(std::string_view kind,
                                                                    std::string_view key,
                                                                    int64_t after, int64_t limit) {
  std::vector<storage::Entry> entries;
  for (auto entry = series_.upper_bound({std::string(kind), std::string(key), after});
       entry != series_.end() && std::get<0>(entry->first) == kind &&
       std::get<1>(entry->first) == key && static_cast<int64_t>(entries.size()) < limit;
       ++entry) {
    entries.push_back({std::get<2>(entry->first), entry->second});
  }
  return entries;
}

}  // namespace lorad::sim
