// The files of a site's credentials: the authority, in the coordinator's data directory, and a
// bundle for each worker, one file that is carried to its host. Both hold a private key: they are
// written durably, for their user alone (0600), and one that others may read is refused. Page:
// docs/formats/credentials.md.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/credentials/certificate.h"
#include "storage/files/files.h"

namespace lorad::storage {

// DIR/authority.pem.
std::string AuthorityPath(const std::string& data_dir);

// Errors say which file, and which command mends it. NOT_FOUND (AUTHORITY_MISSING),
// FAILED_PRECONDITION (AUTHORITY_UNSAFE: others may read it; AUTHORITY_UNREADABLE),
// INVALID_ARGUMENT (AUTHORITY_DAMAGED). Whether it holds at a time is another question
// (Authority::validity).
absl::StatusOr<Authority> ReadAuthority(Files& files, const std::string& data_dir);

// Makes the directory where it is missing. ALREADY_EXISTS (AUTHORITY_EXISTS) where there is one,
// unless `replace`: then the one before is kept beside it, at the path returned ("" = there
// was none).
absl::StatusOr<std::string> WriteAuthority(Files& files, const std::string& data_dir,
                                           const Authority& authority, bool replace);

// What a worker on another host needs.
struct WorkerBundle {
  std::string worker;       // the name in its certificate
  std::string key;          // of its certificate
  std::string certificate;  // of the worker
  std::string authority;    // the certificate that the coordinator's is checked by
  Validity validity;        // of the worker's certificate

  // INVALID_ARGUMENT (BUNDLE_DAMAGED) where these are no key and certificates that belong together.
  static absl::StatusOr<WorkerBundle> Of(std::string key, std::string certificate,
                                         std::string authority);
};

// Whether it holds at `now`, by this host's clock; errors as WorkerOf's.
absl::Status CheckBundle(const WorkerBundle& bundle, absl::Time now);

// NOT_FOUND (BUNDLE_MISSING), FAILED_PRECONDITION (BUNDLE_UNSAFE, BUNDLE_UNREADABLE),
// INVALID_ARGUMENT (BUNDLE_DAMAGED).
absl::StatusOr<WorkerBundle> ReadBundle(Files& files, const std::string& path);

// Whole or as it was before. ALREADY_EXISTS (BUNDLE_EXISTS) where there is a file, unless
// `replace`.
absl::Status WriteBundle(Files& files, const std::string& path, const WorkerBundle& bundle,
                         bool replace);

}  // namespace lorad::storage
