#include "storage/files/errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace lorad::storage {

absl::Status WithReason(absl::StatusCode code, std::string_view reason, std::string_view message) {
  absl::Status status(code, Absl(message));
  status.SetPayload(Absl(kReasonPayload), absl::Cord(Absl(reason)));
  return status;
}

absl::Status Refuse(std::string_view reason, std::string_view message) {
  return WithReason(absl::StatusCode::kInvalidArgument, reason, message);
}

absl::Status At(std::string_view where, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status out(status.code(), absl::StrCat(Absl(where), ": ", status.message()));
  status.ForEachPayload(
      [&out](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 200;
  // Bytes above 127 stay: they are UTF-8 in everything that reaches a message, but for a cut at the
  // end.
  return absl::StrCat("\"", absl::Utf8SafeCEscape(Absl(text.substr(0, kShown))),
                      text.size() > kShown ? "...\"" : "\"");
}

}  // namespace lorad::storage
