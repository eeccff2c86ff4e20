// The log: lines on stderr, as text or as one JSON object a line. Nobody waits for its reader
// (stderr_sink.h).
#pragma once

#include <string>

namespace lorad::logging {

// Opens those of the descriptors 0, 1 and 2 that are closed on /dev/null, lest a file of ours is
// taken for one of them. To be called first.
void KeepStandardDescriptors();

enum class Format { kText, kJson };

// What every thread logs from here on, and what gRPC and Protocol Buffers have to say: they speak
// of what a client or a connection did, at level debug.
// REQUIRES: `level` is "trace", "debug", "info", "warning", "error" or "off".
void SetUp(Format format, const std::string& level);

// A worker's: under its name, for its supervisor has lines of several.
void SetUpForWorker();

}  // namespace lorad::logging
