// What the conformance tests share: backends under test, seeds, random inputs, guarded tensors,
// batches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/tolerances.h"

namespace lorad::kernels::testing {

// A fixed seed, then a random one, printed. With --rng-seed N on the command line: N alone.
std::vector<uint64_t> Seeds();

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int64_t Integer(int64_t low, int64_t high);  // both included
  double Uniform(double low, double high);

 private:
  uint64_t state_;
};

// The reference's numbers.
struct Matrix {
  Matrix() = default;
  Matrix(int64_t row_count, int64_t column_count)
      : rows(row_count),
        columns(column_count),
        values(static_cast<size_t>(row_count * column_count)) {}
  double& at(int64_t row, int64_t column) {
    return values[static_cast<size_t>(row * columns + column)];
  }
  double at(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(row * columns + column)];
  }

  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;
};

// Values in [-size, size] that float32 holds exactly.
Matrix RandomMatrix(Random& random, int64_t rows, int64_t columns, double size = 1);

// Every backend this machine can run. The conformance tests go over all of them.
struct BackendCase {
  std::string name;
  std::function<std::unique_ptr<Backend>()> make;
  // Backends of one family promise each other the same bits; of an empty one, not even themselves.
  std::string family = {};
  bool large = false;  // fast enough for models of real size
};
// Says on standard output why there is none of a kind. Of backends.cc, or gpu_backends.cc.
std::vector<BackendCase> Backends();
Limits TestLimits();

// A backend of its own with its workspace and `arena_bytes` beside it, one per test case.
class World {
 public:
  World(const BackendCase& backend, const Limits& limits = TestLimits(),
        int64_t arena_bytes = int64_t{96} << 20);

  Backend& backend() { return *backend_; }
  Arena& arena() { return *arena_; }

  // `columns` raised to what the backend's products can take: whole words of 16 bytes, on a GPU.
  int64_t Columns(int64_t columns) const { return (columns + grain_ - 1) / grain_ * grain_; }
  // Values in [-size, size] that the activation type holds exactly.
  Matrix RandomMatrix(Random& random, int64_t rows, int64_t columns, double size = 1) const;
  // `value` rounded to the activation type.
  double Rounded(double value) const;
  Tolerance Within(const OperationTolerance& tolerance) const {
    return bfloat16_ ? tolerance.bfloat16 : tolerance.float32;
  }

  // Plain copies of device memory. `bytes` is a multiple of 4.
  void Write(const void* host, int64_t bytes, void* device);
  void Read(const void* device, int64_t bytes, void* host);
  // What the backend reads back without a wait, waited for.
  double SumOfSquares(std::span<const OptimizerTensor> tensors);  // folded
  std::vector<double> SumsOfSquares(std::span<const OptimizerTensor> tensors);
  // Of slots with so many tensors each, in one call.
  std::vector<std::vector<double>> SumsOfSquares(std::span<const Optimizer* const> optimizers,
                                                 std::span<const size_t> tensors);
  bool TakeOverflow(AdapterTable& table, int32_t slot);
  // With an optimizer of this call's own.
  void Step(const AdamWOptions& options, std::span<const OptimizerTensor> tensors);
  void DropGradients(std::span<const OptimizerTensor> tensors);

 private:
  TensorView Words(const void* device, int64_t bytes) const;

  static constexpr int64_t kReadingBytes = 4096;

  int64_t grain_ = 1;
  bool bfloat16_ = false;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Arena> readings_;  // in the host's memory
};

// What a matrix holds: of the backend's activation type, or float32 whatever that is.
enum class Kind { kActivation, kFloat32 };

// A matrix on the device with sentinels before, after and between its rows.
class Guarded {
 public:
  // Contents NaN: an operation that reads its output before writing it shows.
  Guarded(World& world, int64_t rows, int64_t columns, Kind kind = Kind::kActivation,
          int64_t spare_columns = 3);
  Guarded(World& world, const Matrix& contents, Kind kind = Kind::kActivation,
          int64_t spare_columns = 3);

  const TensorView& view() const { return view_; }
  void Write(const Matrix& contents);
  Matrix Read() const;
  std::vector<float> Bits() const;
  // True if no sentinel was overwritten.
  bool Intact() const;

 private:
  World& world_;
  TensorView whole_;
  TensorView view_;
};

// "" if `got` is within tolerance of `want`, else where and by how much.
std::string Compare(const Matrix& got, const Matrix& want, Tolerance tolerance);

// One more than the other checks: L is linear in `output` with weights dy; checks `gradient` of
// `input` by central differences of the float64 `forward` at up to 60 random elements. "" if it
// agrees. `magnitudes`: of the terms that an element is the sum of and that may cancel; it may be
// off by a rounding of float32 (2^-23) of them more.
std::string CheckGradient(Random& random, const Matrix& input, const Matrix& gradient,
                          const std::function<double(const Matrix&)>& loss, Tolerance tolerance,
                          int trials = 60, const Matrix* magnitudes = nullptr);

double Inner(const Matrix& x, const Matrix& y);

// A microbatch's description that owns its arrays.
struct BatchData {
  std::vector<int32_t> ids;
  std::vector<Segment> segments;
  std::vector<LossRow> loss_rows;

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  BatchDescription description() const { return {ids, segments, loss_rows}; }
  // Appends a segment with ids below `vocabulary`; about two thirds of its rows count in the loss.
  void Append(Random& random, int64_t rows, int32_t slot, Mode mode, const DropoutKey& key,
              int64_t vocabulary);
};

// Up to `segments_max` segments of 1..rows_max rows over `slots` slots and -1.
BatchData RandomBatch(Random& random, int64_t segments_max, int64_t rows_max, int32_t slots,
                      int64_t vocabulary);

}  // namespace lorad::kernels::testing
