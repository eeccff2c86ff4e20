#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/device_copies.h"
#include "worker/transport/choice.h"
#include "worker/transport/listener.h"

namespace lorad::worker {

// Joins a stage whose tensors are in a device's memory. Once the transport of the host's memory
// stands, each two neighbours agree on how tensors cross between them: by peer where both try it and
// both can open what the other shares, else staged (device_transport.h). What was chosen, and why not
// by peer, is logged.
class DeviceListener : public StageListener {
 public:
  // `below` listens for the host's memory. `copies`, of the device, must outlive the transport.
  DeviceListener(std::unique_ptr<StageListener> below, kernels::DeviceCopies* copies,
                 TransportChoice choice);

  const std::string& endpoint() const override { return below_->endpoint(); }
  // FAILED_PRECONDITION also where `choice` is kPeer and a neighbour is out of its reach.
  absl::StatusOr<std::unique_ptr<Transport>> Join(
      const StageIdentity& me, const std::vector<std::string>& endpoints) override;
  void Interrupt() override;

 private:
  const std::unique_ptr<StageListener> below_;
  kernels::DeviceCopies* const copies_;
  const TransportChoice choice_;
  std::mutex mutex_;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  Transport* joined_ ABSL_GUARDED_BY(mutex_) = nullptr;  // while neighbours agree over it
};

}  // namespace lorad::worker
