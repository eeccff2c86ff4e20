#include "tests/worker/transport/join.h"

#include <stdexcept>
#include <thread>
#include <utility>

#include "worker/transport/device_listener.h"

namespace lorad::worker {

Joined TryJoin(int stages, const OpenListener& open_listener,
               const std::function<void(StageIdentity*)>& change) {
  std::vector<std::unique_ptr<StageListener>> listeners;
  std::vector<std::string> endpoints;
  Joined joined;
  for (int stage = 0; stage < stages; ++stage) {
    auto listener = open_listener();
    if (!listener.ok()) throw std::runtime_error(listener.status().ToString());
    listeners.push_back(*std::move(listener));
    endpoints.push_back(listeners.back()->endpoint());
    joined.emplace_back(absl::UnknownError("not yet"));
  }
  std::vector<std::thread> threads;
  for (size_t stage = 0; stage < listeners.size(); ++stage) {
    threads.emplace_back([&, stage] {
      StageIdentity me{.epoch = 7,
                       .stage = static_cast<int>(stage),
                       .stages = stages,
                       .numerics_id = "numerics"};
      if (change) change(&me);
      joined[stage] = listeners[stage]->Join(me, endpoints);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

std::vector<std::unique_ptr<Transport>> AllOf(Joined joined) {
  std::vector<std::unique_ptr<Transport>> transports;
  for (auto& transport : joined) {
    if (!transport.ok()) throw std::runtime_error(transport.status().ToString());
    transports.push_back(*std::move(transport));
  }
  return transports;
}

absl::StatusOr<std::unique_ptr<StageListener>> ListenByASocket() {
  return SocketsListener::Open("127.0.0.1");
}

Joined TryJoinBySockets(int stages, const SocketsOptions& options,
                        const std::function<void(StageIdentity*)>& change) {
  return TryJoin(
      stages, [&] { return SocketsListener::Open("127.0.0.1", options); }, change);
}

std::vector<std::unique_ptr<Transport>> JoinBySockets(int stages, const SocketsOptions& options) {
  return AllOf(TryJoinBySockets(stages, options));
}

Joined TryJoinDevices(const std::vector<DeviceWay>& stages, const SocketsOptions& options) {
  size_t next = 0;
  return TryJoin(static_cast<int>(stages.size()),
                 [&]() -> absl::StatusOr<std::unique_ptr<StageListener>> {
                   auto below = SocketsListener::Open("127.0.0.1", options);
                   if (!below.ok()) return below.status();
                   return std::make_unique<DeviceListener>(*std::move(below), stages.at(next++));
                 });
}

}  // namespace lorad::worker
