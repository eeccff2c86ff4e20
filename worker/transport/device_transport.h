// Tensors between the memories of two devices, over a transport of the host's memory.
#pragma once

#include <array>
#include <memory>

#include "kernels/device_copies.h"
#include "worker/transport/nccl.h"
#include "worker/transport/transport.h"

namespace lorad::worker {

// How a device's tensors get to one neighbour and from it.
enum class Crossing {
  kStaged,  // through pinned memory of both hosts, and as the host's by the transport beneath
  kPeer,    // the sender's copy engine writes into memory that the receiver shares
  kNccl,    // a kernel of NCCL on either side, both launched when both sides are at it
};

// What the two crossings to the neighbours are; of no meaning where there is none.
struct Crossings {
  Crossing before = Crossing::kStaged;
  Crossing behind = Crossing::kStaged;
  // Of those that are kNccl, by lane: at which its tensors leave, and at which they come.
  std::array<std::unique_ptr<NcclEdge>, 2> leaving = {};
  std::array<std::unique_ptr<NcclEdge>, 2> coming = {};
};

// Each end of a lane has memory for one tensor in which it crosses, which is allocated at its first
// use: of a receiver [T, H] of the host where it is staged, else of the device; of a sender where
// it is staged, of the host.
//
//   sender     waits for what writes the tensor; staged: copies it into host memory and sends that;
//              peer: waits until the other side has room, copies it there, and says so;
//              NCCL: waits until the other side has room, says that it comes, and sends it
//   receiver   has room as soon as the tensor before has been copied to where it was posted for;
//              NCCL: fetches what it is told of at once, whatever its stage is at;
//              copies what has come behind the operations that were there at PostReceive
//
// All of this passes beside the device's operations, which wait for a copy that brings their input
// and for nothing else: no stream of operations waits for another process, and a kernel of NCCL
// only for what the other side does next. A thread for each end of a lane waits for the copies, so
// the caller waits only where it would in the host's memory: for a tensor that has not come, or has
// not left.
//
// `below` is this stage's transport of the host's memory; `copies`, of the device, must outlive the
// transport.
std::unique_ptr<Transport> MakeDeviceTransport(int stage, std::unique_ptr<Transport> below,
                                               kernels::DeviceCopies* copies, Crossings crossings);

}  // namespace lorad::worker
