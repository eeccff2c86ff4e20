// The operations of training, forward and backward side by side: one interface, one folder a device
// (cpu/).
//
// Rules for every operation:
// - Operations are enqueued in call order and take effect as if one after the other; results may be
//   read by the host after Synchronize(). The CPU's are done when the call returns. Opaque handles
//   must outlive what was enqueued on them.
// - Tensors are row-major views in the backend's memory. Activations and their gradients (x, y,
//   residual, dx, dy, q, k, v, out, dout, gate_up, unit) are of activation_dtype(); everything else
//   (lse, log_p, norm weights, rope tables, masters, moments) is float32, and so is every sum.
// - Outputs do not overlap inputs unless "may alias" is said, and then only as exactly the same
//   view. Nothing outside an output's view is written.
// - Rows: the bits of a row do not depend on other sequences, on its place in the microbatch, on
//   how many rows there are, or on the number of threads. Masks are selects: a NaN stays in its own
//   sequence (and its slot's gradients).
// - One thread calls a backend. Breaking a REQUIRES is a bug of the caller and ends the process (an
//   assert, which release builds keep: .bazelrc).
//
// A Backend holds no model: frozen weights are Linear handles, adapters an AdapterTable, a
// microbatch a Batch.
#pragma once

#include <cassert>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/arena.h"
#include "kernels/batch.h"
#include "kernels/device_copies.h"
#include "kernels/tensor.h"

namespace lorad::kernels {

// A microbatch, prepared once and used by all of its operations, forward and backward.
class Batch {
 public:
  virtual ~Batch() = default;
};

// A frozen weight W [O, K] with an optional bias [O], in whatever layout and type the backend
// likes.
class Linear {
 public:
  virtual ~Linear() = default;
};

// The adapters resident on this device, by (slot, linear group).
class AdapterTable {
 public:
  virtual ~AdapterTable() = default;
};

// The optimizer of one slot: the matrices that its steps change, described once.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
};

struct NormRequest {
  const Optimizer* optimizer = nullptr;
  double* sums = nullptr;  // [its tensors]
};

struct StepRequest {
  const Optimizer* optimizer = nullptr;
  AdamWOptions options;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // ---- the device ----

  virtual Device device() const = 0;
  // Type of activations and their gradients; weights are rounded to it.
  virtual DType activation_dtype() const = 0;
  // What decides bits: device type, library and its version, kernel variant. Equal ids give equal
  // bits.
  virtual std::string NumericsId() const = 0;
  // RESOURCE_EXHAUSTED where the system refuses. Pages are populated at once: resident memory is
  // what was planned.
  virtual absl::StatusOr<std::unique_ptr<Arena>> MakeArena(int64_t bytes) = 0;
  // The same in the host's memory, such that CopyToHost into it is fast.
  virtual absl::StatusOr<std::unique_ptr<Arena>> MakeHostArena(int64_t bytes) = 0;
  // Takes the operations' scratch memory from `arena` (counting: only adds it up); replaces the one
  // before it. The arena must outlive its use. REQUIRES: called with a real arena before any
  // operation below "operations".
  virtual void ReserveWorkspace(const Limits& limits, Arena& arena) = 0;
  // Waits for everything enqueued.
  virtual void Synchronize() = 0;
  // Remembers, under a number in 0..kMarks - 1, the moment at which everything enqueued so far is
  // done.
  static constexpr int kMarks = 80;
  virtual void Mark(int mark) = 0;
  // Waits for the moment of a mark; at once if it was never set.
  virtual void WaitFor(int mark) = 0;
  // Milliseconds from one mark to another; waits for both.
  virtual double MsBetween(int from, int to) = 0;
  // The moment of a mark by the host's clock: exact where operations run in their caller, else as
  // near as the device's clock can be held to the host's. REQUIRES: WaitFor, of it or of one that
  // was set after it.
  virtual std::chrono::steady_clock::time_point MomentOf(int mark) = 0;
  // Between host memory (dense, rows * columns float32 values) and a tensor of this device, rounded
  // or widened where its type is another. Host memory is read before CopyToDevice returns, and
  // written when CopyToHost returns (which waits for what is enqueued).
  virtual void CopyToDevice(const float* host, const TensorView& device) = 0;
  virtual void CopyToHost(const TensorView& device, float* host) = 0;

  // What is read back without a wait (ReadBack, SumsOfSquares, TakeOverflow) lands in memory of
  // MakeHostArena that stays as it is meanwhile, and is there once a mark has passed that was set
  // after the call.

  // The dense values of `device`, float32.
  virtual void ReadBack(const TensorView& device, float* host) = 0;

  // For those who carry tensors to other devices; null where memory is the host's: they read and
  // write it themselves. The backend outlives it.
  virtual std::unique_ptr<DeviceCopies> MakeCopies() { return nullptr; }

  // ---- handles ----

  // Memory for W [O, K] and, with has_bias, a bias [O], from `arena`. A counting arena gives a
  // handle without contents.
  virtual std::unique_ptr<Linear> MakeLinear(int64_t outputs, int64_t inputs, bool has_bias,
                                             Arena& arena) = 0;
  // Host memory for rows [first, first + count) of W, float32 [count, K] dense, to be filled until
  // the next Unmap: a model loads into it without a copy where the layout allows. One mapping at a
  // time; contents are unspecified.
  virtual float* MapRows(Linear& linear, int64_t first, int64_t count) = 0;
  // The same for entries [first, first + count) of the bias. REQUIRES: made with has_bias.
  virtual float* MapBias(Linear& linear, int64_t first, int64_t count) = 0;
  // Ends the mapping: its rows are now the weight's.
  virtual void Unmap(Linear& linear) = 0;

  // `groups` counts the linear groups of this stage, numbered by the caller; all slots empty.
  virtual std::unique_ptr<AdapterTable> MakeAdapterTable(int32_t slots, int32_t groups) = 0;
  // The targets of `slot` in `group`, replacing what was there; ascending, disjoint output ranges.
  // Empty: none.
  virtual void SetTargets(AdapterTable& table, int32_t slot, int32_t group,
                          std::span<const LoraTarget> targets) = 0;
  // All groups of the slot empty, its overflow mark cleared.
  virtual void ClearSlot(AdapterTable& table, int32_t slot) = 0;
  // *marked = 1 if since the last call a chunk's gradient of this slot was not finite or reached
  // kGradientLimit, else 0; clears the slot's mark. marked: read back without a wait (see
  // ReadBack).
  virtual void TakeOverflow(AdapterTable& table, int32_t slot, int32_t* marked) = 0;

  // Copies the description. REQUIRES: its invariants (batch.h).
  virtual std::unique_ptr<Batch> PrepareBatch(const BatchDescription& description) = 0;

  // ---- operations ----

  // x = 0.  x: any matrix, out.
  virtual void Zero(const TensorView& x) = 0;

  // to = from, rounded to the nearest (ties to even) of its type, in the rows and columns of from;
  // zero in the rest of `to`.  from: float32; to: any type, at least as large, out.
  virtual void Cast(const TensorView& from, const TensorView& to) = 0;

  // x[t] = factor W[ids[t]].  table: W [V, H]; x [T, H] out. REQUIRES: 0 <= ids < V.
  virtual void Embed(const Batch& batch, const Linear& table, float factor,
                     const TensorView& x) = 0;

  // y = x * rsqrt(mean(x^2) + eps) * w, per row.  x [T, H]; weight [1, H]; y [T, H] out, may alias
  // x. Zhang & Sennrich 2019 (arXiv 1910.07467), eq. 4.
  virtual void RmsNorm(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
                       const TensorView& y) = 0;
  // dx += dL/dx, with r = rsqrt(mean(x^2) + eps):  r * (w dy - x * r^2 * mean(w dy x)).
  // x, dy [T, H]; dx [T, H] in and out (the residual's gradient). r is computed again from x. No
  // gradient of w.
  virtual void RmsNormBackward(const Batch& batch, const TensorView& x, const TensorView& weight,
                               float eps, const TensorView& dy, const TensorView& dx) = 0;

  // The same gradient, written:  dx = dL/dx.  dx [T, H] out, may alias x or dy.
  virtual void RmsNormGradient(const Batch& batch, const TensorView& x, const TensorView& weight,
                               float eps, const TensorView& dy, const TensorView& dx) = 0;
  // A norm behind an output:  y = residual + RmsNorm(x).  x, residual [T, H]; y [T, H] out, may
  // alias either.
  virtual void RmsNormAdd(const Batch& batch, const TensorView& x, const TensorView& weight,
                          float eps, const TensorView& residual, const TensorView& y) = 0;
  // y += x.  x [T, H]; y [T, H] in and out.
  virtual void Add(const Batch& batch, const TensorView& x, const TensorView& y) = 0;

  // The norms of q and k before they are turned: y = Rope(RmsNorm(x)), where every run of columns
  // that a weight is wide is normed by itself. x [T, C]; y [T, C] out, no alias; angles: the table
  // of Rope, or empty: nothing is turned. Henry et al. 2020 (arXiv 2010.04245), with RMSNorm.
  virtual void QkNormRope(const Batch& batch, const TensorView& x, const QkNorm& norm,
                          const HeadAngles& angles, const TensorView& y) = 0;
  // d = dL/dx from dL/d RmsNorm(x), run by run: the formula of RmsNormBackward, written in place of
  // what it is made of.  x [T, C] as QkNormRope had it; d [T, C] in and out.
  virtual void QkNormBackward(const Batch& batch, const TensorView& x, const QkNorm& norm,
                              const TensorView& d) = 0;

  // cos and sin of position * inverse_frequency[d], as transformers computes them (float32
  // product), times `factor`. table [P, D]: cos in columns 0..D/2-1, sin in the rest; out.
  // inverse_frequencies: D/2, host.
  virtual void FillRope(std::span<const float> inverse_frequencies, float factor,
                        const TensorView& table) = 0;
  // Rotates every head of every row by its position, in place: with c, s of the table's row (the
  // position, from the segment's first_angle on) and d < R/2, R the table's columns,
  //   (x[d], x[d + R/2]) <- (x[d] c[d] - x[d + R/2] s[d],  x[d + R/2] c[d] + x[d] s[d]).
  // x [T, heads * D] in and out (query and key heads side by side may be one call); table as above,
  // P > any such row. Su et al. 2021 (arXiv 2104.09864), in the half-split form of transformers.
  virtual void Rope(const Batch& batch, const HeadAngles& angles, const TensorView& x) = 0;
  // The transpose (rotation by minus the angle) of gradients, in place.
  virtual void RopeBackward(const Batch& batch, const HeadAngles& angles, const TensorView& dx) = 0;

  // Causal attention inside each segment, head h reading key-value head h / (N / G):
  //   s = cap tanh(scale q k^T / cap), or scale q k^T where cap is 0,
  //   out = softmax(s, keys that the query sees) v,  lse = log sum exp of the same s.
  // A query sees the `window` last keys up to its own, or all up to its own where window is 0.
  // q, out [T, N*D]; k, v [T, G*D]; lse [T, N]; out and lse written. No two views overlap (q, k, v
  // may be columns of one buffer). Dao 2023 (arXiv 2307.08691), sections 3.1 and 2.3; windows:
  // Jiang et al. 2023 (arXiv 2310.06825), section 2; caps: Gemma Team 2024 (arXiv 2408.00118),
  // section 2.
  virtual void Attention(const Batch& batch, const AttentionShape& shape, const TensorView& q,
                         const TensorView& k, const TensorView& v, const TensorView& out,
                         const TensorView& lse) = 0;
  // dq, dk, dv from dout, with p = exp(s - lse), delta = sum(dout * out), and c = 1 - (s / cap)^2,
  // or 1 where cap is 0:
  //   dv = p^T dout,  ds = p * (dout v^T - delta) * c,  dq = scale ds k,  dk = scale ds^T q,  dk
  //   and dv summed over the heads of a key-value head in fixed order. All three are written, not
  //   added to.
  virtual void AttentionBackward(const Batch& batch, const AttentionShape& shape,
                                 const TensorView& q, const TensorView& k, const TensorView& v,
                                 const TensorView& out, const TensorView& lse,
                                 const TensorView& dout, const TensorView& dq, const TensorView& dk,
                                 const TensorView& dv) = 0;

  // y = gate(g) * u, gate(g) = g sigmoid(v): SwiGLU, or GeGLU (Gate, batch.h).  gate_up [T, 2F]: g
  // in columns 0..F-1, u in F..2F-1; y [T, F] out. Shazeer 2020 (arXiv 2002.05202), eq. 6.
  virtual void SwiGlu(const Batch& batch, Gate gate, const TensorView& gate_up,
                      const TensorView& y) = 0;
  // du = dy * gate(g),  dg = dy * u * sigmoid(v) (1 + g v' (1 - sigmoid(v))), v' = dv/dg.  dy [T,
  // F]; dgate_up [T, 2F] out, may alias gate_up.
  virtual void SwiGluBackward(const Batch& batch, Gate gate, const TensorView& gate_up,
                              const TensorView& dy, const TensorView& dgate_up) = 0;

  // Multi-adapter LoRA linear. For the rows of a segment whose slot has targets in `group` (others:
  // the plain linear), with D the dropout mask over inverse keep probability (1 where not
  // training), per target of outputs o:
  //   S = s (D * x) A^T,   y = residual + x W^T + bias,   y[:, o] += S B^T.
  // x [T, K]; y [T, O] out; residual [T, O] or empty (then absent), may alias y.
  // saved [T, LoraSavedColumns] of the activation type, or empty: room for S, for the backward.
  // Hu et al. 2021 (arXiv 2106.09685), section 4.1; many adapters at once: docs/kernels.md.
  virtual void LoraLinear(const Batch& batch, const Linear& linear, const AdapterTable& table,
                          int32_t group, const TensorView& x, const TensorView& residual,
                          const TensorView& y, const TensorView& saved) = 0;
  // Input gradient, and the gradients of A and B of every training segment:
  //   dS = s dy[:, o] B,  dx = dy W + D * (dS A),  db += dy[:, o]^T S,  da += dS^T (D * x).
  // x [T, K] (read for training segments with targets), dy [T, O]; dx [T, K] written, or empty
  // where nobody needs it. saved: as the forward of this microbatch had it; empty: S is computed
  // again, as D always is. da and db: fp32 inside a chunk, then added
  // in fixed point (batch.h); a chunk's value that is not finite or too large marks the slot
  // (TakeOverflow) and adds an unspecified amount.
  virtual void LoraLinearBackward(const Batch& batch, const Linear& linear, AdapterTable& table,
                                  int32_t group, const TensorView& x, const TensorView& dy,
                                  const TensorView& dx, const TensorView& saved) = 0;

  // LoraLinear without a residual, then Rope of the first `rotated` columns of y, whole heads: the
  // same bits as by those two, where a backend can without a pass over y.
  // x [T, K]; y [T, O] out; angles: as Rope has them.
  virtual void LoraLinearRope(const Batch& batch, const Linear& linear, const AdapterTable& table,
                              int32_t group, const TensorView& x, const HeadAngles& angles,
                              int64_t rotated, const TensorView& y, const TensorView& saved) {
    LoraLinear(batch, linear, table, group, x, {}, y, saved);
    Rope(batch, angles, y.Columns(0, rotated));
  }
  // AttentionBackward, then RopeBackward of dq and dk: the same bits as by those two, where a
  // backend can without a pass over them. dk begins where dq's columns end, in the same buffer.
  virtual void AttentionRopeBackward(const Batch& batch, const AttentionShape& shape,
                                     const HeadAngles& angles, const TensorView& q,
                                     const TensorView& k, const TensorView& v,
                                     const TensorView& out, const TensorView& lse,
                                     const TensorView& dout, const TensorView& dq,
                                     const TensorView& dk, const TensorView& dv) {
    AttentionBackward(batch, shape, q, k, v, out, lse, dout, dq, dk, dv);
    TensorView dqk = dq;
    dqk.columns += dk.columns;
    assert(dk.data == dqk.Columns(dq.columns, dk.columns).data);
    RopeBackward(batch, angles, dqk);
  }

  // LoraLinear where y is gate beside up, and SwiGlu of it: the same bits as by those two, where a
  // backend can without reading y again.
  // x [T, K]; y [T, 2F] out; gated [T, F] out.
  virtual void LoraLinearSwiGlu(const Batch& batch, const Linear& linear, const AdapterTable& table,
                                int32_t group, Gate gate, const TensorView& x, const TensorView& y,
                                const TensorView& gated, const TensorView& saved) {
    LoraLinear(batch, linear, table, group, x, {}, y, saved);
    SwiGlu(batch, gate, y, gated);
  }
  // LoraLinearBackward where the linear's input was y = SwiGlu(gate_up), then SwiGluBackward with
  // its dx: the same bits as by those two, where a backend can without a pass over dx. y [T, F];
  // gate_up [T, 2F]; dgate_up [T, 2F] out, may alias gate_up; dx [T, F] scratch: written or not.
  virtual void LoraLinearSwiGluBackward(const Batch& batch, const Linear& linear,
                                        AdapterTable& table, int32_t group, Gate gate,
                                        const TensorView& gate_up, const TensorView& y,
                                        const TensorView& dy, const TensorView& dx,
                                        const TensorView& dgate_up, const TensorView& saved) {
    LoraLinearBackward(batch, linear, table, group, y, dy, dx, saved);
    SwiGluBackward(batch, gate, gate_up, dx, dgate_up);
  }

  // Head and loss over the loss rows i (row r_i, target t_i) alone, in one pass over tiles of the
  // vocabulary:
  //   z = W x[r_i], or cap tanh(W x[r_i] / cap) where cap is not 0;  c = 1 - (z / cap)^2, or 1
  //   log_p[i] = z[t_i] - log sum exp(z);   unit[i] = d log_p[i] / dx[r_i] = c[t_i] W[t_i]
  //   - (softmax(z) * c) W.
  // x [T, H]; head: W [V, H], without bias; log_p [1, n] out; unit
  // [n, H] out, or empty where no gradient is wanted; rows of unit whose segment does not train are
  // left as they were. No V-wide row is ever kept. Milakov & Gimelshein 2018 (arXiv 1805.02867),
  // algorithm 3, rescaled as in flash attention.
  virtual void LinearLoss(const Batch& batch, const TensorView& x, const Linear& head, float cap,
                          const TensorView& log_p, const TensorView& unit) = 0;
  // dx[r_i] = weights[i] * unit[i] for the loss rows of training segments, exact zero in all other
  // rows. weights: n, host, read before the call returns; unit [n, H]; dx [T, H] out.
  virtual void LossBackward(const Batch& batch, std::span<const float> weights,
                            const TensorView& unit, const TensorView& dx) = 0;

  // The head over some rows alone, whole as no other operation has it:
  //   z[i] = W x[rows[i]], or cap tanh(W x[rows[i]] / cap) where cap is not 0.
  // x [T, H]; rows: n, host, read before the call returns, 0 <= rows[i] < T; head: W [V, H],
  // without bias; z [n, V] float32 out, its rows a multiple of 16 bytes apart. The bits of z[i] are
  // a function of its row of x alone.
  virtual void Logits(const Batch& batch, const TensorView& x, std::span<const int32_t> rows,
                      const Linear& head, float cap, const TensorView& z) = 0;

  // ---- slots and the optimizer ----

  // New A of PEFT: uniform in [-1/sqrt(K), 1/sqrt(K)) (Kaiming, a = sqrt 5), a function of (seed,
  // layer, target, element). a [R, K] dense, out.
  virtual void InitializeA(uint64_t seed, int32_t layer, int32_t target, const TensorView& a) = 0;
  // Keeps where the tensors lie. May end as soon as what uses it is enqueued; before the backend.
  virtual std::unique_ptr<Optimizer> MakeOptimizer(std::span<const OptimizerTensor> tensors) = 0;
  // Slots that end a batch together come in one call, each once. A slot's bits do not depend on the
  // others.
  //
  // sums[i] = sum of gradient^2 over the elements of tensor i, in fp64 in an order that its length
  // fixes; infinity where an accumulator lies outside +-kGradientLimit. A tensor's sum does not
  // depend on the others, so the stages of a model may each form those of their own. sums: read
  // back without a wait (see ReadBack).
  virtual void SumsOfSquares(std::span<const NormRequest> requests) = 0;
  // The sum over all tensors of a slot, from SumsOfSquares of all of them in the slot's order: on
  // the host, in an order that their number fixes, which belongs to what NumericsId stands for.
  virtual double FoldSums(std::span<const double> sums) const = 0;
  // One step of torch.optim.AdamW on every tensor (Loshchilov & Hutter 2019, arXiv 1711.05101,
  // algorithm 2), lr the learning rate times the tensor's factor:
  //   g = clip_factor * gradient;  p *= 1 - lr wd;  m += (1 - beta1)(g - m);
  //   v = beta2 v + (1 - beta2) g^2;
  //   p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps);
  //   copy = p rounded to its type, where there is a copy;  gradient = 0.
  virtual void AdamW(std::span<const StepRequest> requests) = 0;
  // gradient = 0 without a step.
  virtual void DropGradients(const Optimizer& optimizer) = 0;
};

}  // namespace lorad::kernels
