#include "worker/transport/stage_way.h"

#include <cassert>

namespace lorad::worker {

absl::StatusOr<std::string> StageWay::Open() {
  assert(transport_ == nullptr);
  auto listener = open_listener_();
  if (!listener.ok()) return listener.status();
  std::lock_guard lock(mutex_);
  listener_ = *std::move(listener);
  interrupted_ = absl::OkStatus();
  return listener_->endpoint();
}

absl::Status StageWay::Join(const StageIdentity& me, const std::vector<std::string>& endpoints) {
  assert(listener_ != nullptr && transport_ == nullptr);
  auto joined = listener_->Join(me, endpoints);
  std::unique_ptr<StageListener> heard;  // closed without the lock
  std::lock_guard lock(mutex_);
  heard = std::move(listener_);
  if (!joined.ok()) return joined.status();
  transport_ = *std::move(joined);
  if (!interrupted_.ok()) transport_->Interrupt(interrupted_);
  return interrupted_;
}

void StageWay::Close() {
  std::unique_ptr<StageListener> listener;
  std::unique_ptr<Transport> transport;  // its end waits for its threads
  std::lock_guard lock(mutex_);
  listener = std::move(listener_);
  transport = std::move(transport_);
}

void StageWay::Interrupt(const absl::Status& why) {
  std::lock_guard lock(mutex_);
  interrupted_ = why;
  if (listener_ != nullptr) listener_->Interrupt();
  if (transport_ != nullptr) transport_->Interrupt(why);
}

void StageWay::GiveUpReceive() {
  std::lock_guard lock(mutex_);
  if (transport_ != nullptr) transport_->GiveUpReceive(Lane::kActivations);
}

}  // namespace lorad::worker
