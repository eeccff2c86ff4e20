// Head and loss of every backend against float64.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/kernels/lora_fixture.h"

namespace lorad::kernels::testing {
namespace {

void CheckCase(World& world, Random& random, int64_t vocabulary, double size, float cap) {
  Backend& backend = world.backend();
  const int64_t hidden = world.Columns(random.Integer(1, 40));
  BatchData data = RandomBatch(random, 4, 30, 2, vocabulary);
  data.Append(random, 8, 0, Mode::kTrain, {}, vocabulary);
  data.loss_rows.push_back({data.tokens(), 0});
  data.Append(random, 1, 0, Mode::kEvaluate, {}, vocabulary);
  if (data.loss_rows.back().row == data.loss_rows[data.loss_rows.size() - 2].row) {
    data.loss_rows.pop_back();
  }
  const int64_t rows = static_cast<int64_t>(data.loss_rows.size());
  const auto batch = backend.PrepareBatch(data.description());
  const Matrix head = world.RandomMatrix(random, vocabulary, hidden, size);
  const Matrix x = world.RandomMatrix(random, data.tokens(), hidden);
  const auto linear = DeviceLinear(world, head, Matrix());
  const Guarded device_x(world, x);
  Guarded log_p(world, 1, rows, Kind::kFloat32);
  Guarded unit(world, rows, hidden);
  backend.LinearLoss(*batch, device_x.view(), *linear, cap, log_p.view(), unit.view());
  CHECK(Compare(log_p.Read(), LossReference(data, x, head, static_cast<double>(cap)),
                world.Within(kLogP)) == "");
  CHECK(log_p.Intact());
  CHECK(unit.Intact());

  Guarded log_p_alone(world, 1, rows, Kind::kFloat32);
  backend.LinearLoss(*batch, device_x.view(), *linear, cap, log_p_alone.view(), {});
  CHECK(log_p_alone.Bits() == log_p.Bits());

  std::vector<float> weights;
  for (int64_t i = 0; i < rows; ++i) weights.push_back(static_cast<float>(random.Uniform(-1, 1)));
  Guarded dx(world, data.tokens(), hidden);
  backend.LossBackward(*batch, weights, unit.view(), dx.view());
  CHECK(dx.Intact());
  // Rows that are only evaluated have no gradient.
  Matrix trained(1, rows);
  for (size_t i = 0; i < data.loss_rows.size(); ++i) {
    for (const Segment& segment : data.segments) {
      const int64_t row = data.loss_rows[i].row - segment.first_row;
      if (row >= 0 && row < segment.rows && segment.mode == Mode::kTrain) {
        trained.values[i] = static_cast<double>(weights[i]);
      }
    }
  }
  const auto loss = [&](const Matrix& at) {
    return Inner(LossReference(data, at, head, static_cast<double>(cap)), trained);
  };
  CHECK(CheckGradient(random, x, dx.Read(), loss, world.Within(kLossGradient)) == "");
}

TEST_CASE("LinearLoss and LossBackward") {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      // One word, less than a tile, tiles that leave parts empty, all parts with a ragged end.
      for (const int64_t vocabulary : {1, 37, 1100, 2999}) {
        for (const auto& [size, cap] :
             {std::pair{0.5, 0.0f}, {6.0, 0.0f}, {0.5, 3.0f}, {2.0, 3.0f}}) {
          INFO(backend.name << ", seed " << seed << ", vocabulary " << vocabulary << ", cap "
                            << cap);
          Random random(seed);
          World world(backend);
          CheckCase(world, random, vocabulary, size, cap);
        }
      }
    }
  }
}

// The largest that a sum of products' magnitudes is for any of the rows, no more than the cap.
double LogitsScale(const Matrix& x, const std::vector<int32_t>& rows, const Matrix& head,
                   double cap) {
  double largest = 0;
  for (const int32_t row : rows) {
    for (int64_t word = 0; word < head.rows; ++word) {
      double sum = 0;
      for (int64_t i = 0; i < x.columns; ++i) sum += std::fabs(x.at(row, i) * head.at(word, i));
      largest = std::max(largest, sum);
    }
  }
  return cap == 0 ? largest : std::min(largest, cap);
}

void CheckLogits(World& world, Random& random, int64_t vocabulary, float cap, bool isolated) {
  Backend& backend = world.backend();
  const int64_t hidden = world.Columns(random.Integer(1, 90));
  const BatchData data = RandomBatch(random, 6, 90, 2, vocabulary);
  const auto batch = backend.PrepareBatch(data.description());
  const Matrix head = world.RandomMatrix(random, vocabulary, hidden, 1);
  const Matrix x = world.RandomMatrix(random, data.tokens(), hidden);
  const auto linear = DeviceLinear(world, head, Matrix());
  const Guarded device_x(world, x);
  const auto logits = [&](const std::vector<int32_t>& rows) {
    Guarded z(world, static_cast<int64_t>(rows.size()), vocabulary, Kind::kFloat32);
    backend.Logits(*batch, device_x.view(), rows, *linear, cap, z.view());
    const Tolerance tolerance{
        world.Within(kLogits).relative * LogitsScale(x, rows, head, static_cast<double>(cap)), 0};
    CHECK(Compare(z.Read(), LogitsReference(x, rows, head, static_cast<double>(cap)), tolerance) ==
          "");
    CHECK(z.Intact());
    return z.Bits();
  };
  // Some rows in any order and more than once; each again by itself.
  std::vector<int32_t> rows = {static_cast<int32_t>(data.tokens() - 1), 0};
  for (int64_t more = random.Integer(0, 30); more > 0; --more) {
    rows.push_back(static_cast<int32_t>(random.Integer(0, data.tokens() - 1)));
  }
  const std::vector<float> together = logits(rows);
  for (size_t i = 0; isolated && i < rows.size(); ++i) {
    const auto begin = together.begin() + static_cast<std::ptrdiff_t>(i) * vocabulary;
    CHECK(logits({rows[i]}) == std::vector<float>(begin, begin + vocabulary));
  }
}

TEST_CASE("Logits, a row's bits its own") {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      for (const int64_t vocabulary : {1, 37, 1100, 2999}) {
        for (const float cap : {0.0f, 3.0f}) {
          INFO(backend.name << ", seed " << seed << ", vocabulary " << vocabulary << ", cap "
                            << cap);
          Random random(seed);
          World world(backend);
          CheckLogits(world, random, vocabulary, cap, !backend.family.empty());
        }
      }
    }
  }
}

TEST_CASE("Logits of no rows, and of a row that is not a number beside another") {
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    const std::vector<int32_t> ids = {1, 2};
    const std::vector<Segment> segments = {{.first_row = 0, .rows = 2}};
    const auto batch = world.backend().PrepareBatch({ids, segments, {}});
    Matrix values(2, 8);
    values.at(0, 3) = std::numeric_limits<double>::quiet_NaN();
    values.at(1, 0) = 2;
    const Guarded x(world, values);
    Matrix head(8, 8);
    for (int64_t i = 0; i < 8; ++i) head.at(i, i) = 1;
    const auto linear = DeviceLinear(world, head, Matrix());
    world.backend().Logits(*batch, x.view(), {}, *linear, 0, {});
    Guarded z(world, 2, 8, Kind::kFloat32);
    world.backend().Logits(*batch, x.view(), std::vector<int32_t>{0, 1}, *linear, 0, z.view());
    const Matrix got = z.Read();
    CHECK(std::isnan(got.at(0, 3)));
    CHECK(got.at(1, 0) == 2);
    CHECK(got.at(1, 3) == 0);
  }
}

TEST_CASE("A microbatch without loss rows has no loss and a zero gradient") {
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    const std::vector<int32_t> ids = {1, 2};
    const std::vector<Segment> segments = {{.first_row = 0, .rows = 2}};
    const auto batch = world.backend().PrepareBatch({ids, segments, {}});
    const auto linear = DeviceLinear(world, Matrix(8, 8), Matrix());
    const Guarded x(world, Matrix(2, 8));
    world.backend().LinearLoss(*batch, x.view(), *linear, 0, {}, {});
    Guarded dx(world, 2, 8);
    world.backend().LossBackward(*batch, {}, {}, dx.view());
    CHECK(Compare(dx.Read(), Matrix(2, 8), world.Within(kExact)) == "");
  }
}

}  // namespace
}  // namespace lorad::kernels::testing
