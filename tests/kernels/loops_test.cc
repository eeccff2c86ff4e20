// The inner loops of every instruction set this machine has, against plain float64 arithmetic and
// against each other.
#include "kernels/cpu/loops.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/batch.h"
#include "kernels/philox.h"

namespace lorad::kernels::cpu {
namespace {

constexpr int64_t kLengths[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 576};

std::vector<float> Ramp(int64_t n, float low, float high) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) {
    values.push_back(low + (high - low) * static_cast<float>(i * 7919 % 1000) / 1000);
  }
  return values;
}

TEST_CASE("Philox gives the published known answers") {
  // Random123's kat_vectors for philox4x32-10.
  struct Case {
    uint64_t key;
    PhiloxCounter counter;
    uint32_t want[4];
  };
  const Case cases[] = {
      {0, {{0, 0, 0, 0}}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {0xffffffffffffffff,
       {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822,
       {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Case& c : cases) {
    const PhiloxCounter got = Philox(c.key, c.counter);
    for (int i = 0; i < 4; ++i) CHECK(got.word[i] == c.want[i]);
  }
}

TEST_CASE("Dropout bits are Philox's lanes on every instruction set") {
  const uint64_t key = 0x123456789abcdef0;
  const uint32_t counter[4] = {DropoutWord(5, 3, 0), 77, 12, 1000};
  for (const Loops* loops : SupportedLoops()) {
    INFO(loops->name);
    for (const float p : {0.0f, 0.1f, 0.5f, 0.99f}) {
      for (const int64_t blocks : {1, 15, 16, 17, 72}) {
        std::vector<uint8_t> bits(static_cast<size_t>(blocks) + 1, 0xAA);
        loops->dropout_bits(key, counter, DropoutThreshold(p), 4, blocks, bits.data());
        CHECK(bits.back() == 0xAA);
        for (int64_t feature = 0; feature < blocks * kDropoutLanes; ++feature) {
          PhiloxCounter at = {{counter[0] + 4 + static_cast<uint32_t>(feature / 8), 77, 12, 1000}};
          at = Philox(key, at);
          const uint32_t word = at.word[feature % 8 / 2];
          const uint32_t lane = feature % 2 == 0 ? word & 0xFFFF : word >> 16;
          const bool kept = (bits[static_cast<size_t>(feature / 8)] >> (feature % 8) & 1) != 0;
          REQUIRE(kept == (lane >= DropoutThreshold(p)));
        }
      }
    }
  }
}

TEST_CASE("The sum of exponentials in fp64 is that of the C library") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Loops* loops : SupportedLoops()) {
    INFO(loops->name);
    for (const float x : {0.0f, -1e-8f, -0.1f, -0.34657f, -1.0f, -87.4f, -700.0f, -707.9f}) {
      INFO(x);
      const double want = std::exp(static_cast<double>(x));
      CHECK(std::fabs(loops->exp_sum_fp64(&x, 0, 1) - want) <= 5e-16 * want);
    }
    for (const float x : {-709.0f, -1e30f, -kInfinity}) CHECK(loops->exp_sum_fp64(&x, 0, 1) == 0);
    for (const int64_t n : {1, 15, 16, 17, 1000}) {
      std::vector<float> z(static_cast<size_t>(n));
      double want = 0;
      for (int64_t i = 0; i < n; ++i) {
        z[static_cast<size_t>(i)] = 3 - static_cast<float>(i * 37 % 1000) / 50;
        want += std::exp(static_cast<double>(z[static_cast<size_t>(i)]) - 3);
      }
      CHECK(std::fabs(loops->exp_sum_fp64(z.data(), 3, n) - want) <= 1e-15 * want);
    }
  }
}

TEST_CASE("A mask keeps about its share, and selects, so that NaN does not pass") {
  const Loops& loops = *SupportedLoops().back();
  int64_t kept = 0;
  std::vector<uint8_t> bits(1000);
  for (uint32_t position = 0; position < 50; ++position) {
    const uint32_t counter[4] = {0, position, 0, 1};
    loops.dropout_bits(3, counter, DropoutThreshold(0.25f), 0, 1000, bits.data());
    for (const uint8_t byte : bits) kept += __builtin_popcount(byte);
  }
  CHECK(std::fabs(static_cast<double>(kept) / 400000 - 0.75) < 0.004);
  for (const Loops* each : SupportedLoops()) {
    std::vector<float> x(17, std::numeric_limits<float>::quiet_NaN());
    std::vector<float> y(17, 1);
    const uint8_t none[3] = {0, 0, 0};
    each->select(x.data(), none, y.data(), 17);
    for (const float value : y) CHECK(value == 0);
    each->select_add(x.data(), none, 2, y.data(), 17);
    for (const float value : y) CHECK(value == 0);
  }
}

TEST_CASE("exp is within 2 ulp, and exact at its ends") {
  for (const Loops* loops : SupportedLoops()) {
    INFO(loops->name);
    double worst = 0;
    for (double x = -87; x < 0; x += 0.00137) {
      float z = static_cast<float>(x);
      const double want = std::exp(static_cast<double>(z));
      const double got = static_cast<double>(loops->exp_sum(&z, 0, 1));
      worst = std::max(worst, std::fabs(got / want - 1));
    }
    CHECK(worst < 2.4e-7);
    const auto exp_of = [&](float z) { return loops->exp_sum(&z, 0, 1); };
    CHECK(exp_of(0) == 1);
    CHECK(exp_of(-std::numeric_limits<float>::infinity()) == 0);
    CHECK(exp_of(-1000) == 0);
    CHECK(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
    CHECK(exp_of(88.7f) > 3e38f);
  }
}

TEST_CASE("Softmax of any length sums to one, and a NaN shows") {
  for (const Loops* loops : SupportedLoops()) {
    for (const int64_t n : kLengths) {
      std::vector<float> z = Ramp(n, -30, 30);
      double sum = 0;
      for (const float value : z) sum += std::exp(0.5 * static_cast<double>(value));
      const float lse = loops->softmax(z.data(), 0.5f, n);
      CHECK(static_cast<double>(lse) == Approx(std::log(sum)).epsilon(1e-6));
      double total = 0;
      for (const float value : z) total += static_cast<double>(value);
      CHECK(total == Approx(1).epsilon(1e-6));
      z[static_cast<size_t>(n / 2)] = std::numeric_limits<float>::quiet_NaN();
      CHECK(std::isnan(loops->softmax(z.data(), 0.5f, n)));
    }
  }
}

TEST_CASE(
    "Fixed-point sums round to nearest, refuse what is too large, and do not depend on order") {
  for (const Loops* loops : SupportedLoops()) {
    INFO(loops->name);
    for (const int64_t n : kLengths) {
      const std::vector<float> first = Ramp(n, -3, 3);
      const std::vector<float> second = Ramp(n, -0.001f, 100);
      std::vector<int64_t> one(first.size(), 5);
      std::vector<int64_t> other(first.size(), 5);
      CHECK(loops->add_fixed(first.data(), one.data(), n));
      CHECK(loops->add_fixed(second.data(), one.data(), n));
      CHECK(loops->add_fixed(second.data(), other.data(), n));
      CHECK(loops->add_fixed(first.data(), other.data(), n));
      CHECK(one == other);
      CHECK(one[0] == 5 + std::llrint(std::ldexp(static_cast<double>(first[0]), 44)) +
                          std::llrint(std::ldexp(static_cast<double>(second[0]), 44)));
      for (const float bad : {0x1p18f, -0x1p18f, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> values = first;
        values.back() = bad;
        CHECK_FALSE(loops->add_fixed(values.data(), one.data(), n));
      }
      std::vector<float> largest(first.size(), 0x1.fffffep17f);
      CHECK(loops->add_fixed(largest.data(), one.data(), n));
    }
  }
}

TEST_CASE("Instruction sets agree within rounding") {
  const Loops& plain = *SupportedLoops().front();
  for (const Loops* loops : SupportedLoops()) {
    INFO(loops->name);
    for (const int64_t n : kLengths) {
      const std::vector<float> x = Ramp(n, -4, 4);
      const std::vector<float> w = Ramp(n, 0.5f, 2);
      const std::vector<float> dy = Ramp(n, -1, 1);
      std::vector<float> a(x.size());
      std::vector<float> b(x.size());
      const auto check = [&] {
        for (size_t i = 0; i < a.size(); ++i) REQUIRE(std::fabs(a[i] - b[i]) < 1e-5f);
      };
      plain.rms_norm(x.data(), w.data(), 1e-5f, a.data(), n);
      loops->rms_norm(x.data(), w.data(), 1e-5f, b.data(), n);
      check();
      a = b = x;
      plain.rms_norm_backward(x.data(), w.data(), 1e-5f, dy.data(), a.data(), n);
      loops->rms_norm_backward(x.data(), w.data(), 1e-5f, dy.data(), b.data(), n);
      check();
      plain.swiglu(x.data(), w.data(), a.data(), n);
      loops->swiglu(x.data(), w.data(), b.data(), n);
      check();
      CHECK(plain.max(x.data(), n) == loops->max(x.data(), n));
      CHECK(std::fabs(plain.dot(x.data(), w.data(), n) - loops->dot(x.data(), w.data(), n)) <
            1e-3f);
    }
  }
}

}  // namespace
}  // namespace lorad::kernels::cpu
