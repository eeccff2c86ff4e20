#include "storage/errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace lorad::storage {

absl::Status Refuse(std::string_view reason, std::string_view message) {
  absl::Status status = absl::InvalidArgumentError(Absl(message));
  status.SetPayload(Absl(kReasonPayload), absl::Cord(Absl(reason)));
  return status;
}

absl::Status At(std::string_view where, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status out(status.code(), absl::StrCat(Absl(where), ": ", status.message()));
  status.ForEachPayload(
      [&out](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

}  // namespace lorad::storage
