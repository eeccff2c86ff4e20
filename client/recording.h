#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/calls/session.h"

namespace lorad::client {

struct RecordingOptions {
  std::string file;
  std::string share_label;
  bool once = false;
};

// Writes the history of the running coordinator (record.h) into the file, again every few seconds
// unless `once`. Each time the file is replaced whole, so whoever ends this has the newest one. A
// daemon that goes away is asked again until it is back. Errors: FILE_UNWRITABLE, and what the
// first calls say.
absl::Status RecordCluster(Session& session, const RecordingOptions& options);

}  // namespace lorad::client
