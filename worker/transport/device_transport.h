// Tensors between the memories of two devices, over a transport of the host's memory.
#pragma once

#include <memory>

#include "kernels/device_copies.h"
#include "worker/transport/transport.h"

namespace lorad::worker {

// How a device's tensors get to one neighbour and from it.
enum class Crossing {
  kStaged,  // through pinned memory of both hosts, and as the host's by the transport beneath
  kPeer,    // the sender's copy engine writes into memory that the receiver shares
};

// What the two crossings to the neighbours are; of no meaning where there is none.
struct Crossings {
  Crossing before = Crossing::kStaged;
  Crossing behind = Crossing::kStaged;
};

// Each end of a lane has memory for one tensor in which it crosses, which is allocated at its first
// use: of a receiver [T, H] of the device where it is kPeer, else of the host; of a sender where it is
// staged, of the host.
//
//   sender     waits for what writes the tensor; staged: copies it into host memory and sends that;
//              peer: waits until the other side has room, copies it there, and says so
//   receiver   has room as soon as the tensor before has been copied to where it was posted for;
//              copies what has come behind the operations that were there at PostReceive
//
// All of this passes beside the device's operations, which wait for a copy that brings their input
// and for nothing else: no kernel and no stream waits for another process. A thread for each end of a
// lane waits for the copies, so the caller waits only where it would in the host's memory: for a
// tensor that has not come, or has not left.
//
// `below` is this stage's transport of the host's memory; `copies`, of the device, must outlive the
// transport.
std::unique_ptr<Transport> MakeDeviceTransport(int stage, std::unique_ptr<Transport> below,
                                               kernels::DeviceCopies* copies, Crossings crossings);

}  // namespace lorad::worker
