#pragma once

#include "absl/status/status.h"
#include "client/calls/session.h"

namespace lorad::client {

// Draws the cluster's board on the terminal, again and again, until Ctrl-C, which is its good end.
// A daemon that goes away is waited for. REQUIRES: CanDrawOver (text/width.h).
absl::Status ShowLiveTable(Session& session);

}  // namespace lorad::client
