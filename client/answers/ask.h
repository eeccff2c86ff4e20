// A call of Generate: whom a user means, and what comes back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/calls/session.h"
#include "lorad/v1/adapters.pb.h"

namespace lorad::client {

// Whom `source` names: MODEL, or MODEL+ADAPTER (an imported one), else JOB or JOB/STEP (a job's id
// or its name). Errors: NOTHING_TO_ASK where it names none, NO_NAME, USAGE where a step is written
// otherwise than it is shown ("02"), and those of FindJob and the call.
absl::Status SetSource(Session& session, const std::string& source, v1::Ask* ask);

// One answer, as far as it has come.
struct Answered {
  std::string text;
  std::string reference;
  std::vector<int32_t> token_ids;
  std::vector<double> log_probabilities;
  int64_t step = 0;
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  v1::GenerateResponse::FinishReason finish = v1::GenerateResponse::FINISH_REASON_UNSPECIFIED;
};

// Makes the call and reads it to its end. `told` hears of each message once the answers have it.
// The error of the call; GENERATION_CUT_SHORT where it ended before all answers had,
// DEADLINE_EXCEEDED where that takes longer than `seconds`, NOT_READ where this process was stopped
// for so long, or read so little, that the daemon gave its answers up. What has come is in
// `answers` all the same.
absl::Status Generate(Session& session, const v1::GenerateRequest& request, int seconds,
                      const std::function<void(const v1::GenerateResponse&)>& told,
                      std::vector<Answered>* answers);

// On stderr, where a message says why nothing comes yet.
void SayWaiting(const v1::GenerateResponse& message);

// The index of the ask that an error of the call is about; none where it is about all of them.
std::optional<int> AskOf(const absl::Status& status, int asks);

}  // namespace lorad::client
