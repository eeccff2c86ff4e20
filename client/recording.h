#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/calls/session.h"

namespace lorad::client {

struct RecordingOptions {
  std::string file;
  std::optional<std::string> share_label;  // none: the daemon's
  bool once = false;
};

// Writes the history of the running coordinator (record.h) into the file, again every few seconds
// unless `once`. Each time the file is replaced whole, so whoever ends this has the newest one. A
// daemon that goes away is asked again until it is back. Says on stderr where the label is not the
// one that the daemon shares by, or no job has it. Errors: FILE_UNWRITABLE, and what the first
// calls say, among them that no label can have that key; with `once` NO_WORKERS, where none has
// connected yet.
absl::Status RecordCluster(Session& session, const RecordingOptions& options);

}  // namespace lorad::client
