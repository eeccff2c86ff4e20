// The version of this release.
#pragma once

namespace lorad::server {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace lorad::server
