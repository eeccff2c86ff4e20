#include "worker/host/stage_address.h"

#include <catch2/catch.hpp>

namespace lorad::worker {
namespace {

TEST_CASE("an address to listen at for other stages is one of this machine's, and no port") {
  for (const char* host : {"127.0.0.1", "::1", "localhost"}) {
    INFO(host);
    CHECK(CheckStageAddress(host).ok());
  }
  struct Case {
    const char* host;
    const char* why;
  };
  const Case cases[] = {{"", "'' is no name"},
                        {"127.0.0.1:80", "no port"},
                        {"[::1]", "no brackets"},
                        {"127.0.0.1\n", "'127.0.0.1\\n' is no name"},
                        {"0.0.0.0", "all addresses"},
                        {"::", "all addresses"},
                        {"224.0.0.1", "or many"},
                        {"255.255.255.255", "or many"},
                        {"ff02::1", "or many"},
                        {"no.such.host.invalid", "no name that this machine knows"},
                        {"192.0.2.1", "Cannot assign requested address"}};
  for (const Case& c : cases) {
    INFO(c.host);
    const absl::Status status = CheckStageAddress(c.host);
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains(c.why));
  }
}

}  // namespace
}  // namespace lorad::worker
