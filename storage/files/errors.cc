#include "storage/files/errors.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace lorad::storage {
namespace {

// Characters to insert, to take out or to change.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
    }
  }
  return row[b.size()];
}

}  // namespace

absl::Status WithReason(absl::StatusCode code, std::string_view reason, std::string_view message) {
  absl::Status status(code, Absl(message));
  status.SetPayload(Absl(kReasonPayload), absl::Cord(Absl(reason)));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  const auto reason = status.GetPayload(Absl(kReasonPayload));
  return reason ? std::string(*reason) : "";
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

std::string DidYouMean(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kWordMax = 64;  // the longest that is compared
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  std::string nearest;
  for (const std::string& candidate : known) {
    const size_t distance = word.size() > kWordMax ? least : EditDistance(word, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 200;
  // Bytes above 127 stay: they are UTF-8 in everything that reaches a message, but for a cut at the
  // end.
  return absl::StrCat("\"", absl::Utf8SafeCEscape(Absl(text.substr(0, kShown))),
                      text.size() > kShown ? "...\"" : "\"");
}

}  // namespace lorad::storage
