// Who calls, as the connection says it.
#pragma once

#include <string>

namespace grpc {
class ServerContextBase;
}

namespace lorad::server {

// The doors of the daemon: clients and workers of this host come by loopback, and the kernel says
// whose they are; workers of other hosts come over TLS, and their certificate says who they are.
enum class Door { kLocal, kWorkers };

struct Caller {
  std::string address;  // "127.0.0.1:40000", "[::1]:40000"
  Door door = Door::kLocal;
  std::string certificate;  // PEM, not checked but that its key is at hand; "" = none
};

Caller CallerOf(const grpc::ServerContextBase& context);

}  // namespace lorad::server
