// Embedding, RMSNorm, rotary embedding and SwiGLU of every backend against float64.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <numbers>

#include "tests/kernels/fixture.h"

namespace lorad::kernels::testing {
namespace {

constexpr int64_t kVocabulary = 50;

Matrix RmsNormReference(const Matrix& x, const Matrix& weight, double eps) {
  Matrix y(x.rows, x.columns);
  for (int64_t t = 0; t < x.rows; ++t) {
    double squares = 0;
    for (int64_t i = 0; i < x.columns; ++i) squares += x.at(t, i) * x.at(t, i);
    const double r = 1 / std::sqrt(squares / static_cast<double>(x.columns) + eps);
    for (int64_t i = 0; i < x.columns; ++i) y.at(t, i) = x.at(t, i) * r * weight.at(0, i);
  }
  return y;
}

Matrix SwiGluReference(const Matrix& gate_up, Gate gate) {
  const int64_t size = gate_up.columns / 2;
  Matrix y(gate_up.rows, size);
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t i = 0; i < size; ++i) {
      const double g = gate_up.at(t, i);
      // GELU by its tanh, as transformers has it.
      const double inner = std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g);
      const double passed =
          gate == Gate::kSilu ? g / (1 + std::exp(-g)) : 0.5 * g * (1 + std::tanh(inner));
      y.at(t, i) = passed * gate_up.at(t, size + i);
    }
  }
  return y;
}

// Of the terms of SwiGlu's gradient. With s = sigmoid(v) and passed = g s the slope of the gate is
// s + passed v' (1 - s): where s is next to 1, 1 - s is what its rounding leaves, times up to 30.
Matrix SwiGluMagnitudes(const Matrix& gate_up, const Matrix& dy, Gate gate) {
  const double scale = 2 * std::sqrt(2 / std::numbers::pi);
  Matrix magnitudes(gate_up.rows, gate_up.columns);
  for (int64_t t = 0; t < dy.rows; ++t) {
    for (int64_t i = 0; i < dy.columns; ++i) {
      const double g = gate_up.at(t, i), up = gate_up.at(t, dy.columns + i);
      const bool silu = gate == Gate::kSilu;
      const double v = silu ? g : scale * (g + 0.044715 * g * g * g);
      const double dv = silu ? 1 : scale * (1 + 3 * 0.044715 * g * g);
      const double s = 1 / (1 + std::exp(-v));
      const double passed = std::fabs(g) * s, out = std::fabs(dy.at(t, i));
      magnitudes.at(t, i) = out * std::fabs(up) * (s + passed * dv * (1 + s));
      magnitudes.at(t, dy.columns + i) = out * passed;
    }
  }
  return magnitudes;
}

template <typename Function>
void ForBackendsAndSeeds(Function&& run) {
  for (const BackendCase& backend : Backends()) {
    for (const uint64_t seed : Seeds()) {
      INFO(backend.name << ", seed " << seed);
      World world(backend);
      Random random(seed);
      run(world, random);
    }
  }
}

TEST_CASE("Embed copies rows times a factor") {
  ForBackendsAndSeeds([](World& world, Random& random) {
    const int64_t hidden = world.Columns(random.Integer(1, 90));
    const BatchData data = RandomBatch(random, 4, 100, 1, kVocabulary);
    const auto batch = world.backend().PrepareBatch(data.description());
    const auto table = world.backend().MakeLinear(kVocabulary, hidden, false, world.arena());
    const Matrix weight = world.RandomMatrix(random, kVocabulary, hidden);
    std::copy(weight.values.begin(), weight.values.end(),
              world.backend().MapRows(*table, 0, kVocabulary));
    world.backend().Unmap(*table);
    Guarded x(world, data.tokens(), hidden);
    for (const float factor : {1.0f, 3.5f}) {
      world.backend().Embed(*batch, *table, factor, x.view());
      Matrix want(data.tokens(), hidden);
      for (int64_t t = 0; t < want.rows; ++t) {
        for (int64_t i = 0; i < hidden; ++i) {
          const double value = weight.at(data.ids[static_cast<size_t>(t)], i);
          want.at(t, i) = world.Rounded(static_cast<double>(factor) * value);
        }
      }
      CHECK(Compare(x.Read(), want, world.Within(kExact)) == "");
      CHECK(x.Intact());
    }
    world.backend().Zero(x.view());
    CHECK(Compare(x.Read(), Matrix(data.tokens(), hidden), world.Within(kExact)) == "");
    CHECK(x.Intact());
  });
}

void CheckRmsNorm(World& world, Random& random, const BatchData& data, int64_t hidden) {
  const float eps = 1e-5f;
  const auto batch = world.backend().PrepareBatch(data.description());
  const Matrix x = world.RandomMatrix(random, data.tokens(), hidden, 3);
  const Matrix w = RandomMatrix(random, 1, hidden);
  const Guarded device_x(world, x);
  const Guarded device_w(world, w, Kind::kFloat32);
  Guarded y(world, data.tokens(), hidden);
  world.backend().RmsNorm(*batch, device_x.view(), device_w.view(), eps, y.view());
  CHECK(Compare(y.Read(), RmsNormReference(x, w, eps), world.Within(kRmsNorm)) == "");
  CHECK(y.Intact());

  const Matrix dy = world.RandomMatrix(random, data.tokens(), hidden);
  const Matrix residual = world.RandomMatrix(random, data.tokens(), hidden);
  const Guarded device_dy(world, dy);
  Guarded dx(world, residual);
  world.backend().RmsNormBackward(*batch, device_x.view(), device_w.view(), eps, device_dy.view(),
                                  dx.view());
  Matrix gradient = dx.Read();
  for (size_t i = 0; i < gradient.values.size(); ++i) gradient.values[i] -= residual.values[i];
  const auto loss = [&](const Matrix& at) { return Inner(RmsNormReference(at, w, eps), dy); };
  CHECK(CheckGradient(random, x, gradient, loss, world.Within(kRmsNormBackward)) == "");
  CHECK(dx.Intact());

  Guarded in_place(world, x);
  world.backend().RmsNorm(*batch, in_place.view(), device_w.view(), eps, in_place.view());
  CHECK(in_place.Bits() == y.Bits());

  // A norm behind an output: added to the residual, its gradient written.
  Matrix sum = RmsNormReference(x, w, eps);
  for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += residual.values[i];
  const Guarded device_residual(world, residual);
  world.backend().RmsNormAdd(*batch, device_x.view(), device_w.view(), eps, device_residual.view(),
                             y.view());
  CHECK(Compare(y.Read(), sum, world.Within(kRmsNorm)) == "");
  CHECK(y.Intact());
  Guarded written(world, x);
  world.backend().RmsNormGradient(*batch, written.view(), device_w.view(), eps, device_dy.view(),
                                  written.view());
  CHECK(CheckGradient(random, x, written.Read(), loss, world.Within(kRmsNormBackward)) == "");
  CHECK(written.Intact());
}

TEST_CASE("Add adds") {
  ForBackendsAndSeeds([](World& world, Random& random) {
    const int64_t hidden = world.Columns(random.Integer(1, 90));
    const BatchData data = RandomBatch(random, 3, 40, 1, kVocabulary);
    const auto batch = world.backend().PrepareBatch(data.description());
    const Matrix x = world.RandomMatrix(random, data.tokens(), hidden);
    const Matrix y = world.RandomMatrix(random, data.tokens(), hidden);
    const Guarded device_x(world, x);
    Guarded device_y(world, y);
    world.backend().Add(*batch, device_x.view(), device_y.view());
    Matrix want = y;
    for (size_t i = 0; i < want.values.size(); ++i) {
      want.values[i] = world.Rounded(x.values[i] + y.values[i]);
    }
    CHECK(Compare(device_y.Read(), want, world.Within(kExact)) == "");
    CHECK(device_y.Intact());
  });
}

TEST_CASE("RmsNorm, forward and backward") {
  ForBackendsAndSeeds([](World& world, Random& random) {
    const BatchData data = RandomBatch(random, 3, 40, 1, kVocabulary);
    CheckRmsNorm(world, random, data, world.Columns(random.Integer(1, 90)));
    // Where a row is cut another way.
    BatchData two_rows;
    two_rows.Append(random, 2, -1, Mode::kTrain, {}, kVocabulary);
    for (const int64_t hidden : {576, 2048, 2056, 4096, 8192, 8200, 20000}) {
      CheckRmsNorm(world, random, two_rows, hidden);
    }
  });
}

// Runs of x's columns, each normed by itself with the weight of its part.
Matrix QkNormReference(const Matrix& x, int64_t q_columns, const Matrix& q_weight,
                       const Matrix& k_weight, double eps) {
  Matrix y(x.rows, x.columns);
  for (int64_t first = 0; first < x.columns;) {
    const Matrix& weight = first < q_columns ? q_weight : k_weight;
    Matrix run(x.rows, weight.columns);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t i = 0; i < run.columns; ++i) run.at(t, i) = x.at(t, first + i);
    }
    run = RmsNormReference(run, weight, eps);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t i = 0; i < run.columns; ++i) y.at(t, first + i) = run.at(t, i);
    }
    first += weight.columns;
  }
  return y;
}

// Columns of q and k, and of their weights: of a head, or as many as q and k have.
void CheckQkNorm(World& world, Random& random, int64_t q, int64_t k, int64_t q_run, int64_t k_run,
                 int64_t head_size) {
  const float eps = 1e-3f;
  const BatchData data = RandomBatch(random, 3, 40, 1, kVocabulary);
  const auto batch = world.backend().PrepareBatch(data.description());
  const Matrix x = world.RandomMatrix(random, data.tokens(), q + k, 3);
  const Matrix q_weight = RandomMatrix(random, 1, q_run);
  const Matrix k_weight = RandomMatrix(random, 1, k_run);
  const Guarded device_x(world, x);
  const Guarded device_q(world, q_weight, Kind::kFloat32);
  const Guarded device_k(world, k_weight, Kind::kFloat32);
  const QkNorm norm = {device_q.view(), device_k.view(), q, eps};
  Guarded y(world, data.tokens(), q + k);
  world.backend().QkNormRope(*batch, device_x.view(), norm, {}, y.view());
  const Matrix normed = QkNormReference(x, q, q_weight, k_weight, eps);
  CHECK(Compare(y.Read(), normed, world.Within(kRmsNorm)) == "");
  CHECK(y.Intact());

  const Matrix angles = world.RandomMatrix(random, 40, head_size);
  const Guarded device_angles(world, angles, Kind::kFloat32);
  world.backend().QkNormRope(*batch, device_x.view(), norm, device_angles.view(), y.view());
  Guarded turned(world, normed);
  world.backend().Rope(*batch, device_angles.view(), turned.view());
  CHECK(Compare(y.Read(), turned.Read(), world.Within(kQkNormRope)) == "");
  CHECK(y.Intact());

  const Matrix dy = world.RandomMatrix(random, data.tokens(), q + k);
  Guarded d(world, dy);
  world.backend().QkNormBackward(*batch, device_x.view(), norm, d.view());
  const auto loss = [&](const Matrix& at) {
    return Inner(QkNormReference(at, q, q_weight, k_weight, eps), dy);
  };
  CHECK(CheckGradient(random, x, d.Read(), loss, world.Within(kRmsNormBackward)) == "");
  CHECK(d.Intact());
}

TEST_CASE("Norms of q and k, of heads and of whole rows, with rope, and their backward") {
  ForBackendsAndSeeds([](World& world, Random& random) {
    for (const int64_t size :
         {world.Columns(2 * random.Integer(1, 40)), int64_t{64}, int64_t{128}, int64_t{256}}) {
      const int64_t k = size * random.Integer(1, 3);
      const int64_t q = k * random.Integer(1, 5);
      CheckQkNorm(world, random, q, k, size, size, size);
      if (q != k || q != size) CheckQkNorm(world, random, q, k, q, k, size);
    }
  });
}

// Of heads of `half` pairs and `straight` features that are not turned; every other sequence takes
// its angles from row 28 of the table on.
void CheckRope(World& world, Random& random, int64_t half, int64_t straight) {
  const int64_t heads = random.Integer(1, 5);
  const int64_t size = 2 * half + straight;
  BatchData data = RandomBatch(random, 4, 100, 1, kVocabulary);
  for (size_t i = 0; i < data.segments.size(); i += 2) data.segments[i].first_angle = 28;
  const auto batch = world.backend().PrepareBatch(data.description());
  std::vector<float> frequencies;
  for (int64_t i = 0; i < half; ++i) {
    frequencies.push_back(
        static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half))));
  }
  Guarded table(world, 128, 2 * half, Kind::kFloat32);
  const float factor = 1.25f;
  world.backend().FillRope(frequencies, factor, table.view());
  const HeadAngles angles(table.view(), size);
  const Matrix x = world.RandomMatrix(random, data.tokens(), heads * size);
  Guarded device_x(world, x);
  world.backend().Rope(*batch, angles, device_x.view());
  Matrix want = x;
  Matrix scaled = x;
  for (const Segment& segment : data.segments) {
    for (int64_t row = 0; row < segment.rows; ++row) {
      for (int64_t i = 0; i < heads * half; ++i) {
        const int64_t first = i / half * size + i % half;
        // The angle is float32's, as in transformers.
        const float angle = static_cast<float>(segment.first_angle + row) *
                            frequencies[static_cast<size_t>(i % half)];
        const double c = std::cos(static_cast<double>(angle)) * factor;
        const double s = std::sin(static_cast<double>(angle)) * factor;
        const int64_t t = segment.first_row + row;
        want.at(t, first) = x.at(t, first) * c - x.at(t, first + half) * s;
        want.at(t, first + half) = x.at(t, first + half) * c + x.at(t, first) * s;
        for (const int64_t at : {first, first + half}) scaled.at(t, at) *= factor * factor;
      }
    }
  }
  CHECK(Compare(device_x.Read(), want, world.Within(kRope)) == "");
  world.backend().RopeBackward(*batch, angles, device_x.view());
  CHECK(Compare(device_x.Read(), scaled, world.Within(kRopeBack)) == "");
  CHECK(device_x.Intact());
  CHECK(table.Intact());
}

TEST_CASE("Rope rotates by the position, and its backward turns back") {
  ForBackendsAndSeeds([](World& world, Random& random) {
    CheckRope(world, random, world.Columns(random.Integer(1, 32)), 0);
    // The first features of a head alone, of a number that words do not divide.
    CheckRope(world, random, random.Integer(1, 40), 2 * random.Integer(1, 20));
    CheckRope(world, random, 48, 32);
  });
}

void CheckSwiGlu(World& world, Random& random, const BatchData& data, Gate gate, int64_t size) {
  const auto batch = world.backend().PrepareBatch(data.description());
  const Matrix gate_up = world.RandomMatrix(random, data.tokens(), 2 * size, 12);
  Guarded device_gate_up(world, gate_up);
  Guarded y(world, data.tokens(), size);
  world.backend().SwiGlu(*batch, gate, device_gate_up.view(), y.view());
  CHECK(Compare(y.Read(), SwiGluReference(gate_up, gate), world.Within(kSwiGlu)) == "");
  CHECK(y.Intact());

  const Matrix dy = world.RandomMatrix(random, data.tokens(), size);
  const Guarded device_dy(world, dy);
  Guarded gradient(world, data.tokens(), 2 * size);
  world.backend().SwiGluBackward(*batch, gate, device_gate_up.view(), device_dy.view(),
                                 gradient.view());
  const auto loss = [&](const Matrix& at) { return Inner(SwiGluReference(at, gate), dy); };
  const Matrix magnitudes = SwiGluMagnitudes(gate_up, dy, gate);
  CHECK(CheckGradient(random, gate_up, gradient.Read(), loss, world.Within(kSwiGlu), 60,
                      &magnitudes) == "");
  CHECK(gradient.Intact());
  world.backend().SwiGluBackward(*batch, gate, device_gate_up.view(), device_dy.view(),
                                 device_gate_up.view());
  CHECK(device_gate_up.Bits() == gradient.Bits());
  CHECK(device_gate_up.Intact());
}

TEST_CASE("SwiGlu, forward and backward") {
  ForBackendsAndSeeds([](World& world, Random& random) {
    const BatchData data = RandomBatch(random, 3, 40, 1, kVocabulary);
    BatchData one_row;
    one_row.Append(random, 1, -1, Mode::kTrain, {}, kVocabulary);
    for (const Gate gate : {Gate::kSilu, Gate::kGeluTanh}) {
      CheckSwiGlu(world, random, data, gate, world.Columns(random.Integer(1, 60)));
      CheckSwiGlu(world, random, one_row, gate, 14336);
    }
  });
}

TEST_CASE("Cast rounds, and fills with zeros") {
  ForBackendsAndSeeds([](World& world, Random& random) {
    const int64_t rows = random.Integer(1, 40);
    const int64_t columns = random.Integer(1, 90);
    const Matrix from = RandomMatrix(random, rows, columns, 5);
    const Guarded device_from(world, from, Kind::kFloat32);
    Guarded to(world, rows + random.Integer(0, 3), world.Columns(columns + random.Integer(0, 9)));
    world.backend().Cast(device_from.view(), to.view());
    Matrix want(to.view().rows, to.view().columns);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        want.at(row, column) = world.Rounded(from.at(row, column));
      }
    }
    CHECK(Compare(to.Read(), want, world.Within(kExact)) == "");
    CHECK(to.Intact());
  });
}

TEST_CASE("Copies round on the way in, widen on the way back, and reach pinned memory") {
  Random random(8);
  // More than a staging buffer holds; dense, and as columns of a wider matrix.
  const int64_t rows = 1030;
  const int64_t columns = 2048;
  const Matrix values = RandomMatrix(random, rows, columns, 3);
  const std::vector<float> host(values.values.begin(), values.values.end());
  for (const BackendCase& backend_case : Backends()) {
    INFO(backend_case.name);
    World world(backend_case);
    Backend& backend = world.backend();
    auto pinned = backend.MakeHostArena(rows * columns * 4);
    REQUIRE(pinned.ok());
    float* copy = (*pinned)->Allocate<float>(rows * columns);
    for (const int64_t spare : {0, 64}) {
      for (const bool activation : {false, true}) {
        const DType dtype = activation ? backend.activation_dtype() : DType::kFloat32;
        const int64_t mark = world.arena().used();
        const TensorView view =
            world.arena().Matrix(rows, columns + spare, dtype).Columns(0, columns);
        backend.CopyToDevice(host.data(), view);
        std::vector<float> back(host.size());
        backend.CopyToHost(view, back.data());
        backend.CopyToHost(view, copy);
        CHECK(std::equal(back.begin(), back.end(), copy));
        bool equal = true;
        for (size_t i = 0; i < back.size(); ++i) {
          const double want = static_cast<double>(host[i]);
          equal &= static_cast<double>(back[i]) == (activation ? world.Rounded(want) : want);
        }
        CHECK(equal);
        world.arena().Rewind(mark);
      }
    }
  }
}

TEST_CASE("Marks measure what lies between them") {
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    const TensorView large = world.arena().Matrix(2000, 2000);
    world.backend().Mark(0);
    world.backend().Zero(large);
    world.backend().Mark(Backend::kMarks - 1);
    const double ms = world.backend().MsBetween(0, Backend::kMarks - 1);
    CHECK((ms > 0 && ms < 10000));
  }
}

TEST_CASE("A mark's moment lies between those at which the host set it and saw it") {
  using std::chrono::microseconds;
  using std::chrono::steady_clock;
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend);
    const TensorView large = world.arena().Matrix(2000, 2000);
    steady_clock::time_point last;
    for (int mark = 0; mark < 8; ++mark) {
      const auto set = steady_clock::now();
      world.backend().Zero(large);
      world.backend().Mark(mark);
      world.backend().WaitFor(mark);
      const auto seen = steady_clock::now();
      const auto moment = world.backend().MomentOf(mark);
      // A device's clock is known to some microseconds.
      CHECK((moment > set - microseconds(200) && moment <= seen));
      CHECK(moment > last);
      last = moment;
    }
  }
}

}  // namespace
}  // namespace lorad::kernels::testing
