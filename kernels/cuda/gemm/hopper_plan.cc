#include "kernels/cuda/gemm/hopper_plan.h"

namespace lorad::kernels::cuda {
namespace {

// Tiles at work at one time then form about a square.
constexpr int kGroupTiles = 8;

int32_t CeilDivide(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

}  // namespace

TensorMap MapFactor(Product product, const TensorView& factor) {
  return MapBoxes(factor, product == Product::kForward ? kFactorBoxRows : kHopperStepColumns);
}

HopperArguments PlanHopper(const GemmArguments& arguments, HopperTile tile) {
  const bool forward = arguments.product == Product::kForward;
  const int64_t columns = forward ? arguments.weight.rows : arguments.weight.columns;
  const int tile_columns = ColumnsOf(tile);
  HopperArguments plan = {};
  plan.x = MapBoxes(arguments.x, 128);
  plan.weight = MapBoxes(arguments.weight, tile == HopperTile::kRope192 ? kFactorBoxRows
                                           : forward                    ? tile_columns / 2
                                                                        : kHopperStepColumns);
  if (IsSwiGlu(tile)) {
    const int64_t size = arguments.gated.columns;
    plan.gate = MapBoxes(arguments.y.Columns(0, size), 64, 32);
    plan.up = MapBoxes(arguments.y.Columns(size, size), 64, 32);
    plan.y = MapBoxes(arguments.gated, 64, 32);
  } else if (IsSwiGluBackward(tile)) {
    const int64_t size = arguments.y.columns / 2;
    plan.gate = MapBoxes(arguments.gate_up.Columns(0, size), 64);
    plan.up = MapBoxes(arguments.gate_up.Columns(size, size), 64);
    plan.dgate = MapBoxes(arguments.y.Columns(0, size), 64);
    plan.dup = MapBoxes(arguments.y.Columns(size, size), 64);
  } else if (tile == HopperTile::kRope192) {
    plan.y = MapBoxes(arguments.y, 64, 32);
  } else {
    plan.y = MapBoxes(arguments.y, 64);
  }
  plan.terms = arguments.terms;
  if (!arguments.terms.empty()) plan.coefficients = MapBoxes(arguments.coefficients, 128);
  if (!arguments.residual.empty()) {
    plan.has_residual = 1;
    plan.residual = MapBoxes(arguments.residual, 64);
  }
  plan.exponentials = arguments.exponentials;
  plan.target_rows = arguments.target_rows;
  plan.rope = arguments.rope;
  if (!arguments.target_rows.empty()) {
    plan.weight_rows = arguments.weight.data;
    plan.weight_stride = arguments.weight.row_stride;
  }
  plan.awaits_late = arguments.awaits_late ? 1 : 0;
  plan.bias = arguments.bias.data;
  plan.rows = static_cast<int32_t>(arguments.y.rows);
  plan.columns = static_cast<int32_t>(columns);
  plan.inner_steps = CeilDivide(arguments.x.columns, kHopperStepColumns);
  plan.row_tiles = CeilDivide(arguments.y.rows, kTermTileRows);
  plan.column_tiles = CeilDivide(columns, tile_columns);
  if (tile == HopperTile::kRope192) {
    const int64_t head_size = arguments.rope.tables.head_size;
    const int64_t heads = tile_columns / (2 * kRopePairs);
    plan.column_tiles =
        CeilDivide(columns, heads * head_size) * static_cast<int32_t>(head_size / (2 * kRopePairs));
  }
  plan.group_tiles = kGroupTiles;
  return plan;
}

HopperTile ChooseTile(int64_t rows, int64_t columns, int64_t inner, int clusters, bool turns) {
  const double steps = CeilDivide(inner, kHopperStepColumns);
  const int64_t row_tiles = CeilDivide(rows, kTermTileRows);
  // What a tile's results cost beside its products, in steps; in turns, only the last tile's show.
  constexpr double kFinishSteps = 2.3;
  // Narrow tiles wait for the L2 cache: they read more for each product.
  constexpr double kSlowness[] = {1, 1.15, 1, 1.12};
  HopperTile best = HopperTile::kTogether256;
  double best_time = 0;
  for (const HopperTile tile : kHopperTiles) {
    const double width = ColumnsOf(tile) * kSlowness[static_cast<int>(tile)];
    const double waves = CeilDivide(row_tiles * CeilDivide(columns, ColumnsOf(tile)), clusters);
    if (InTurns(tile) && !turns) continue;
    const double time = width * (waves * steps + (InTurns(tile) ? 1 : waves) * kFinishSteps);
    if (best_time == 0 || time < best_time) {
      best = tile;
      best_time = time;
    }
  }
  return best;
}

}  // namespace lorad::kernels::cuda
