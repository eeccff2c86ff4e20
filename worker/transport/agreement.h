#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/device_copies.h"
#include "worker/transport/choice.h"
#include "worker/transport/device_transport.h"
#include "worker/transport/listener.h"
#include "worker/transport/nccl.h"

namespace lorad::worker {

// What a worker brings for its device's tensors.
struct DeviceWay {
  kernels::DeviceCopies* copies = nullptr;
  TransportChoice choice = TransportChoice::kAuto;
  std::string host = "";                   // this one's name
  const NcclLibrary* nccl = nullptr;       // null: see no_nccl
  std::string no_nccl = "not looked for";  // why it has none
};

// Agrees with each neighbour, over `transport`, how tensors cross between their devices, by trying:
//
//   by peer    where both choose auto or peer, and each can open what the other shares
//   by NCCL    else, where both have it and can connect by it, and choose auto on two hosts, or one
//              chooses nccl and the other that or auto
//   staged     else
//
// Both sides come to the same; it is logged, with why not otherwise. All stages of a group call it
// at one time: it takes a few messages, and for NCCL 0.5 s for each of two edges of a border, first
// of those behind stages 0, 2, .., then of those behind stages 1, 3, ...
// FAILED_PRECONDITION: `way.choice` is kPeer or kNccl and a neighbour is out of its reach.
// INTERNAL: what a neighbour says is no answer. Else errors of the transport.
absl::StatusOr<Crossings> AgreeOnCrossings(Transport* transport, const StageIdentity& me,
                                           const DeviceWay& way);

}  // namespace lorad::worker
