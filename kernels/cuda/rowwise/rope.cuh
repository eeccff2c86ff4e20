// The rotation of one pair of a head's elements (equations: backend.h), for whichever kernel has it
// at hand: the same bits.
#pragma once

namespace lorad::kernels::cuda {

struct RopePair {
  float low;   // of the head's first half
  float high;  // its partner in the second
};

// By the angle of cosine c and sine s; backward: by -s. What is rounded, and when, is said rather
// than left to the compiler, which may see to it otherwise in another kernel.
__device__ inline RopePair Rotated(RopePair x, float c, float s) {
  return {__fmaf_rn(x.low, c, -__fmul_rn(x.high, s)), __fmaf_rn(x.high, c, __fmul_rn(x.low, s))};
}

}  // namespace lorad::kernels::cuda
