#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "worker/transport/agreement.h"
#include "worker/transport/listener.h"

namespace lorad::worker {

// Joins a stage whose tensors are in a device's memory. Once the transport of the host's memory
// stands, each two neighbours agree on how tensors cross between them (agreement.h).
class DeviceListener : public StageListener {
 public:
  // `below` listens for the host's memory. What `way` points to must outlive the transport.
  DeviceListener(std::unique_ptr<StageListener> below, DeviceWay way);

  const std::string& endpoint() const override { return below_->endpoint(); }
  // FAILED_PRECONDITION also where the way's choice is kPeer or kNccl and a neighbour is out of its
  // reach.
  absl::StatusOr<std::unique_ptr<Transport>> Join(
      const StageIdentity& me, const std::vector<std::string>& endpoints) override;
  void Interrupt() override;

 private:
  const std::unique_ptr<StageListener> below_;
  const DeviceWay way_;
  std::mutex mutex_;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  Transport* joined_ ABSL_GUARDED_BY(mutex_) = nullptr;  // while neighbours agree over it
};

}  // namespace lorad::worker
