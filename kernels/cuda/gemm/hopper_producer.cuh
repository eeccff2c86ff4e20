// The producer of the product kernel (hopper.h): one thread that fills the ring, and a warp that
// prepares the terms.
#pragma once

#include "kernels/cuda/gemm/hopper.cuh"

namespace lorad::kernels::cuda {

// By one warp: the first terms' numbers into shared memory, and their tensor maps for use.
template <typename Shape>
__device__ void PrepareTerms(const HopperArguments& arguments, SharedMemory<Shape>& shared) {
  const LowRankTable& table = arguments.terms;
  if (table.empty()) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = lane; i < table.count; i += 32) {
    if (i < kTermsCached) shared.terms[i] = NoteOf(table.terms[i]);
    ptx::AcquireTensorMap(table.terms[i].tensor_map);
  }
  ptx::Arrive(ptx::SharedAddress(&shared.terms_ready));
}

inline constexpr uint16_t kBothBlocks = 3;

template <Product kProduct, typename Shape>
class Producer {
 public:
  __device__ Producer(const HopperArguments& arguments, SharedMemory<Shape>& shared)
      : arguments_(arguments),
        shared_(shared),
        rank_(ptx::ClusterRank()),
        has_terms_(!arguments.terms.empty()) {}

  __device__ void Run() {
    const int tiles = arguments_.row_tiles * arguments_.column_tiles;
    if (has_terms_) ptx::Wait(ptx::SharedAddress(&shared_.terms_ready), 0);
    for (int tile = FirstTile(); tile < tiles; tile += TileStride()) FillTile(tile);
    ptx::AllowNextLaunch();
  }

 private:
  static constexpr auto kB = kContiguousOf<kProduct>;
  static constexpr bool kSwiGlu = Shape::kFinish == Finish::kSwiGlu;
  static constexpr bool kRope = Shape::kFinish == Finish::kRope;

  __device__ TermNote Term(int index) const { return TermAt(arguments_, shared_, index); }
  __device__ static bool Masked(const TermNote& term) { return term.mask_words != nullptr; }
  __device__ static bool Touches(const TermNote& term, int column, int columns) {
    return term.first_output < column + columns && column < term.first_output + term.outputs;
  }
  // Whether any of the tile's columns, of which `column` is the first, is the term's.
  __device__ bool Touches(const TermNote& term, int column) const {
    if (kRope) {
      // And what lies between them, of which the factor's are zeros.
      return Touches(term, column, ColumnOf(column, Shape::kColumns - 1) + 1 - column);
    }
    if (!kSwiGlu) return Touches(term, column, Shape::kColumns);
    return Touches(term, column, Shape::kOuts) ||
           Touches(term, arguments_.columns / 2 + column, Shape::kOuts);
  }

  __device__ void FillTile(int tile) {
    const TilePosition position = PositionOf(tile, arguments_);
    const int row = position.row_tile * kClusterRows + static_cast<int>(rank_) * kBlockRows;
    const int column = FirstColumn<Shape>(position.column_tile, arguments_);
    const StageNote note = CountTerms(position.row_tile, column);
    for (int step = 0; step < arguments_.inner_steps; ++step) {
      Begin(note);
      ptx::LoadBox(Stage(), &arguments_.x, step * kBox, row, Full());
      LoadWeight(step * kBox, column);
      ring_.Next();
    }
    if (arguments_.awaits_late != 0) ptx::AwaitPreviousKernel();
    if (note.term_steps > 0) FillTerms(position.row_tile, row, column, false);
    if (note.masked_steps > 0) FillTerms(position.row_tile, row, column, true);
  }

  __device__ StageNote CountTerms(int row_tile, int column) const {
    StageNote note = {.term_steps = 0, .masked_steps = 0, .products = 4, .term = 0};
    if (!has_terms_) return note;
    const LowRankTable& table = arguments_.terms;
    int steps = 0;
    int masked_steps = 0;
    const int end = table.first[row_tile + 1];
    for (int i = table.first[row_tile]; i < end; ++i) {
      const TermNote term = Term(table.list[i]);
      if (!Touches(term, column)) continue;
      if (Masked(term) && masked_steps == 0) note.term = table.list[i];
      (Masked(term) ? masked_steps : steps) += (term.rank + kBox - 1) / kBox;
    }
    note.term_steps = static_cast<int16_t>(steps);
    note.masked_steps = static_cast<int16_t>(masked_steps);
    return note;
  }

  // Those terms with, or those without a mask.
  __device__ void FillTerms(int row_tile, int row, int column, bool masked) {
    const LowRankTable& table = arguments_.terms;
    const int end = table.first[row_tile + 1];
    for (int i = table.first[row_tile]; i < end; ++i) {
      const int index = table.list[i];
      const TermNote term = Term(index);
      if (Masked(term) == masked && Touches(term, column)) FillTerm(index, term, row, column);
    }
  }

  // Waits for a free stage.
  __device__ void Begin(const StageNote& note) {
    ptx::Wait(ptx::SharedAddress(&shared_.empty[ring_.at.stage]), ring_.at.parity ^ 1);
    shared_.notes[ring_.at.stage] = note;
    ptx::ArriveExpect(Full(), Shape::kStageBytes);
  }
  __device__ uint32_t Full() const { return ptx::SharedAddress(&shared_.full[ring_.at.stage]); }
  __device__ uint32_t Stage() const { return ptx::SharedAddress(shared_.stages[ring_.at.stage]); }

  // This block's half of the weight's columns, to both blocks.
  __device__ void LoadWeight(int inner, int column) {
    if constexpr (kRope) {
      LoadBoxes<kFactorBoxRows>(&arguments_.weight, column, inner, 0);
    } else if constexpr (kProduct == Product::kForward) {
      const int half = static_cast<int>(rank_) * (Shape::kColumns / 2);
      ptx::LoadBoxToAll(Stage() + Shape::kXBytes + half * kBox * 2, &arguments_.weight, inner,
                        ColumnOf(column, half), Full(), kBothBlocks);
    } else {
      LoadBoxes<kBox>(&arguments_.weight, column, inner, 0);
    }
  }

  // The product's column that is column `at` of the tile from `column`.
  __device__ int ColumnOf(int column, int at) const {
    if constexpr (kRope) {
      const int pair = at % Shape::kOuts;
      return column + pair / kRopePairs * arguments_.rope.tables.head_size + pair % kRopePairs +
             at / Shape::kOuts * (arguments_.rope.tables.head_size / 2);
    }
    return kSwiGlu && at >= Shape::kOuts ? arguments_.columns / 2 + column + at - Shape::kOuts
                                         : column + at;
  }

  // Every other box, the other block the rest, of kWide of the tile's columns, which are rows or
  // columns (kOuter) of a matrix from the product's column first_output.
  template <int kWide>
  __device__ void LoadBoxes(const void* map, int column, int inner, int first_output) {
    constexpr bool kOuter = kB == wgmma::Contiguous::kOuter;
#pragma unroll
    for (int box = 0; box < Shape::kColumns / kWide; ++box) {
      if (box % 2 != static_cast<int>(rank_)) continue;
      const int outer = ColumnOf(column, box * kWide) - first_output;
      ptx::LoadBoxToAll(Stage() + Shape::kXBytes + box * kWide * kBox * 2, map,
                        kOuter ? outer : inner, kOuter ? inner : outer, Full(), kBothBlocks);
    }
  }

  __device__ void FillTerm(int index, const TermNote& term, int row, int column) {
    const void* map = arguments_.terms.terms[index].tensor_map;
    for (int first = 0; first < term.rank; first += kBox) {
      Begin({.term_steps = 0,
             .masked_steps = 0,
             .products = min(kBox, term.rank - first) / 16,
             .term = index});
      ptx::LoadBox(Stage(), &arguments_.coefficients, term.first_column + first, row, Full());
      constexpr int kRows = kProduct == Product::kForward ? kFactorBoxRows : kBox;
      LoadBoxes<kRows>(map, column, first, term.first_output);
      ring_.Next();
    }
  }

  const HopperArguments& arguments_;
  SharedMemory<Shape>& shared_;
  const uint32_t rank_;
  const bool has_terms_;
  Ring<Shape> ring_;
};

}  // namespace lorad::kernels::cuda
