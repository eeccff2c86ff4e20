// Attention on the GPU: against float64, and the two tests by which its kernels are chosen: equal
// runs give equal bits, and a sequence has the same bits alone and in any company.
#include "kernels/cuda/attention/attention.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "tests/kernels/cuda/attention_rig.h"

namespace lorad::kernels::cuda::testing {
namespace {

// |got - want| / |want| of a tensor.
struct ErrorLimits {
  double forward;
  double backward;
};
constexpr ErrorLimits kFloat32Limits = {1e-6, 3e-6};
// Outputs rounded to 8 bits (2^-9 = 0.002, uniform: 0.0012), and so are p and ds on their way.
constexpr ErrorLimits kBfloat16Limits = {4e-3, 8e-3};

constexpr AttentionOptions kPlain = {.cudnn = false, .own_backward = false};
constexpr AttentionOptions kCudnnAlone = {.own_backward = false};

bool NoDevice() {
  if (DeviceCount() > 0) return false;
  WARN("skipped: no GPU");
  return true;
}

AttentionShape Shape(int64_t heads, int64_t kv_heads, int64_t head_size, int64_t window = 0,
                     float cap = 0) {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_size = head_size,
          .scale = 1 / std::sqrt(static_cast<float>(head_size)),
          .window = window,
          .cap = cap};
}

Limits LimitsOf(const AttentionShape& shape, int64_t longest) {
  return {.tokens = 8192,
          .longest_segment = longest,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_size = shape.head_size};
}

// The first is the one that is watched.
std::vector<Sequence> Sequences(uint64_t seed, const std::vector<int64_t>& rows) {
  std::vector<Sequence> sequences;
  for (const int64_t count : rows) sequences.push_back({.seed = seed++, .rows = count});
  return sequences;
}

void CheckAgainstReference(DType dtype, const AttentionShape& shape, const ErrorLimits& limits,
                           const AttentionOptions& options) {
  AttentionRig rig(dtype, options, LimitsOf(shape, 300));
  const std::vector<Sequence> sequences = Sequences(77, {1, 130, 63, 300, 7, 128, 129, 33});
  const std::vector<SequenceResults> results = rig.Run(sequences, shape);
  double worst[5] = {};
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceInputs inputs = InputsOf(sequences[i], shape, dtype);
    const SequenceReference want = ReferenceOf(inputs, sequences[i].rows, shape);
    const SequenceResults& got = results[i];
    // One row alone has p = 1 and ds = 0: dq and dk are nothing but rounding.
    const bool single = sequences[i].rows == 1;
    const double errors[5] = {RelativeError(want.out, got.out), RelativeError(want.lse, got.lse),
                              single ? 0 : RelativeError(want.dq, got.dq),
                              single ? 0 : RelativeError(want.dk, got.dk),
                              RelativeError(want.dv, got.dv)};
    for (int t = 0; t < 5; ++t) worst[t] = std::max(worst[t], errors[t]);
  }
  std::printf(
      "attention %s N=%ld G=%ld D=%ld, plans %ld: out %.1e lse %.1e dq %.1e dk %.1e dv %.1e\n",
      dtype == DType::kFloat32 ? "fp32" : "bf16", shape.heads, shape.kv_heads, shape.head_size,
      rig.operation().plans(), worst[0], worst[1], worst[2], worst[3], worst[4]);
  std::fflush(stdout);
  CHECK(worst[0] < limits.forward);
  CHECK(worst[1] < limits.forward);
  CHECK(worst[2] < limits.backward);
  CHECK(worst[3] < limits.backward);
  CHECK(worst[4] < limits.backward);
  CHECK_FALSE(rig.damaged());
}

TEST_CASE("Attention against float64") {
  if (NoDevice()) return;
  for (const AttentionShape& shape :
       {Shape(32, 8, 128), Shape(32, 4, 64), Shape(9, 3, 64), Shape(4, 2, 32), Shape(3, 1, 96),
        Shape(2, 2, 80), Shape(4, 2, 16), Shape(3, 1, 10), Shape(2, 1, 256), Shape(8, 2, 128, 16),
        Shape(6, 2, 64, 100), Shape(4, 2, 256, 65), Shape(3, 1, 96, 64), Shape(3, 1, 10, 33),
        Shape(4, 2, 256, 65, 2), Shape(4, 2, 128, 0, 2)}) {
    INFO("N " << shape.heads << " G " << shape.kv_heads << " D " << shape.head_size << " window "
              << shape.window << " cap " << shape.cap);
    CheckAgainstReference(DType::kBfloat16, shape, kBfloat16Limits, {});
  }
  CheckAgainstReference(DType::kBfloat16, Shape(4, 2, 64), kBfloat16Limits, kPlain);
  CheckAgainstReference(DType::kBfloat16, Shape(4, 2, 128), kBfloat16Limits, kCudnnAlone);
  for (const AttentionShape& shape : {Shape(9, 3, 64), Shape(4, 1, 128), Shape(2, 1, 6)}) {
    CheckAgainstReference(DType::kFloat32, shape, kFloat32Limits, {});
  }
}

TEST_CASE("Equal runs give equal bits") {
  if (NoDevice()) return;
  for (const AttentionShape& shape :
       {Shape(32, 8, 128), Shape(32, 4, 64), Shape(9, 3, 64), Shape(4, 2, 96), Shape(2, 2, 80),
        Shape(2, 1, 256), Shape(4, 2, 32), Shape(4, 2, 16), Shape(32, 8, 128, 200),
        Shape(8, 2, 64, 64), Shape(4, 2, 256, 200)}) {
    AttentionRig rig(DType::kBfloat16, {}, LimitsOf(shape, 1024));
    const std::vector<Sequence> sequences = Sequences(5, {900, 17, 130, 333, 512, 64, 1000, 77});
    const int different = rig.DifferentRepeats(sequences, shape, 20);
    std::printf("repeats N=%ld D=%ld: %d of 20 differ\n", shape.heads, shape.head_size, different);
    CHECK(different == 0);
  }
}

// The first element of `got` that is off by more than `limit` of the largest of its sequence.
void PrintWrong(const char* tensor, const std::vector<float>& want, const std::vector<float>& got,
                int64_t rows, int64_t head_size, double limit) {
  double largest = 0;
  for (const float value : want) largest = std::max<double>(largest, std::abs(value));
  const auto heads = static_cast<int64_t>(want.size()) / rows / head_size;
  int64_t first = -1;
  int64_t count = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::abs(want[i] - got[i]) <= limit * largest) continue;
    if (first < 0) first = static_cast<int64_t>(i);
    ++count;
  }
  if (first < 0) return;
  std::printf("  %s: %ld of %zu wrong, first row %ld head %ld column %ld: got %g want %g\n", tensor,
              count, want.size(), first / heads / head_size, first / head_size % heads,
              first % head_size, static_cast<double>(got[static_cast<size_t>(first)]),
              static_cast<double>(want[static_cast<size_t>(first)]));
}

// Of both, bits apart: plain kernels sum in another order and round p and ds nowhere.
void CheckBackwardAgainstPlain(const AttentionShape& shape, const std::vector<int64_t>& rows) {
  int64_t tokens = 0;
  for (const int64_t count : rows) tokens += count;
  Limits limits = LimitsOf(shape, *std::max_element(rows.begin(), rows.end()));
  limits.tokens = std::max(limits.tokens, tokens);
  AttentionRig own(DType::kBfloat16, {.cudnn = false}, limits);
  AttentionRig plain(DType::kBfloat16, kPlain, limits);
  const std::vector<Sequence> sequences = Sequences(123, rows);
  const std::vector<SequenceResults> got = own.Run(sequences, shape);
  const std::vector<SequenceResults> want = plain.Run(sequences, shape);
  double worst[3] = {};
  for (size_t i = 0; i < sequences.size(); ++i) {
    CHECK(SameBits(got[i].out, want[i].out));
    const struct {
      const char* name;
      const std::vector<float>& want;
      const std::vector<float>& got;
    } tensors[] = {{"dq", want[i].dq, got[i].dq},
                   {"dk", want[i].dk, got[i].dk},
                   {"dv", want[i].dv, got[i].dv}};
    for (int t = 0; t < 3; ++t) {
      // One row alone: dq and dk are nothing but rounding.
      if (rows[i] == 1 && t < 2) continue;
      const std::vector<double> exact(tensors[t].want.begin(), tensors[t].want.end());
      const double error = RelativeError(exact, tensors[t].got);
      worst[t] = std::max(worst[t], error);
      if (error < kBfloat16Limits.backward) continue;
      worst[t] = std::max(worst[t], 1.0);
      std::printf("N=%ld G=%ld D=%ld rows %ld: %s off by %.1e\n", shape.heads, shape.kv_heads,
                  shape.head_size, rows[i], tensors[t].name, error);
      PrintWrong(tensors[t].name, tensors[t].want, tensors[t].got, rows[i], shape.head_size, 0.05);
    }
  }
  std::printf("backward N=%ld G=%ld D=%ld: dq %.1e dk %.1e dv %.1e from the plain kernels'\n",
              shape.heads, shape.kv_heads, shape.head_size, worst[0], worst[1], worst[2]);
  std::fflush(stdout);
  for (const double error : worst) CHECK(error < kBfloat16Limits.backward);
  CHECK_FALSE(own.damaged());
}

TEST_CASE("Own backward against the plain kernels") {
  if (NoDevice()) return;
  for (const AttentionShape& shape :
       {Shape(1, 1, 64), Shape(1, 1, 128), Shape(4, 2, 64), Shape(8, 1, 128), Shape(6, 2, 128),
        Shape(9, 3, 64), Shape(4, 2, 64, 1), Shape(4, 2, 128, 16), Shape(8, 2, 64, 63),
        Shape(8, 2, 128, 64), Shape(6, 2, 64, 65), Shape(6, 2, 128, 200)}) {
    CheckBackwardAgainstPlain(shape, {64});
    CheckBackwardAgainstPlain(shape, {128});
    CheckBackwardAgainstPlain(shape, {1,   2,   63,  64,  65,  100, 127, 128, 129, 191,
                                      192, 193, 255, 256, 257, 300, 511, 513, 17,  1024});
  }
  CheckBackwardAgainstPlain(Shape(4, 2, 64), {2047, 5, 2048, 1000});
  CheckBackwardAgainstPlain(Shape(4, 2, 128), {2047, 5, 2048, 1000});
  CheckBackwardAgainstPlain(Shape(4, 2, 128, 700), {2047, 5, 2048, 1000});
  CheckBackwardAgainstPlain(Shape(2, 1, 64), {8192});
  CheckBackwardAgainstPlain(Shape(2, 1, 128), {8192});
}

TEST_CASE("Gradients turned by the backward are those that rope turns after it") {
  if (NoDevice()) return;
  const std::vector<int64_t> rows = {1, 130, 63, 300, 7, 128, 129, 33, 1024};
  for (const AttentionShape& shape : {Shape(9, 3, 64), Shape(8, 1, 64), Shape(6, 2, 128),
                                      Shape(4, 4, 128), Shape(4, 2, 96), Shape(2, 1, 32)}) {
    AttentionRig rig(DType::kBfloat16, {}, LimitsOf(shape, 1024));
    const std::vector<Sequence> sequences = Sequences(55, rows);
    const std::vector<SequenceResults> straight = rig.Run(sequences, shape);
    rig.SetTurn(Turn::kAfter, 1024, shape.head_size);
    const std::vector<SequenceResults> after = rig.Run(sequences, shape);
    rig.SetTurn(Turn::kWithin, 1024, shape.head_size);
    const std::vector<SequenceResults> within = rig.Run(sequences, shape);
    INFO("N " << shape.heads << " G " << shape.kv_heads << " D " << shape.head_size);
    for (size_t i = 0; i < sequences.size(); ++i) {
      INFO("rows " << rows[i]);
      CHECK(SameBits(after[i], within[i]));
      CHECK(SameBits(straight[i].dv, within[i].dv));
      CHECK((rows[i] == 1 || !SameBits(straight[i].dq, within[i].dq)));
      for (const auto& [want, got] :
           {std::pair{&after[i].dq, &within[i].dq}, std::pair{&after[i].dk, &within[i].dk}}) {
        PrintWrong("turned", *want, *got, rows[i], shape.head_size, 0);
      }
    }
    CHECK_FALSE(rig.damaged());
  }
}

// Companies in which a sequence of 900 rows is looked at; the first of each.
struct Company {
  const char* name;
  std::vector<Sequence> before, after;
};

TEST_CASE("A sequence has the same bits alone and in any company") {
  if (NoDevice()) return;
  for (const AttentionShape& shape :
       {Shape(16, 4, 128), Shape(4, 1, 128), Shape(8, 2, 64), Shape(9, 3, 64), Shape(4, 2, 96),
        Shape(2, 2, 80), Shape(2, 1, 256), Shape(4, 2, 32), Shape(4, 2, 16), Shape(16, 4, 128, 200),
        Shape(8, 2, 64, 17), Shape(4, 2, 256, 1024), Shape(4, 2, 256, 300, 2)}) {
    AttentionRig rig(DType::kBfloat16, {}, LimitsOf(shape, 4096));
    for (const int64_t rows : {int64_t{1}, int64_t{100}, int64_t{900}, int64_t{2000}}) {
      const Sequence watched = {.seed = 3, .rows = rows};
      const SequenceResults alone = rig.Run({watched}, shape)[0];
      const std::vector<Company> companies = {
          {"one short after", {}, Sequences(10, {17})},
          {"others before, odd offset", Sequences(10, {17, 130, 333}), {}},
          {"longer ones around: longer bucket", Sequences(20, {1100}), Sequences(30, {2100})},
          {"many short: wider bucket", Sequences(40, {3, 5, 9, 70, 33}), Sequences(60, {1, 1, 2})},
          {"poisoned before and after",
           {{.seed = 9, .rows = 77, .poisoned = true}},
           {{.seed = 8, .rows = 210, .poisoned = true}}},
          {"poisoned, longer",
           {{.seed = 9, .rows = 1100, .poisoned = true}},
           {{.seed = 8, .rows = 1300, .poisoned = true}}},
      };
      for (const Company& company : companies) {
        std::vector<Sequence> sequences = company.before;
        sequences.push_back(watched);
        sequences.insert(sequences.end(), company.after.begin(), company.after.end());
        const SequenceResults got = rig.Run(sequences, shape)[company.before.size()];
        const bool same = SameBits(alone, got);
        if (!same) {
          std::printf("isolation N=%ld D=%ld rows %ld, %s: out %d lse %d dq %d dk %d dv %d\n",
                      shape.heads, shape.head_size, rows, company.name,
                      SameBits(alone.out, got.out), SameBits(alone.lse, got.lse),
                      SameBits(alone.dq, got.dq), SameBits(alone.dk, got.dk),
                      SameBits(alone.dv, got.dv));
        }
        INFO("N " << shape.heads << " D " << shape.head_size << " rows " << rows << ": "
                  << company.name);
        CHECK(same);
      }
      CHECK_FALSE(rig.damaged());
    }
  }
}

TEST_CASE("Groups of heads change no bits") {
  if (NoDevice()) return;
  const AttentionShape shape = Shape(32, 8, 128);
  AttentionRig whole(DType::kBfloat16, kCudnnAlone, LimitsOf(shape, 1024));
  AttentionRig parts(DType::kBfloat16,
                     {.score_bytes_max = int64_t{64} << 20, .own_backward = false},
                     LimitsOf(shape, 1024));
  const std::vector<Sequence> sequences = Sequences(5, {900, 1024, 130});
  const std::vector<SequenceResults> a = whole.Run(sequences, shape);
  const std::vector<SequenceResults> b = parts.Run(sequences, shape);
  for (size_t i = 0; i < a.size(); ++i) CHECK(SameBits(a[i], b[i]));
}

TEST_CASE("Captured into a CUDA graph: the same bits") {
  if (NoDevice()) return;
  const AttentionShape shape = Shape(32, 8, 128);
  AttentionRig rig(DType::kBfloat16, {}, LimitsOf(shape, 1024));
  CHECK(rig.SameWhenCaptured(Sequences(5, {900, 17, 130, 333}), shape));
}

TEST_CASE("Own kernels: the same bits in any company, strangers' NaN included") {
  if (NoDevice()) return;
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    const AttentionShape shape = Shape(6, 2, 48);
    AttentionRig rig(dtype, {.cudnn = false}, LimitsOf(shape, 1024));
    const Sequence watched = {.seed = 3, .rows = 150};
    const SequenceResults alone = rig.Run({watched}, shape)[0];
    const SequenceResults among = rig.Run({{.seed = 9, .rows = 77, .poisoned = true},
                                           watched,
                                           {.seed = 8, .rows = 400, .poisoned = true}},
                                          shape)[1];
    CHECK(SameBits(alone, among));
    CHECK_FALSE(rig.damaged());
  }
}

}  // namespace
}  // namespace lorad::kernels::cuda::testing
