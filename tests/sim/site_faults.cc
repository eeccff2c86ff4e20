// What goes wrong with a site's disk and with its model's directory.
#include <filesystem>
#include <optional>
#include <string>

#include "absl/strings/str_replace.h"
#include "tests/sim/site.h"

namespace lorad::sim {

void Site::SetFaults(const FaultRates& rates) {
  faults_ = rates.no_space + rates.write_error + rates.sync_error + rates.read_error > 0;
  disk_was_ill_ = disk_was_ill_ || faults_;
  disk_.set_fault(faults_ ? RandomFaults(rates, random()()) : nullptr);
}

void Site::SetRoom(uint64_t bytes) {
  disk_was_ill_ = true;
  disk_.set_capacity_bytes(bytes == SimDisk::kUnbounded ? bytes : disk_.used_bytes() + bytes);
}

void Site::SetReadOnly(bool read_only) {
  disk_was_ill_ = true;
  disk_.set_read_only(read_only);
}

void Site::SetFileLimit(uint64_t bytes) {
  disk_was_ill_ = true;
  disk_.set_file_bytes_max(bytes);
}

void Site::Hide(const std::string& path) {
  disk_was_ill_ = true;
  disk_.Veil(storage::JoinPath("/data", path), std::nullopt);
}

void Site::Halve(const std::string& path) {
  const absl::StatusOr<std::string> bytes =
      files_.ReadAll(storage::JoinPath("/data", path), 1 << 20);
  if (!bytes.ok()) return;  // it has gone meanwhile
  disk_was_ill_ = true;
  disk_.Veil(storage::JoinPath("/data", path), bytes->substr(0, bytes->size() / 2));
}

void Site::SpoilModel(ModelFault fault) {
  disk_was_ill_ = true;
  if (fault == ModelFault::kGone) {
    std::filesystem::rename(house_.model(), house_.model() + ".away");
  } else {
    const bool half = fault == ModelFault::kHalf;
    house_.directory.Write("model/config.json",
                           half ? config_json_.substr(0, config_json_.size() / 2)
                                : absl::StrReplaceAll(config_json_, {{"1e-06", "1e-05"}}));
  }
}

void Site::Unveil() {
  disk_.Unveil();
  const std::string away = house_.model() + ".away";
  if (std::filesystem::exists(away)) {
    std::filesystem::remove_all(house_.model());
    std::filesystem::rename(away, house_.model());
  }
  house_.directory.Write("model/config.json", config_json_);
}

}  // namespace lorad::sim
