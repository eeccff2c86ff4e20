#include "server/services/backend.h"

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

Backend::Backend(Driver& driver_in, std::vector<std::string> model_roots_in, bool own_workers_in)
    : driver(driver_in),
      model_roots(std::move(model_roots_in)),
      own_workers(own_workers_in),
      watches("watches", kWatchesMax),
      uploads("uploads", kUploadsMax),
      workers("workers", kWorkersMax) {}

}  // namespace lorad::server
