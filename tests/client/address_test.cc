#include "client/calls/address.h"

#include <catch2/catch.hpp>

namespace lorad::client {
namespace {

TEST_CASE("an address of a daemon is a host and a port, and nothing else is") {
  for (const char* good : {"127.0.0.1:7070", "localhost:1", "[::1]:65535"}) {
    CAPTURE(good);
    CHECK(CheckAddress(good).empty());
  }
  for (const char* bad : {"", "127.0.0.1", ":7070", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999",
                          "127.0.0.1:-1", "127.0.0.1:http"}) {
    CAPTURE(bad);
    CHECK(CheckAddress(bad).find("must be HOST:PORT") == 0);
  }
}

}  // namespace
}  // namespace lorad::client
