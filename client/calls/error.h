#pragma once

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace grpc {
class Status;
}

namespace lorad::client {

// An error of the client's own: `reason` is what scripts test for (UPPER_SNAKE), `message` what is
// wrong, where, and how to mend it. `violations` holds one line for each field that is to blame
// ("adapter.rank: must be ..."), or nothing.
absl::Status Error(absl::string_view reason, absl::string_view message,
                   absl::string_view violations = "");

// The answer of a call, with the reason of its google.rpc.ErrorInfo and the field violations of its
// BadRequest. A server that cannot be reached becomes UNREACHABLE, with `server` named in the
// message.
absl::Status FromRpc(const grpc::Status& status, absl::string_view server);

// "error: REASON: message" and one more line for each violation. REQUIRES: not ok.
void PrintError(const absl::Status& status, std::ostream& out);

std::string ReasonOf(const absl::Status& status);

// An entry of the metadata of the answer's google.rpc.ErrorInfo; "" where it has none.
std::string MetadataOf(const absl::Status& status, absl::string_view key);

}  // namespace lorad::client
