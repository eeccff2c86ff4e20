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

// A worker's, as text. `supervised`: without the time, which who passes its lines on (PassOn) says.
void SetUpForWorker(bool supervised);

// Says a line of a supervised worker's, or of whatever writes where it does, under its name: once,
// with one time, and at the level that the worker gave it.
void PassOn(const std::string& worker, const std::string& line);

}  // namespace lorad::logging
