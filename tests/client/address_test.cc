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
                          "127.0.0.1:-1", "127.0.0.1:http", "host: 80", "host:+80", "a b:1",
                          "a:b:1", "[]:1", "[::1]", "http://host:80", "h\n:1", "\xff:1"}) {
    CAPTURE(bad);
    CHECK(CheckAddress(bad).find("must be HOST:PORT") == 0);
  }
  CHECK(CheckAddress("::1:7070")
            .ends_with("got '::1:7070'; an address of IPv6 stands in brackets, [::1]:7070"));
}

}  // namespace
}  // namespace lorad::client
