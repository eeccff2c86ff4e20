// Text in records and answers is valid UTF-8: a proto3 message with other text is written, and
// never read again.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/status.h"

namespace lorad::server {

// INVALID_ARGUMENT (INVALID_FIELDS) naming every string in `message` (also in maps, lists and
// messages in it) that is not valid UTF-8. `what` names the thing: "model".
absl::Status CheckUtf8(const std::string& what, const google::protobuf::Message& message);

}  // namespace lorad::server
