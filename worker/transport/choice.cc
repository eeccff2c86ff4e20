#include "worker/transport/choice.h"

#include "absl/strings/str_cat.h"

namespace lorad::worker {

absl::StatusOr<TransportChoice> ParseTransportChoice(std::string_view word) {
  if (word == "auto") return TransportChoice::kAuto;
  if (word == "peer") return TransportChoice::kPeer;
  if (word == "nccl") return TransportChoice::kNccl;
  if (word == "sockets") return TransportChoice::kSockets;
  if (word == "mpi") return TransportChoice::kMpi;
  return absl::InvalidArgumentError(
      absl::StrCat("must be auto, peer, nccl, sockets or mpi, got '", std::string(word), "'"));
}

}  // namespace lorad::worker
