#include "kernels/cpu/matmul.h"

#include <cblas.h>

#include <cassert>
#include <limits>

namespace lorad::kernels::cpu {
namespace {

blasint Int(int64_t value) {
  assert(value >= 0 && value <= std::numeric_limits<blasint>::max());
  return static_cast<blasint>(value);
}

void Multiply(CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b, int64_t m, int64_t n,
              int64_t k, float alpha, const float* a, int64_t lda, const float* b, int64_t ldb,
              float beta, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  cblas_sgemm(CblasRowMajor, transpose_a, transpose_b, Int(m), Int(n), Int(k), alpha, a, Int(lda),
              b, Int(ldb), beta, c, Int(ldc));
}

}  // namespace

void MultiplyNT(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  Multiply(CblasNoTrans, CblasTrans, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void MultiplyNN(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  Multiply(CblasNoTrans, CblasNoTrans, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void MultiplyTN(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  Multiply(CblasTrans, CblasNoTrans, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void InitializeMatmul() { openblas_set_num_threads(1); }

std::string MatmulId() {
  // get_config: "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ... MAX_THREADS=64"; the first two words
  // name the version.
  const std::string config = openblas_get_config();
  const size_t space = config.find(' ');
  const size_t end = config.find(' ', space == std::string::npos ? space : space + 1);
  return config.substr(0, end) + " " + openblas_get_corename();
}

}  // namespace lorad::kernels::cpu
