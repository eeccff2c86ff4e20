#include "server/calls/stream_errors.h"

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {

absl::Status FirstMessageLate(absl::Duration wait) {
  return Error(absl::StatusCode::kDeadlineExceeded, "FIRST_MESSAGE_LATE",
               absl::StrCat("nothing came on this stream within ", absl::FormatDuration(wait),
                            ": send the first message when you open it"));
}

absl::Status StreamIdle(absl::Duration wait) {
  return Error(absl::StatusCode::kDeadlineExceeded, "STREAM_IDLE",
               absl::StrCat("nothing came on this stream for ", absl::FormatDuration(wait),
                            ", and nothing was kept of it: send it again without a pause"));
}

}  // namespace lorad::server
