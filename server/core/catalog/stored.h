// Reading what the store held at a start.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {

// `stored`: key and bytes of a record. DATA_LOSS (STORE_CORRUPT) where they are no such message.
template <class Message>
absl::Status ParseStored(const char* kind, const std::pair<std::string, std::string>& stored,
                         Message* message) {
  if (message->ParseFromString(stored.second)) return absl::OkStatus();
  return StoreCorrupt(absl::StrCat(kind, " '", stored.first, "'"));
}

}  // namespace lorad::server
