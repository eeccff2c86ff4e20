// `lorad auth`: a site's authority, and a certificate for each worker on another host.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lorad::server {

struct AuthOptions {
  std::string data_dir;
  std::string worker;  // `auth worker`: its name
  std::string output;  // `auth worker`: the bundle; "" = WORKER.pem here
  std::string valid;   // "" = ten years for the authority, 90 days for a worker
  bool replace = false;
};

// "90d", "12h", "30m", "45s". INVALID_ARGUMENT (INVALID_DURATION) for others, below 10 s and above
// 50 years.
absl::StatusOr<absl::Duration> ParseValid(const std::string& text);

// These write, and return what is to be printed. Errors: those of credential_files.h,
// WORKER_NAME_INVALID, DATA_DIR_NOT_OURS.
absl::StatusOr<std::string> AuthInit(const AuthOptions& options, absl::Time now);
absl::StatusOr<std::string> AuthWorker(const AuthOptions& options, absl::Time now);

// The subcommand; RunAuth does what was chosen, and returns what is to be printed.
void AddAuth(CLI::App& app, AuthOptions& options);
absl::StatusOr<std::string> RunAuth(const CLI::App& app, const AuthOptions& options);

}  // namespace lorad::server
