#include "server/calls/watch_hub.h"

#include <utility>

namespace lorad::server {

WatchHub::WatchHub(RevisionLog& log) : log_(log) {
  log_.Listen([this] {
    // However many come before it is looked at: one look.
    if (!scheduled_.exchange(true)) thread_.Add([this] { LookForAll(); });
  });
}

WatchHub::~WatchHub() { log_.Listen(nullptr); }

void WatchHub::LookForAll() {
  scheduled_ = false;
  for (Watcher* watcher : std::exchange(waiting_, {})) watcher->Look();
}

}  // namespace lorad::server
