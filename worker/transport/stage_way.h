#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/transport/listener.h"
#include "worker/transport/transport.h"

namespace lorad::worker {

// The way of one stage to the others over the life of its group: it listens, joins them, has a
// transport, and lets go of it. Whatever it stands at, another thread can end its waits.
// Threads: Interrupt and GiveUpReceive may come from any, the rest from one.
class StageWay {
 public:
  explicit StageWay(OpenListener open_listener) : open_listener_(std::move(open_listener)) {}
  StageWay(const StageWay&) = delete;
  StageWay& operator=(const StageWay&) = delete;

  // Listens, for a new group. The endpoint, or what `open_listener` gave.
  absl::StatusOr<std::string> Open();
  // As StageListener::Join, and listens no more. REQUIRES: Open.
  absl::Status Join(const StageIdentity& me, const std::vector<std::string>& endpoints);
  // Null before Join; good until Close.
  Transport* transport() const { return transport_.get(); }
  // The others see a stage that is gone. May be called at any time.
  void Close();

  // Ends the waits of this group, under way and to come, until the next Open: a Join with
  // CANCELLED, those of the transport with `why`.
  void Interrupt(const absl::Status& why);
  // Transport::GiveUpReceive of activations, if there is a transport.
  void GiveUpReceive();

 private:
  const OpenListener open_listener_;
  // Set and reset by the one thread, under the lock; used by others under it.
  mutable std::mutex mutex_;
  std::unique_ptr<StageListener> listener_;
  std::unique_ptr<Transport> transport_;
  absl::Status interrupted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lorad::worker
