// Carries bytes between a worker's connections and the links of its helper.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/mpi/links.h"
#include "worker/mpi/progress.h"
#include "worker/transport/socket.h"

namespace lorad::worker {

// What a connection of a worker is to its helper: bytes in both directions, in order, with one tag
// of a link. What is in them is the workers' own business (worker/transport/frame.h).
struct Stream {
  int peer = 0;
  int tag = 0;           // kTensorsTag, kNotesTag
  FileDescriptor local;  // not open: the worker is dialled when the first byte for it comes
};

inline constexpr int kTensorsTag = 1;
inline constexpr int kNotesTag = 2;

struct RelayOptions {
  std::string worker;           // "HOST:PORT" where the worker accepts connections
  int64_t silence_ms = 10'000;  // a peer that says nothing for so long is gone
};

// Returns when a stream has ended, here or there, and the other stages have been told; ends the
// process with a message where a peer is silent or MPI fails. Threads: the one that called
// MPI_Init_thread.
void Relay(const Links& links, std::vector<Stream> streams, const RelayOptions& options,
           Progress* progress);

}  // namespace lorad::worker
