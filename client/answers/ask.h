// A call of Generate: whom a user means, and what comes back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/calls/session.h"
#include "lorad/v1/adapters.pb.h"

namespace lorad::client {

// Whom `source` names: MODEL, or MODEL+ADAPTER (an imported one), else JOB or JOB/STEP (a job's id or
// its name). Errors: NOTHING_TO_ASK where it names none, NO_NAME, and those of FindJob and the call.
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

// Makes the call and reads it to its end. `told` hears of each message once the answers have it. The
// error of the call; GENERATION_CUT_SHORT where it ended before all answers had.
absl::Status Generate(Session& session, const v1::GenerateRequest& request, int seconds,
                      const std::function<void(const v1::GenerateResponse&)>& told,
                      std::vector<Answered>* answers);

}  // namespace lorad::client
