#include "tests/kernels/cuda/lora/case.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/philox.h"

namespace lorad::kernels::cuda::testing {
namespace {

// ||got - want|| / ||want||, infinite where something is not finite.
struct Difference {
  double error = 0;
  double size = 0;

  void Add(double got, double want) {
    error +=
        std::isfinite(got) ? (got - want) * (got - want) : std::numeric_limits<double>::infinity();
    size += want * want;
  }
  double relative() const { return size > 0 ? std::sqrt(error / size) : std::sqrt(error); }
};

// Relative, in the norm of a tensor. bf16: products of values with errors of 2^-9 at random.
double Tolerance(DType dtype) { return dtype == DType::kFloat32 ? 2e-6 : 4e-3; }

}  // namespace

bool Skipped() {
  if (HaveGpu()) return false;
  WARN("skipped: no GPU");
  return true;
}

bool Kept(const Segment& segment, const LoraTarget& target, int64_t row, int64_t feature) {
  const PhiloxCounter lanes = Philox(
      segment.dropout.seed,
      {{DropoutWord(static_cast<uint32_t>(target.layer), static_cast<uint32_t>(target.target),
                    static_cast<uint32_t>(feature / 8)),
        static_cast<uint32_t>(segment.first_position + row), segment.dropout.sequence,
        segment.dropout.step}});
  const uint32_t word = lanes.word[feature % 8 / 2];
  return (feature % 2 == 0 ? word & 0xFFFF : word >> 16) >= DropoutThreshold(target.dropout);
}

std::vector<double> Case::Masked(const Segment& segment, const LoraTarget& target,
                                 const std::vector<float>& x, int64_t row) const {
  const bool drops = segment.mode == Mode::kTrain && target.dropout > 0;
  const double keep = drops ? 1 / (1 - static_cast<double>(target.dropout)) : 1;
  std::vector<double> masked(static_cast<size_t>(options_.inputs));
  for (int64_t k = 0; k < options_.inputs; ++k) {
    if (drops && !Kept(segment, target, row - segment.first_row, k)) continue;
    masked[static_cast<size_t>(k)] =
        keep * static_cast<double>(x[static_cast<size_t>(row * options_.inputs + k)]);
  }
  return masked;
}

std::vector<double> Case::Down(const Segment& segment, const HostTarget& host,
                               const std::vector<float>& x, int64_t row) const {
  const std::vector<double> masked = Masked(segment, host.shape, x, row);
  std::vector<double> s(static_cast<size_t>(host.shape.rank));
  for (size_t r = 0; r < s.size(); ++r) {
    for (size_t k = 0; k < masked.size(); ++k) {
      s[r] += masked[k] * static_cast<double>(host.a[r * masked.size() + k]);
    }
    s[r] *= static_cast<double>(host.shape.scale);
  }
  return s;
}

std::vector<double> Case::DownGradient(const HostTarget& host, const std::vector<float>& dy,
                                       int64_t row) const {
  const size_t rank = static_cast<size_t>(host.shape.rank);
  std::vector<double> ds(rank);
  const float* gradient = dy.data() + row * options_.outputs + host.shape.first_output;
  for (size_t o = 0; o < static_cast<size_t>(host.shape.outputs); ++o) {
    for (size_t r = 0; r < rank; ++r) {
      ds[r] += static_cast<double>(gradient[o]) * static_cast<double>(host.b[o * rank + r]);
    }
  }
  for (double& value : ds) value *= static_cast<double>(host.shape.scale);
  return ds;
}

// y and dx.
void Case::CheckRows() {
  const std::vector<float> x = x_.Read(), dy = dy_.Read(), w = world_.weight().Read();
  const std::vector<float> y = y_.Read(), dx = dx_.Read(), residual = residual_.Read();
  const size_t inputs = static_cast<size_t>(options_.inputs);
  const size_t outputs = static_cast<size_t>(options_.outputs);
  Difference of_y, of_dx;
  for (const Segment& segment : batch_.segments) {
    for (int64_t row = segment.first_row; row < segment.first_row + segment.rows; row += 3) {
      std::vector<double> want_y(outputs), want_dx(inputs);
      const float* x_row = x.data() + static_cast<size_t>(row) * inputs;
      const float* dy_row = dy.data() + static_cast<size_t>(row) * outputs;
      for (size_t o = 0; o < outputs; ++o) {
        for (size_t k = 0; k < inputs; ++k) {
          const double weight = static_cast<double>(w[o * inputs + k]);
          want_y[o] += static_cast<double>(x_row[k]) * weight;
          want_dx[k] += static_cast<double>(dy_row[o]) * weight;
        }
        const size_t at = static_cast<size_t>(row) * outputs + o;
        if (options_.residual) want_y[o] += static_cast<double>(residual[at]);
      }
      const bool on = segment.slot >= 0 && segment.mode != Mode::kReference;
      const std::vector<HostTarget> none;
      for (const HostTarget& host :
           on ? adapters_[static_cast<size_t>(segment.slot)]->host() : none) {
        const LoraTarget& target = host.shape;
        const size_t rank = static_cast<size_t>(target.rank);
        const std::vector<double> s = Down(segment, host, x, row);
        const std::vector<double> ds = DownGradient(host, dy, row);
        for (size_t o = 0; o < static_cast<size_t>(target.outputs); ++o) {
          for (size_t r = 0; r < rank; ++r) {
            want_y[static_cast<size_t>(target.first_output) + o] +=
                s[r] * static_cast<double>(host.b[o * rank + r]);
          }
        }
        const bool drops = segment.mode == Mode::kTrain && target.dropout > 0;
        const double keep = drops ? 1 / (1 - static_cast<double>(target.dropout)) : 1;
        for (size_t k = 0; k < inputs; ++k) {
          if (drops && !Kept(segment, target, row - segment.first_row, static_cast<int64_t>(k))) {
            continue;
          }
          for (size_t r = 0; r < rank; ++r) {
            want_dx[k] += keep * ds[r] * static_cast<double>(host.a[r * inputs + k]);
          }
        }
      }
      for (size_t o = 0; o < outputs; ++o) {
        of_y.Add(static_cast<double>(y[static_cast<size_t>(row) * outputs + o]), want_y[o]);
      }
      for (size_t k = 0; k < inputs; ++k) {
        of_dx.Add(static_cast<double>(dx[static_cast<size_t>(row) * inputs + k]), want_dx[k]);
      }
    }
  }
  CHECK(of_y.relative() < Tolerance(options_.dtype));
  CHECK(of_dx.relative() < Tolerance(options_.dtype));
}

void Case::CheckSaved(const std::vector<float>& saved) {
  const std::vector<float> x = x_.Read();
  Difference of_s;
  for (const Segment& segment : batch_.segments) {
    if (segment.slot < 0 || segment.mode == Mode::kReference) continue;
    int64_t column = 0;
    for (const HostTarget& host : adapters_[static_cast<size_t>(segment.slot)]->host()) {
      for (int64_t row = segment.first_row; row < segment.first_row + segment.rows; row += 5) {
        const std::vector<double> s = Down(segment, host, x, row);
        const float* got = saved.data() + row * saved_.view().columns + column;
        for (size_t r = 0; r < s.size(); ++r) of_s.Add(static_cast<double>(got[r]), s[r]);
        for (int64_t r = host.shape.rank; r < PaddedRank(host.shape.rank); ++r) {
          if (got[r] != 0) of_s.Add(1, 0);
        }
      }
      column += PaddedRank(host.shape.rank);
    }
  }
  CHECK(of_s.relative() < Tolerance(options_.dtype));
}

void Case::CheckGradients() {
  const std::vector<float> x = x_.Read(), dy = dy_.Read();
  const size_t inputs = static_cast<size_t>(options_.inputs);
  for (size_t slot = 0; slot < adapters_.size(); ++slot) {
    const auto& hosts = adapters_[slot]->host();
    for (size_t index = 0; index < hosts.size(); ++index) {
      const HostTarget& host = hosts[index];
      const size_t rank = static_cast<size_t>(host.shape.rank);
      const size_t outputs = static_cast<size_t>(host.shape.outputs);
      std::vector<double> da(rank * inputs), db(outputs * rank);
      for (const Segment& segment : batch_.segments) {
        if (segment.mode != Mode::kTrain || segment.slot != static_cast<int32_t>(slot)) continue;
        for (int64_t row = segment.first_row; row < segment.first_row + segment.rows; ++row) {
          const std::vector<double> masked = Masked(segment, host.shape, x, row);
          const std::vector<double> s = Down(segment, host, x, row);
          const std::vector<double> ds = DownGradient(host, dy, row);
          for (size_t r = 0; r < rank; ++r) {
            for (size_t k = 0; k < inputs; ++k) da[r * inputs + k] += ds[r] * masked[k];
          }
          const float* gradient = dy.data() + row * options_.outputs + host.shape.first_output;
          for (size_t o = 0; o < outputs; ++o) {
            for (size_t r = 0; r < rank; ++r) {
              db[o * rank + r] += static_cast<double>(gradient[o]) * s[r];
            }
          }
        }
      }
      Difference of_a, of_b;
      const std::vector<int64_t> got_a = adapters_[slot]->da(index).Read();
      const std::vector<int64_t> got_b = adapters_[slot]->db(index).Read();
      for (size_t i = 0; i < da.size(); ++i) {
        of_a.Add(static_cast<double>(got_a[i]) * kGradientQuantum, da[i]);
      }
      for (size_t i = 0; i < db.size(); ++i) {
        of_b.Add(static_cast<double>(got_b[i]) * kGradientQuantum, db[i]);
      }
      INFO("slot " << slot << " target " << index << " rank " << rank);
      CHECK(of_a.relative() < Tolerance(options_.dtype));
      CHECK(of_b.relative() < Tolerance(options_.dtype));
      CHECK(adapters_[slot]->da(index).Intact());
      CHECK(adapters_[slot]->db(index).Intact());
    }
    CHECK_FALSE(world_.TakeOverflow(static_cast<int32_t>(slot)));
  }
}

void Case::CheckAll() {
  CHECK(y_.Intact());
  CHECK(dx_.Intact());
  CHECK(saved_.Intact());
  CheckRows();
  if (options_.saved) CheckSaved(saved_.Read());
  CheckGradients();
}

BatchOf RandomBatch(Generator& random, int64_t segments, int64_t rows_max, int32_t slots) {
  BatchOf batch;
  for (int64_t i = 0; i < segments; ++i) {
    const int64_t mode = RandomInteger(random, 0, 7);
    batch.Append(RandomInteger(random, 1, rows_max),
                 static_cast<int32_t>(RandomInteger(random, -1, slots - 1)),
                 mode == 0   ? Mode::kReference
                 : mode == 1 ? Mode::kEvaluate
                             : Mode::kTrain,
                 {.seed = random(),
                  .step = static_cast<uint32_t>(RandomInteger(random, 1, 1000)),
                  .sequence = static_cast<uint32_t>(i)});
    batch.segments.back().first_position = kChunkTokens * RandomInteger(random, 0, 2);
  }
  return batch;
}

}  // namespace lorad::kernels::cuda::testing
