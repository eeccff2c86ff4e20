#include "server/connections/refusals.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr absl::Duration kPause = absl::Minutes(1);
constexpr size_t kKeptMax = 256;

}  // namespace

void Refusals::Note(const std::string& who, const absl::Status& why) {
  const std::string reason = Reason(why);
  {
    std::lock_guard lock(mutex_);
    if (written_.size() >= kKeptMax) written_.clear();
    absl::Time& written = written_.try_emplace(absl::StrCat(who, " ", reason)).first->second;
    const absl::Time now = absl::Now();
    if (written != absl::Time() && now - written < kPause && now >= written) return;
    written = now;
  }
  spdlog::warn("refused {}: {}: {}", who, reason, std::string(why.message()));
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace lorad::server
