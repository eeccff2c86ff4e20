#include "kernels/cpu/loops.h"

namespace lorad::kernels::cpu {

extern const Loops kLoopsV1;
extern const Loops kLoopsV3;
extern const Loops kLoopsV4;

std::vector<const Loops*> SupportedLoops() {
  std::vector<const Loops*> loops = {&kLoopsV1};
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (v3) loops.push_back(&kLoopsV3);
  if (v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    loops.push_back(&kLoopsV4);
  }
  return loops;
}

}  // namespace lorad::kernels::cpu
