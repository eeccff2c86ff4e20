#include "kernels/cuda/gemm.h"

#include <cassert>
#include <cstring>

#include "kernels/batch.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm_hopper_plan.h"
#include "kernels/cuda/gemm_library.h"
#include "kernels/cuda/gemm_terms.h"

namespace lorad::kernels::cuda {
namespace {

bool Fits(const TensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
         view.row_stride * BytesOf(view.dtype) % 16 == 0;
}

void CheckArguments(const GemmArguments& arguments) {
  const bool forward = arguments.product == Product::kForward;
  const TensorView& x = arguments.x;
  const TensorView& y = arguments.y;
  const TensorView& weight = arguments.weight;
  assert(x.columns == (forward ? weight.columns : weight.rows));
  assert(y.columns == (forward ? weight.rows : weight.columns));
  assert(x.rows == y.rows && weight.dtype == x.dtype);
  assert(y.dtype == x.dtype || y.dtype == DType::kFloat32);
  assert(Fits(x) && Fits(y) && Fits(weight));
  const TensorView& bias = arguments.bias;
  assert(bias.empty() || (forward && bias.columns == y.columns && bias.dtype == y.dtype));
  const TensorView& residual = arguments.residual;
  assert(residual.empty() || (residual.rows == y.rows && residual.columns == y.columns &&
                              residual.dtype == y.dtype && Fits(residual)));
  const TensorView& s = arguments.coefficients;
  assert(arguments.terms.empty() || (s.rows == x.rows && s.dtype == x.dtype && Fits(s)));
}

}  // namespace

struct Gemm::Impl {
  LibraryGemm library;
  bool hopper = false;
  int clusters = 0;
};

Gemm::Gemm(const GemmOptions& options) : impl_(std::make_unique<Impl>()) {
  int device = 0;
  int major = 0;
  int multiprocessors = 0;
  LORAD_CUDA_CHECK(cudaGetDevice(&device));
  LORAD_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  LORAD_CUDA_CHECK(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  impl_->hopper = options.own_kernel && major == 9;
  impl_->clusters = multiprocessors / 2;
}

Gemm::~Gemm() = default;

std::string Gemm::Id() const {
  return impl_->hopper ? "wgmma-1/" + LibraryGemm::Id() : LibraryGemm::Id();
}

int64_t Gemm::WorkspaceBytes() { return LibraryGemm::kWorkspaceBytes; }

bool Gemm::own() const { return impl_->hopper; }

LowRankTerm Gemm::MakeTerm(Product product, const TensorView& factor, int64_t first_column,
                           int64_t first_output, const DropMask& mask) const {
  const bool forward = product == Product::kForward;
  assert(forward || first_output == 0);
  assert(!forward || mask.words == nullptr);
  LowRankTerm term;
  term.factor = factor.data;
  term.factor_stride = factor.row_stride;
  term.mask_words = mask.words;
  term.mask_row_words = mask.row_words;
  term.mask_scale = mask.scale;
  term.rank = static_cast<int32_t>(forward ? factor.columns : factor.rows);
  term.first_column = static_cast<int32_t>(first_column);
  term.first_output = static_cast<int32_t>(first_output);
  term.outputs = static_cast<int32_t>(forward ? factor.rows : factor.columns);
  if (factor.dtype == DType::kBfloat16) {
    assert(first_column % kRankAlignment == 0 && term.rank % kRankAlignment == 0);
    assert(Fits(factor));
    if (impl_->hopper) {
      const TensorMap map = MapFactor(factor);
      std::memcpy(term.tensor_map, &map, sizeof(map));
    }
  }
  return term;
}

void Gemm::Run(const GemmArguments& arguments, void* workspace, cudaStream_t stream) {
  CheckArguments(arguments);
  if (arguments.x.rows == 0) return;
  if (impl_->hopper && arguments.y.dtype == DType::kBfloat16) {
    // Masked terms in turns take longer than what turns save.
    const bool turns = arguments.product == Product::kForward || arguments.terms.empty();
    const HopperTile tile = ChooseTile(arguments.y.rows, arguments.y.columns, arguments.x.columns,
                                       impl_->clusters, turns);
    return LaunchHopper(arguments.product, tile, PlanHopper(arguments, tile), impl_->clusters,
                        stream);
  }
  assert(!arguments.early);
  impl_->library.Run(arguments, workspace, stream);
  if (!arguments.terms.empty()) AddTerms(arguments, stream);
}

}  // namespace lorad::kernels::cuda
