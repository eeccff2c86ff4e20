#include "worker/transport/device_listener.h"

#include <utility>

#include "worker/transport/device_transport.h"

namespace lorad::worker {

DeviceListener::DeviceListener(std::unique_ptr<StageListener> below, DeviceWay way)
    : below_(std::move(below)), way_(std::move(way)) {}

absl::StatusOr<std::unique_ptr<Transport>> DeviceListener::Join(
    const StageIdentity& me, const std::vector<std::string>& endpoints) {
  auto joined = below_->Join(me, endpoints);
  if (!joined.ok()) return joined.status();
  {
    std::lock_guard lock(mutex_);
    if (interrupted_) return absl::CancelledError("interrupted");
    joined_ = joined->get();
  }
  auto crossings = AgreeOnCrossings(joined->get(), me, way_);
  std::lock_guard lock(mutex_);
  joined_ = nullptr;
  if (!crossings.ok()) return crossings.status();
  return MakeDeviceTransport(me.stage, *std::move(joined), way_.copies, *std::move(crossings));
}

void DeviceListener::Interrupt() {
  below_->Interrupt();
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (joined_ != nullptr) joined_->Interrupt(absl::CancelledError("interrupted"));
}

}  // namespace lorad::worker
