// Creates that come again: each is answered as it was the first time, by its request_id. RequestIds
// decides which answers are kept, and for how long; this stores its changes with the turn's.
//
// Threads: the core's one. Errors of Load: DATA_LOSS (STORE_CORRUPT).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/core/catalog/request_ids.h"
#include "server/core/events/options.h"
#include "server/core/events/turn.h"

namespace lorad::server {

class Answers {
 public:
  // The answer that Get would give to the name now.
  using Find = absl::FunctionRef<absl::StatusOr<ReplyValue>(const std::string& name)>;

  Answers(const CoreOptions& options, Turn& turn);
  absl::Status Load(std::vector<std::pair<std::string, std::string>> stored) {
    return ids_.Load(std::move(stored));
  }

  // The request came before: it is answered (or refused) here and true is returned.
  bool AnsweredBefore(uint64_t request, const char* kind, const RequestId& id, Find find);
  // `made`: the resource of that name, as the first answer has it.
  void Keep(const char* kind, const RequestId& id, const std::string& name,
            const google::protobuf::Message& made);
  // Forgets what is too old or too many.
  void Prune();

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }

 private:
  Turn& turn_;
  RequestIds ids_;  // key: KIND/REQUEST_ID
};

}  // namespace lorad::server
