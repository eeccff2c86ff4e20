#pragma once

#include <functional>
#include <span>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// What stage 0 makes of all stages' shares of the norm of one job's batch, in the order of the
// stages (which is the order of the job's matrices):
//   norm        = sqrt(fold(sums of squares of all matrices))
//   clip_factor = min(1, max_grad_norm / (norm + 1e-6)), or 1 where max_grad_norm is 0:
//                 torch.nn.utils.clip_grad_norm_
// The job goes on where every share and the norm are finite. `fold`: Backend::FoldSums; the cut of
// the model into stages does not reach it. REQUIRES: a share.
v1::Verdict Decide(std::span<const v1::NormShare> shares, double max_grad_norm,
                   const std::function<double(std::span<const double>)>& fold);

}  // namespace lorad::worker
