#pragma once

#include "absl/status/status.h"

namespace lorad::server {

// Files that this process and its children make are their user's alone (umask 077), and it may
// have as many descriptors open as its hard limit says. A limit on the size of files ends no
// process of ours. Before any other thread runs.
void SetUpProcess();

// Whether this process may have what every daemon needs, however idle: libraries that find out
// later wait for ever, or abort. RESOURCE_EXHAUSTED: TOO_FEW_FILES (descriptors), TOO_FEW_THREADS.
absl::Status CheckProcessLimits();

}  // namespace lorad::server
