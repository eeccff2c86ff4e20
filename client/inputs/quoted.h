#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lorad::client {

// A string as JSON in ASCII, as Python's json.dumps writes it, or "" where it is no UTF-8.
inline std::string Quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump(-1, ' ', true);
  } catch (const nlohmann::json::exception&) {
    return "";
  }
}

}  // namespace lorad::client
