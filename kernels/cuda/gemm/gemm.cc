#include "kernels/cuda/gemm/gemm.h"

#include <bit>
#include <cassert>
#include <cstring>

#include "kernels/batch.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/gemm/hopper_plan.h"
#include "kernels/cuda/gemm/library.h"
#include "kernels/cuda/gemm/terms.h"

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
  const TensorView& gate_up = arguments.gate_up;
  assert(y.columns == (forward ? weight.rows : weight.columns) * (gate_up.empty() ? 1 : 2));
  assert(x.rows == y.rows && weight.dtype == x.dtype);
  assert(y.dtype == x.dtype || y.dtype == DType::kFloat32);
  assert(Fits(x) && Fits(y) && Fits(weight));
  const TensorView& bias = arguments.bias;
  assert(bias.empty() || (forward && bias.columns == y.columns && bias.dtype == y.dtype));
  const TensorView& residual = arguments.residual;
  assert(residual.empty() || (residual.rows == y.rows && residual.columns == y.columns &&
                              residual.dtype == y.dtype && Fits(residual)));
  assert(gate_up.empty() || (!forward && gate_up.rows == y.rows && gate_up.columns == y.columns &&
                             gate_up.dtype == y.dtype && Fits(gate_up) && residual.empty()));
  assert(gate_up.empty() || y.columns / 2 * BytesOf(y.dtype) % 16 == 0);
  const TensorView& gated = arguments.gated;
  assert(gated.empty() || (forward && gated.rows == y.rows && 2 * gated.columns == y.columns &&
                           gated.dtype == y.dtype && Fits(gated) && bias.empty() &&
                           residual.empty() && gated.columns * BytesOf(y.dtype) % 16 == 0));
  const GemmRope& rope = arguments.rope;
  assert(rope.empty() || (forward && y.dtype == DType::kBfloat16 && residual.empty() &&
                          gated.empty() && FitsRope(rope, y.columns)));
  const bool loss = !arguments.exponentials.empty() || !arguments.target_rows.empty();
  assert(!loss || (arguments.terms.empty() && bias.empty() && residual.empty() && gated.empty() &&
                   gate_up.empty() && rope.empty() && forward == arguments.target_rows.empty()));
  const TensorView& s = arguments.coefficients;
  assert(arguments.terms.empty() || (s.rows == x.rows && s.dtype == x.dtype && Fits(s)));
}

HopperTile TileFor(const GemmArguments& arguments, int clusters) {
  const bool silu = arguments.gate == Gate::kSilu;
  if (!arguments.gated.empty()) return silu ? HopperTile::kSwiGlu192 : HopperTile::kGeGlu192;
  if (!arguments.gate_up.empty()) {
    return silu ? HopperTile::kSwiGluBackward192 : HopperTile::kGeGluBackward192;
  }
  if (!arguments.rope.empty()) return HopperTile::kRope192;
  if (!arguments.exponentials.empty()) return HopperTile::kExponentials192;
  // Masked terms in turns take longer than what turns save; and the loss's gradient, a few tiles of
  // very many steps, gains nothing.
  const bool turns = arguments.product == Product::kForward ||
                     (arguments.terms.empty() && arguments.target_rows.empty());
  return ChooseTile(arguments.y.rows, arguments.y.columns, arguments.x.columns, clusters, turns);
}

}  // namespace

bool FitsRope(const GemmRope& rope, int64_t columns) {
  const RopeTables& tables = rope.tables;
  return tables.head_size >= kRopeHeadMin && std::has_single_bit(uint32_t(tables.head_size)) &&
         columns % tables.head_size == 0 && rope.columns % tables.head_size == 0 &&
         rope.columns <= columns && tables.angle_stride % 2 == 0 &&
         reinterpret_cast<uintptr_t>(tables.angles) % 8 == 0;
}

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
      const TensorMap map = MapFactor(product, factor);
      std::memcpy(term.tensor_map, &map, sizeof(map));
    }
  }
  return term;
}

void Gemm::Run(const GemmArguments& arguments, void* workspace, cudaStream_t stream) {
  CheckArguments(arguments);
  if (arguments.x.rows == 0) return;
  if (impl_->hopper && arguments.y.dtype == DType::kBfloat16) {
    const HopperTile tile = TileFor(arguments, impl_->clusters);
    return LaunchHopper(arguments.product, tile, PlanHopper(arguments, tile), impl_->clusters,
                        stream);
  }
  assert(!arguments.awaits_late && arguments.gate_up.empty() && arguments.gated.empty());
  assert(arguments.rope.empty());
  assert(arguments.exponentials.empty() && arguments.target_rows.empty());
  impl_->library.Run(arguments, workspace, stream);
  if (!arguments.terms.empty()) AddTerms(arguments, stream);
}

}  // namespace lorad::kernels::cuda
