// Which way tensors go between the stages of a model, as an operator chooses it.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorad::worker {

enum class TransportChoice {
  kAuto,     // the fastest that both sides of a border have
  kPeer,     // by the copy engines of one host's GPUs, or not at all
  kNccl,     // by NCCL, or not at all
  kSockets,  // through the hosts' memory
  kMpi,      // the same, but by MPI: this choice is of those who join the hosts' memory, too
};

// "auto", "peer", "nccl", "sockets", "mpi". INVALID_ARGUMENT for another word.
absl::StatusOr<TransportChoice> ParseTransportChoice(std::string_view word);

}  // namespace lorad::worker
