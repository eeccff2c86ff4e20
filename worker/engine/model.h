#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/arena.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "sizes/group.h"
#include "storage/models/model_description.h"
#include "worker/engine/model_parts.h"
#include "worker/engine/weights.h"

namespace lorad::worker {

using sizes::GroupShape;
using sizes::kRankMax;
using sizes::kSlotsMax;
using sizes::Recomputation;

// A stage of a base model: its weights, and memory for its microbatches in flight, each in a place
// of its own. Runs the table of a ModelDescription and knows no family by name. Forward keeps, per
// block and row, x at the block's entry (H); unless blocks are computed again, of attention: q, k,
// v after the rotary embedding, or as the product leaves them where they are normed ((N + 2G) D),
// its output (N D) and lse (N), of an MLP: gate and up (2F), of both what they leave where that is
// normed (H); if nothing is computed again, the norm's output as well (H a block), the SwiGLU
// product (F an MLP) and S.
//
// Counting: constructed over a counting arena, Weights and a Model hold nothing and
// arena.bytes_max() is what real ones take. The rules, every line rounded up to 64 bytes as one
// allocation (kernels/arena.h), T = capacity_tokens, P = longest_sequence, k = in_flight;
// activations, border, scratch and unit gradient are values of Backend::activation_dtype(), norms,
// rope, lse and log p are float32:
//   weights      whatever Backend::MakeLinear takes for: embedding [V, H]; per block the groups in
//                and out; head [V, H] unless tied (and on the same stage). Per norm H. All
//                that follows is the Model's own
//   rope         P D per distinct RopeSpec of the model, on every stage; 2 P D where longrope has
//                its second table (sizes::RopeRows)
//   activations  k times, per block: T H; unless blocks are computed again attention T (N + 2G) D,
//                T N D, T N; MLP 2 T F; if nothing is, T H more, T F of an MLP, and per linear
//                T LoraSavedColumns
//   border       T H (x behind the last block); k times where the head reads it again
//   scratch      three times T H (h, dh, dx), and the largest of: attention T (N + 2G) D + T N D
//                (dq, dk, dv and dout), MLP 2 T F (dy; y, unless it is kept), with what the block's
//                own forward leaves where blocks are computed again; with the head, logits of
//                min(kLogitRows, T) rows, float32
//   loss         with the head: T (log p), k times T H (unit gradient)
//   transfers    twice T H for each neighbour: what comes next, and what is on its way; on a GPU
//                once more, which is not of the arena: where it lands (LandingBytes)
//   workspace    whatever Backend::ReserveWorkspace takes
// Threads: one.
class Model {
 public:
  // Takes what is its own from `arena`, which must outlive the model, as must `backend` and
  // `weights`; these may be filled later.
  Model(kernels::Backend* backend, const Weights& weights, GroupShape shape, kernels::Arena& arena);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Bytes of its arena and of its weights.
  static int64_t CountBytes(kernels::Backend* backend, const storage::ModelDescription& description,
                            StageRange range, GroupShape shape);

  // What a transport takes of the device's memory beside the arena: where that is not the host's,
  // one tensor for each neighbour (worker/transport/device_transport.h).
  static int64_t LandingBytes(const kernels::Backend& backend,
                              const storage::ModelDescription& description, StageRange range,
                              GroupShape shape);

  // A microbatch of T' <= capacity rows in its place: 0 <= place < in_flight.
  struct Pass {
    const kernels::Batch& batch;
    int64_t rows = 0;
    int64_t loss_rows = 0;
    size_t place = 0;
  };
  // From the embedding, or from the place's input, up to log p of the loss rows, or to the output.
  // With `gradient` the place keeps what Backward needs, the unit gradients included.
  void Forward(const Pass& pass, const kernels::AdapterTable& table, bool gradient);
  // log p of the loss rows of the last Forward, read back without a wait (Backend::ReadBack).
  void ReadBackLogP(const Pass& pass, float* log_p);
  // Logits [n, V] of some rows of the last Forward, read back without a wait; host: dense. They
  // lie in scratch memory, and stay there until the next operation. REQUIRES: the head, and n <=
  // kLogitRows.
  void ReadBackLogits(const Pass& pass, std::span<const int32_t> rows, float* host);
  // Gradients of sum_i weights[i] * log_p[i], or those that the output's gradient leads to, added
  // into the slots' accumulators; the gradient of the input. Uses up what Forward kept in the
  // place. REQUIRES: loss rows, on a stage with the head.
  void Backward(const Pass& pass, kernels::AdapterTable& table, std::span<const float> weights);

  // ---- what crosses the borders, activations and their gradients [T, H] ----
  // A tensor is handed over by exchanging memory: what was there becomes the caller's.

  // The place's input, before Forward. REQUIRES: no embedding.
  void ExchangeInput(size_t place, kernels::TensorView& memory);
  // The output of the last Forward. REQUIRES: no head.
  void ExchangeOutput(kernels::TensorView& memory);
  // The output's gradient before Backward, the input's behind it.
  void ExchangeGradient(kernels::TensorView& memory);
  // Memory for what comes over a border next, and for what is on its way over it. Empty where
  // there is no neighbour.
  struct Border {
    kernels::TensorView coming;
    kernels::TensorView going;
  };
  const Border& before() const { return before_; }
  const Border& behind() const { return behind_; }

  // Row of the rope tables that position 0 of a sequence of so many rows has.
  int64_t FirstAngle(int64_t rows) const;

  // Linear groups as the backend's AdapterTable numbers them: `in` and `out` of every block.
  int32_t groups() const { return 2 * (range().end_block - range().first_block); }
  int32_t InGroup(int32_t block) const { return 2 * (block - range().first_block); }
  int32_t OutGroup(int32_t block) const { return InGroup(block) + 1; }

  // Projections that an adapter may train: each has two matrices.
  int64_t targets() const;

  const storage::ModelDescription& description() const { return weights_.description(); }
  const StageRange& range() const { return weights_.range(); }
  const GroupShape& shape() const { return shape_; }
  bool has_embedding() const { return weights_.embedding() != nullptr; }
  bool has_head() const { return weights_.head() != nullptr; }

 private:
  // What a block keeps of a microbatch; where it is computed again the memory is shared by all
  // blocks and places.
  struct Kept {
    kernels::TensorView x;    // [T, H]; always kept
    kernels::TensorView mix;  // attention: [T, (N + 2G) D]; MLP: [T, 2F]
    kernels::TensorView h;    // [T, H]: the norm's output
    kernels::TensorView y;    // [T, N D] or [T, F]: what the mixer gives to `out`
    kernels::TensorView lse;  // [T, N]; attention
    kernels::TensorView o;    // [T, H]: what `out` leaves, where that is normed
    // Saved by the LoRA linears, [T, LoraSavedColumns]; empty: computed again.
    kernels::TensorView in_saved;
    kernels::TensorView out_saved;
  };
  struct BlockState {
    const storage::Block* block = nullptr;
    int32_t index = 0;
    bool attention = false;
    const Weights::Block* weights = nullptr;
    kernels::HeadAngles angles;  // attention; empty where nothing turns
    std::vector<Kept> kept;      // [in_flight]
    // Scratch shared by all blocks: q and k as attention reads them where they are normed, and
    // gradients.
    kernels::TensorView scratch_qk;    // [T, (N + G) D]
    kernels::TensorView scratch_dy;    // [T, N D] or [T, F]
    kernels::TensorView scratch_dmix;  // [T, (N + 2G) D]; attention (the MLP's overwrites mix)
  };

  void LayBlocks(kernels::Arena& arena);
  void LayActivations(kernels::Arena& arena);
  void LayScratch(kernels::Arena& arena);
  void LayPlace(size_t place, kernels::Arena& arena);
  // What a block's forward leaves for its backward.
  void LayBlock(const BlockState& state, Kept& kept, kernels::Arena& arena) const;
  kernels::TensorView Activation(int64_t columns, kernels::Arena& arena) const;
  kernels::Limits BackendLimits() const;
  kernels::HeadAngles RopeTable(const storage::AttentionSpec& spec, kernels::Arena& arena);
  void FillRopeTables();

  // With as many rows as the microbatch has.
  static Kept KeptOf(const BlockState& state, const Pass& pass);
  // x, normed where the block has a norm before it.
  kernels::TensorView Input(const Pass& pass, const BlockState& state) const;
  void NormInput(const Pass& pass, const BlockState& state);
  // From x to y.
  void Mix(const Pass& pass, const BlockState& state, const kernels::AdapterTable& table);
  void MixAttention(const Pass& pass, const BlockState& state, const kernels::AdapterTable& table);
  void NormQk(const Pass& pass, const BlockState& state);
  // q, k and v as attention reads them.
  Qkv Attended(const Pass& pass, const BlockState& state) const;
  // From y to what is added to x, or normed first; `residual` and `to` as LoraLinear has them.
  void Leave(const Pass& pass, const BlockState& state, const kernels::AdapterTable& table,
             const kernels::TensorView& residual, const kernels::TensorView& to);
  // Computes what backward reads of the block and forward did not keep.
  void Restore(const Pass& pass, const BlockState& state, const kernels::AdapterTable& table);
  // `dout`: of what the block leaves.
  void BackwardAttention(const Pass& pass, const BlockState& state, const kernels::TensorView& dout,
                         kernels::AdapterTable& table);
  void BackwardMlp(const Pass& pass, const BlockState& state, const kernels::TensorView& dout,
                   kernels::AdapterTable& table);
  void BackwardBlock(const Pass& pass, const BlockState& state, kernels::AdapterTable& table);
  // The last norm's output of the last Forward's rows.
  kernels::TensorView NormedOutput(const Pass& pass);
  void BackwardHead(const Pass& pass, std::span<const float> weights);
  const kernels::TensorView& BorderAfter(size_t i, size_t place) const;

  kernels::Backend* const backend_;
  const Weights& weights_;
  const GroupShape shape_;

  struct RopeState {
    const storage::RopeSpec* rope;
    kernels::TensorView table;
  };
  std::vector<RopeState> ropes_;
  std::vector<BlockState> blocks_;
  std::vector<kernels::TensorView> borders_;  // [T, H]: x behind the last block; of each place
                                              // with the head, else one
  kernels::TensorView h_;       // [T, H]: the last norm's output, and those that are not kept
  kernels::TensorView dh_;      // [T, H]
  kernels::TensorView dx_;      // [T, H]: the residual's gradient
  kernels::TensorView log_p_;   // [1, T]
  kernels::TensorView logits_;  // [min(kLogitRows, T), V], in the blocks' scratch
  std::vector<kernels::TensorView> units_;  // [T, H]; of each place
  Border before_;
  Border behind_;
};

}  // namespace lorad::worker
