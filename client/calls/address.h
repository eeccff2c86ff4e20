#pragma once

#include <string>

namespace lorad::client {

// "" or what is wrong with --server (or LORAD_SERVER): it must be HOST:PORT.
std::string CheckAddress(const std::string& address);

}  // namespace lorad::client
