// Matrix products by oneDNN, which makes its kernels for the CPU at hand at run time. Each call
// runs on the calling thread alone; many threads may call at once. Row-major; lda, ldb, ldc are row
// strides. With beta 0, c is written and never read.
#pragma once

#include <cstdint>
#include <string>

namespace lorad::kernels::cpu {

// c [m, n] = alpha a b^T + beta c;  a [m, k], b [n, k].
void MultiplyNT(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
// c [m, n] = alpha a b + beta c;  a [m, k], b [k, n].
void MultiplyNN(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
// c [m, n] = alpha a^T b + beta c;  a [k, m], b [k, n].
void MultiplyTN(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

// Library, version and kernel: what decides a product's bits.
std::string MatmulId();

}  // namespace lorad::kernels::cpu
