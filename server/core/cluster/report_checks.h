// Whether what a worker says fits what was asked of it. Each function is pure and says what does
// not fit, for the log (valid UTF-8 of bounded length), or nothing; what does not fit closes the
// worker, and nothing of it counts.
//
// | message           | fits                                                                      |
// |-------------------|---------------------------------------------------------------------------|
// | Hello             | names and numbers within their limits                                     |
// | Heartbeat         | bytes that a machine can have, a moment that its clock can                |
// | CutAnswer         | once for a Cut, a stage lost since or not; a microbatch of the epoch      |
// | GroupFormed       | once while the group is being formed; of several stages with an endpoint  |
// | Connected         | once for a Connect, a stage lost since or not                             |
// | GroupFailed       | always; its reason is a word of capital letters, and a worker's           |
// | SlotLoaded, -Failed | once for a LoadSlot of a window at hand, from the step that was named;  |
// |                   | as for GroupFailed its reason                                             |
// | SlotFreed         | once for a FreeSlot, when no Step of the job is awaited                   |
// | StepDone          | once for a Step of a window at hand, the job's next, with its batch's     |
// |                   | tokens and learning rate, and numbers that are finite                     |
// | EvaluateDone      | once for each sequence of an evaluation of a window at hand, sums finite  |
// | Generated         | once for a token of a window at hand, of the model's vocabulary or -1     |
// | NotFinite         | for a Step or an evaluation of a window at hand, sequences of its batch   |
// | MicrobatchDone    | once for a microbatch of a window at hand; numbers finite, none negative  |
// | WindowDone        | for the oldest window at hand, when all of its orders are answered        |
// | Saved             | always: nothing is taken from it                                          |
// | SaveDelayed       | always: it is told once of each step whose save was asked for             |
// | a shard           | of a Save that was ordered and is not recorded, from the group's worker   |
#pragma once

#include <string>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::server {

// NotFinite::what, of an evaluation.
inline constexpr char kValidationLoss[] = "validation loss";

struct GroupState;
struct Member;
struct StageState;

std::string WhatIsWrong(const worker::v1::Hello& hello);
std::string WhatIsWrong(const worker::v1::Heartbeat& heartbeat);
std::string WhatIsWrong(const worker::v1::CutAnswer& answer, const GroupState& group);
// `stage`: of the group; its worker has said it.
std::string WhatIsWrong(const worker::v1::Report& report, const GroupState& group,
                        const StageState& stage);
// Whether one process may have said both.
bool IsSameProcess(const worker::v1::Hello& hello, const worker::v1::Hello& before);
// Why the group, which waits for the worker, does not go on with what that process says it holds;
// empty: it does.
std::string WhyNotAdopted(const worker::v1::Hello& hello, const GroupState& group);
// Returns what is wrong with a member's shard. `numerics_id`: of the group's workers.
std::string WhatIsWrong(const worker::v1::UploadShardRequest::Header& header, const Member& member,
                        int32_t stages, const std::string& numerics_id);

}  // namespace lorad::server
