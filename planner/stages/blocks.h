// How the time of a model spreads over its blocks, so that it can be cut into stages before any
// stage was measured. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/cost/memory.h"

namespace lorad::planner {

// Multiplications and additions of one token in each of the model's blocks (StageRange), forward
// and backward, where its sequence has `length` tokens. With p parameters of a block's linear
// layers, N heads of size D, V tokens in the vocabulary and a hidden size of H:
//   linear layers  2 p forward, 2 p backward: frozen weights have no gradient (kernels/backend.h)
//   attention      2 N D length forward (the causal half), 2.5 times that backward
//   head           2 H V forward, 2 H V backward, in the last block; the embedding only reads
// as cost/time.h has them of a whole model (WorkModel, PriorOf). Terms of LoRA are left out: they
// are some per cent, and the jobs of a group differ in them.
std::vector<double> FlopsOfBlocks(const ModelShape& model, int64_t length);

// What the slowest of the stages does of all that is to be done: 1 / S where S stages are equal.
// REQUIRES: the ranges are all of the model's blocks in their order, none of them empty.
double SlowestShare(const ModelShape& model, const std::vector<StageRange>& ranges, int64_t length);

}  // namespace lorad::planner
