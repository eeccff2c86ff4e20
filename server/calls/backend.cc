#include "server/calls/backend.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"

namespace lorad::server {

absl::StatusOr<Gate::Pass> Gate::Enter() {
  Pass pass(this);
  if (inside_.fetch_add(1) < places_max_) return pass;
  return LimitExceeded("TOO_MANY_CALLS", what_,
                       absl::StrCat("at most ", places_max_, " ", what_,
                                    " are served at once: end one, or try again later"));
}

Attendance::Token::Token(Attendance& attendance) : attendance_(attendance) {
  std::lock_guard lock(attendance_.mutex_);
  attendance_.present_ += 1;
}

Attendance::Token::~Token() {
  std::lock_guard lock(attendance_.mutex_);
  attendance_.present_ -= 1;
  attendance_.left_.notify_all();
}

void Attendance::WaitUntilEmpty() {
  std::unique_lock lock(mutex_);
  left_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return present_ == 0; });
}

Backend::Backend(Driver& driver_in, std::vector<std::string> model_roots_in, bool own_workers_in,
                 StreamWaits waits_in, ConnectionLimits connection_limits, SiteCredentials site_in,
                 FindMpiServer find_mpi_server_in)
    : driver(driver_in),
      model_roots(std::move(model_roots_in)),
      own_workers(own_workers_in),
      waits(waits_in),
      site(std::move(site_in)),
      find_mpi_server(std::move(find_mpi_server_in)),
      connections(std::move(connection_limits)),
      watches("watches", kWatchesMax),
      uploads("uploads", kUploadsMax),
      downloads("downloads", kDownloadsMax),
      workers("workers", kWorkersMax),
      files(std::clamp<int>(std::thread::hardware_concurrency(), 2, 4)),
      watch_hub(driver.revisions()) {}

}  // namespace lorad::server
