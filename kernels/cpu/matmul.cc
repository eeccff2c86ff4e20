#include "kernels/cpu/matmul.h"

#include <dnnl.h>

#include <cassert>

// From the library's OpenMP run-time; <omp.h> is not where every compiler looks.
extern "C" void omp_set_num_threads(int threads);

namespace lorad::kernels::cpu {
namespace {

void Multiply(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
              const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
              int64_t ldc) {
  if (m == 0 || n == 0) return;
  // A setting of the calling thread: the library must not start threads of its own inside an item
  // of work.
  thread_local const bool single = (omp_set_num_threads(1), true);
  assert(single);
  const dnnl_status_t status =
      dnnl_sgemm(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  assert(status == dnnl_success);
}

// Newer sets than these have the same float32 kernels.
const char* IsaName(unsigned isa) {
  constexpr unsigned kAvx512 = dnnl_cpu_isa_avx512_core;
  constexpr unsigned kAvx2 = dnnl_cpu_isa_avx2;
  constexpr unsigned kAvx = dnnl_cpu_isa_avx;
  if ((isa & kAvx512) == kAvx512) return "avx512";
  if ((isa & kAvx2) == kAvx2) return "avx2";
  return (isa & kAvx) == kAvx ? "avx" : "sse4.1";
}

}  // namespace

void MultiplyNT(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  Multiply('N', 'T', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void MultiplyNN(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  Multiply('N', 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void MultiplyTN(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  Multiply('T', 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

std::string MatmulId() {
  const dnnl_version_t& version = *dnnl_version();
  return "oneDNN " + std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
         std::to_string(version.patch) + " " + IsaName(dnnl_get_effective_cpu_isa());
}

}  // namespace lorad::kernels::cpu
