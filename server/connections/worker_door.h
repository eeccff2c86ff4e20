// The door for workers of other hosts: TLS under the site's authority, lorad.worker.v1 alone.
//
// The handshake proves that the caller has the key of the certificate it shows, if it shows one.
// Whether that certificate is a worker's is asked at each call (Connections::Enter), because a
// refusal within the handshake reaches the other side as a connection that closed, without a word
// of why: docs/adr/0022-certificates-are-judged-at-the-call.md.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "storage/credentials/certificate.h"

namespace lorad::server {

// With a certificate of the coordinator's own, made now: its key is never written down, and it
// holds as long as the authority does. Methods that are not lorad.worker.v1's are refused before
// they are looked up: PERMISSION_DENIED (NOT_SERVED_HERE).
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> WorkerDoorCredentials(
    const storage::Authority& authority);

}  // namespace lorad::server
