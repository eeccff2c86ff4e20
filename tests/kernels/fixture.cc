#include "tests/kernels/fixture.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"

namespace lorad::kernels::testing {
namespace {

constexpr uint64_t kFixedSeed = 20240607;
constexpr float kSentinel = -0x1.8p112f;  // of any type, exactly

// The nearest bfloat16, ties to even.
float RoundToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
  return std::bit_cast<float>(rounded);
}

}  // namespace

std::vector<uint64_t> Seeds() {
  if (Catch::rngSeed() != 0) return {Catch::rngSeed()};
  // Drawn once, so that it is printed once; 31 bits, so that --rng-seed takes it.
  static const uint64_t random_seed = [] {
    const uint64_t seed = (std::random_device()() >> 1) | 1;
    std::printf("random seed %llu (again: --rng-seed %llu)\n",
                static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed));
    return seed;
  }();
  return {kFixedSeed, random_seed};
}

uint64_t Random::Next() {  // splitmix64
  uint64_t z = (state_ += 0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

int64_t Random::Integer(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
}

double Random::Uniform(double low, double high) {
  return low + (high - low) * static_cast<double>(Next() >> 11) * 0x1p-53;
}

Matrix RandomMatrix(Random& random, int64_t rows, int64_t columns, double size) {
  Matrix matrix(rows, columns);
  for (double& value : matrix.values) value = static_cast<float>(random.Uniform(-size, size));
  return matrix;
}

World::World(const BackendCase& backend, const Limits& limits, int64_t arena_bytes)
    : backend_(backend.make()) {
  Arena workspace(backend_->device());
  backend_->ReserveWorkspace(limits, workspace);
  auto arena = backend_->MakeArena(workspace.bytes_max() + arena_bytes);
  REQUIRE(arena.ok());
  arena_ = *std::move(arena);
  auto readings = backend_->MakeHostArena(kReadingBytes);
  REQUIRE(readings.ok());
  readings_ = *std::move(readings);
  backend_->ReserveWorkspace(limits, *arena_);
  bfloat16_ = backend_->activation_dtype() == DType::kBfloat16;
  if (backend_->device() == Device::kCuda) grain_ = 16 / BytesOf(backend_->activation_dtype());
}

Matrix World::RandomMatrix(Random& random, int64_t rows, int64_t columns, double size) const {
  Matrix matrix = testing::RandomMatrix(random, rows, columns, size);
  for (double& value : matrix.values) value = Rounded(value);
  return matrix;
}

double World::Rounded(double value) const {
  const float narrow = static_cast<float>(value);
  return static_cast<double>(bfloat16_ ? RoundToBfloat16(narrow) : narrow);
}

TensorView World::Words(const void* device, int64_t bytes) const {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(float));
  return {.data = const_cast<void*>(device),
          .rows = 1,
          .columns = words,
          .row_stride = words,
          .device = backend_->device()};
}

void World::Write(const void* host, int64_t bytes, void* device) {
  backend_->CopyToDevice(static_cast<const float*>(host), Words(device, bytes));
}

void World::Read(const void* device, int64_t bytes, void* host) {
  backend_->CopyToHost(Words(device, bytes), static_cast<float*>(host));
}

double World::SumOfSquares(std::span<const OptimizerTensor> tensors) {
  return backend_->FoldSums(SumsOfSquares(tensors));
}

std::vector<double> World::SumsOfSquares(std::span<const OptimizerTensor> tensors) {
  const std::unique_ptr<Optimizer> optimizer = backend_->MakeOptimizer(tensors);
  const Optimizer* one = optimizer.get();
  const size_t count = tensors.size();
  return SumsOfSquares({&one, 1}, {&count, 1}).front();
}

std::vector<std::vector<double>> World::SumsOfSquares(std::span<const Optimizer* const> optimizers,
                                                      std::span<const size_t> tensors) {
  std::vector<NormRequest> requests;
  for (size_t i = 0; i < optimizers.size(); ++i) {
    double* sums = readings_->Allocate<double>(static_cast<int64_t>(tensors[i]));
    requests.push_back({optimizers[i], sums});
  }
  backend_->SumsOfSquares(requests);
  backend_->Synchronize();
  std::vector<std::vector<double>> result;
  for (size_t i = 0; i < requests.size(); ++i) {
    result.emplace_back(requests[i].sums, requests[i].sums + tensors[i]);
  }
  readings_->Rewind(0);
  return result;
}

void World::Step(const AdamWOptions& options, std::span<const OptimizerTensor> tensors) {
  const std::unique_ptr<Optimizer> optimizer = backend_->MakeOptimizer(tensors);
  const StepRequest request = {optimizer.get(), options};
  backend_->AdamW({&request, 1});
}

void World::DropGradients(std::span<const OptimizerTensor> tensors) {
  backend_->DropGradients(*backend_->MakeOptimizer(tensors));
}

bool World::TakeOverflow(AdapterTable& table, int32_t slot) {
  int32_t* marked = readings_->Allocate<int32_t>(1);
  backend_->TakeOverflow(table, slot, marked);
  backend_->Synchronize();
  readings_->Rewind(0);
  return *marked != 0;
}

Limits TestLimits() {
  return {.tokens = 1024,
          .longest_segment = 700,
          .features = 640,
          .hidden = 96,
          .vocabulary = 3000,
          .rank = 24,
          .slots = 8,
          .targets_in_group = 3,
          .heads = 6,
          .kv_heads = 6,
          .head_size = 32};
}

Guarded::Guarded(World& world, int64_t rows, int64_t columns, Kind kind, int64_t spare_columns)
    : world_(world) {
  const DType dtype =
      kind == Kind::kActivation ? world.backend().activation_dtype() : DType::kFloat32;
  whole_ = world.arena().Matrix(rows + 2, world.Columns(columns + spare_columns), dtype);
  view_ = whole_.Rows(1, rows).Columns(0, columns);
  Matrix nothing(rows, columns);
  std::fill(nothing.values.begin(), nothing.values.end(), std::numeric_limits<double>::quiet_NaN());
  Write(nothing);
}

Guarded::Guarded(World& world, const Matrix& contents, Kind kind, int64_t spare_columns)
    : Guarded(world, contents.rows, contents.columns, kind, spare_columns) {
  Write(contents);
}

void Guarded::Write(const Matrix& contents) {
  REQUIRE((contents.rows == view_.rows && contents.columns == view_.columns));
  std::vector<float> host(static_cast<size_t>(whole_.elements()), kSentinel);
  for (int64_t row = 0; row < contents.rows; ++row) {
    for (int64_t column = 0; column < contents.columns; ++column) {
      host[static_cast<size_t>((row + 1) * whole_.columns + column)] =
          static_cast<float>(contents.at(row, column));
    }
  }
  world_.backend().CopyToDevice(host.data(), whole_);
}

std::vector<float> Guarded::Bits() const {
  std::vector<float> host(static_cast<size_t>(view_.elements()));
  world_.backend().CopyToHost(view_, host.data());
  return host;
}

Matrix Guarded::Read() const {
  const std::vector<float> host = Bits();
  Matrix matrix(view_.rows, view_.columns);
  std::copy(host.begin(), host.end(), matrix.values.begin());
  return matrix;
}

bool Guarded::Intact() const {
  std::vector<float> host(static_cast<size_t>(whole_.elements()));
  world_.backend().CopyToHost(whole_, host.data());
  for (int64_t row = 0; row < whole_.rows; ++row) {
    for (int64_t column = 0; column < whole_.columns; ++column) {
      const bool inside = row >= 1 && row <= view_.rows && column < view_.columns;
      if (!inside && host[static_cast<size_t>(row * whole_.columns + column)] != kSentinel)
        return false;
    }
  }
  return true;
}

std::string Compare(const Matrix& got, const Matrix& want, Tolerance tolerance) {
  if (got.rows != want.rows || got.columns != want.columns) return "shapes differ";
  double largest = 0;
  for (const double value : want.values) largest = std::max(largest, std::fabs(value));
  const double limit = tolerance.absolute + tolerance.relative * largest;
  for (int64_t row = 0; row < got.rows; ++row) {
    for (int64_t column = 0; column < got.columns; ++column) {
      const double error = std::fabs(got.at(row, column) - want.at(row, column));
      if (!(error <= limit)) {
        return absl::StrCat("[", row, ", ", column, "]: got ", got.at(row, column), ", want ",
                            want.at(row, column), ", error ", error, " > ", limit);
      }
    }
  }
  return "";
}

std::string CheckGradient(Random& random, const Matrix& input, const Matrix& gradient,
                          const std::function<double(const Matrix&)>& loss, Tolerance tolerance,
                          int trials, const Matrix* magnitudes) {
  constexpr double kStep = 1e-5;
  constexpr double kTruncation = 1e-7;  // of the central difference itself, relative to the largest
  double largest = 0;
  for (const double value : gradient.values) largest = std::max(largest, std::fabs(value));
  const double whole = tolerance.absolute + (tolerance.relative + kTruncation) * largest;
  const int64_t count = static_cast<int64_t>(input.values.size());
  Matrix moved = input;
  for (int trial = 0; trial < trials; ++trial) {
    const size_t at = static_cast<size_t>(random.Integer(0, count - 1));
    moved.values[at] = input.values[at] + kStep;
    const double above = loss(moved);
    moved.values[at] = input.values[at] - kStep;
    const double below = loss(moved);
    moved.values[at] = input.values[at];
    const double want = (above - below) / (2 * kStep);
    const double error = std::fabs(gradient.values[at] - want);
    const double limit = whole + (magnitudes ? 0x1p-23 * magnitudes->values[at] : 0);
    if (!(error <= limit)) {
      return absl::StrCat("element ", at, ": got ", gradient.values[at], ", difference quotient ",
                          want, ", error ", error, " > ", limit);
    }
  }
  return "";
}

double Inner(const Matrix& x, const Matrix& y) {
  double sum = 0;
  for (size_t i = 0; i < x.values.size(); ++i) sum += x.values[i] * y.values[i];
  return sum;
}

void BatchData::Append(Random& random, int64_t rows, int32_t slot, Mode mode, const DropoutKey& key,
                       int64_t vocabulary) {
  const int64_t first = tokens();
  segments.push_back({.first_row = first,
                      .rows = rows,
                      .first_position = 0,
                      .slot = slot,
                      .mode = mode,
                      .dropout = key});
  for (int64_t row = 0; row < rows; ++row) {
    ids.push_back(static_cast<int32_t>(random.Integer(0, vocabulary - 1)));
    if (random.Integer(0, 2) > 0) {
      loss_rows.push_back({first + row, static_cast<int32_t>(random.Integer(0, vocabulary - 1))});
    }
  }
}

BatchData RandomBatch(Random& random, int64_t segments_max, int64_t rows_max, int32_t slots,
                      int64_t vocabulary) {
  BatchData data;
  const int64_t segments = random.Integer(1, segments_max);
  for (int64_t segment = 0; segment < segments; ++segment) {
    const Mode mode = random.Integer(0, 4) == 0 ? Mode::kEvaluate : Mode::kTrain;
    data.Append(random, random.Integer(1, rows_max),
                static_cast<int32_t>(random.Integer(-1, slots - 1)), mode,
                {.seed = random.Next(),
                 .step = static_cast<uint32_t>(random.Integer(0, 1000)),
                 .sequence = static_cast<uint32_t>(random.Integer(0, 1000))},
                vocabulary);
  }
  return data;
}

}  // namespace lorad::kernels::testing
