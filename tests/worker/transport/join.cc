#include "tests/worker/transport/join.h"

#include <stdexcept>
#include <thread>
#include <utility>

namespace lorad::worker {

Joined TryJoinBySockets(int stages, const SocketsOptions& options,
                        const std::function<void(StageIdentity*)>& change) {
  std::vector<std::unique_ptr<SocketsListener>> listeners;
  std::vector<std::string> endpoints;
  for (int stage = 0; stage < stages; ++stage) {
    auto listener = SocketsListener::Open("127.0.0.1", options);
    if (!listener.ok()) throw std::runtime_error(listener.status().ToString());
    endpoints.push_back((*listener)->endpoint());
    listeners.push_back(*std::move(listener));
  }
  Joined joined;
  for (int stage = 0; stage < stages; ++stage) joined.emplace_back(absl::UnknownError("not yet"));
  std::vector<std::thread> threads;
  for (int stage = 0; stage < stages; ++stage) {
    threads.emplace_back([&, stage] {
      StageIdentity me{.epoch = 7, .stage = stage, .stages = stages, .numerics_id = "numerics"};
      if (change) change(&me);
      joined[static_cast<size_t>(stage)] =
          listeners[static_cast<size_t>(stage)]->Join(me, endpoints);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

std::vector<std::unique_ptr<Transport>> JoinBySockets(int stages, const SocketsOptions& options) {
  std::vector<std::unique_ptr<Transport>> transports;
  for (auto& transport : TryJoinBySockets(stages, options)) {
    if (!transport.ok()) throw std::runtime_error(transport.status().ToString());
    transports.push_back(*std::move(transport));
  }
  return transports;
}

}  // namespace lorad::worker
