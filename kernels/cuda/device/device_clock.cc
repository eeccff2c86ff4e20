#include "kernels/cuda/device/device_clock.h"

#include <algorithm>
#include <cassert>

namespace lorad::kernels::cuda {
namespace {

constexpr std::chrono::seconds kBaseEvery(1);
constexpr size_t kOffsetsKept = 64;

}  // namespace

void DeviceClock::KeepNear(cudaStream_t stream) {
  const Moment now = std::chrono::steady_clock::now();
  if (!enqueued_.has_value()) {
    bases_[base_].Record(stream);
    bases_[base_].Wait();
    enqueued_ = std::chrono::steady_clock::now();
    offsets_.push_back(enqueued_->time_since_epoch());
  } else if (!awaited_ && now - *enqueued_ >= kBaseEvery) {
    bases_[1 - base_].Record(stream);
    enqueued_ = now;
    awaited_ = true;
  }
}

void DeviceClock::HasReached(const TimedEvent& event) {
  const Ms now = std::chrono::steady_clock::now().time_since_epoch();
  if (awaited_ && bases_[1 - base_].Done()) {
    base_time_ = DeviceTimeOf(bases_[1 - base_]);
    base_ = 1 - base_;
    awaited_ = false;
  }
  offsets_.push_back(now - DeviceTimeOf(event));
  if (offsets_.size() > kOffsetsKept) offsets_.pop_front();
}

DeviceClock::Moment DeviceClock::MomentOf(const TimedEvent& event) const {
  assert(!offsets_.empty());
  const Ms moment = *std::min_element(offsets_.begin(), offsets_.end()) + DeviceTimeOf(event);
  return Moment(std::chrono::duration_cast<Moment::duration>(moment));
}

DeviceClock::Ms DeviceClock::DeviceTimeOf(const TimedEvent& event) const {
  return base_time_ + Ms(event.MsSince(bases_[base_]));
}

}  // namespace lorad::kernels::cuda
