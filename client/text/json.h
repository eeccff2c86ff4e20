#pragma once

#include <string>

namespace google::protobuf {
class Message;
}

namespace lorad::client {

// The message as one line of proto3 JSON, with the proto's own field names in the order of the
// proto, default values written, enums by name, timestamps as RFC 3339. Two liberties, both of
// which every proto3 JSON parser reads: 64-bit integers are JSON numbers (scripts compare steps and
// bytes), and what is not set (sub-messages, optional fields) is null, so that a script finds every
// key.
std::string ToJson(const google::protobuf::Message& message);

}  // namespace lorad::client
