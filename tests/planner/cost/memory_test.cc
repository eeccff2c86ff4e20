// The formulas against sums made by hand; tests/worker holds them equal to the engine's arenas.
#include "planner/cost/memory.h"

#include <catch2/catch.hpp>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

TEST_CASE("Weights, activations and workspace of a model that can be followed by hand") {
  const GroupBytes bytes = BytesOfGroup(
      Tiny(), {.capacity_tokens = 32, .longest_sequence = 20, .device = {.threads = 2}});
  // Each of two layers: norms 2 * 64; qkv 32 x 16 and bias 32; o 16 x 16; gate, up 64 x 16; down
  // 16 x 32. Then the last norm, the rotary table 20 x 8, embedding and head of 64 x 16.
  const int64_t layer = 2 * 64 + 4 * 512 + 128 + 4 * 256 + 4 * 1024 + 4 * 512;
  CHECK(bytes.weights == 2 * layer + 64 + 640 + 2 * 4096);
  // T = 32. Each layer: x twice 32 x 16, qkv 32 x 32, out 32 x 16, lse 32 x 2, gate and up 32 x 64.
  const int64_t kept = 2 * 2048 + 4096 + 2048 + 256 + 8192;
  // Border, h, dh, dx; log p and unit gradient; scratch: 32 x 32 + 32 x 32 of the MLP is the
  // larger.
  CHECK(bytes.activations == 2 * kept + 4 * 2048 + 128 + 2048 + 8192);
  // S and dS 32 x 3 * 512; mask bits 3 x 32 x 8; sums, maxima, eight lanes and scores
  // of the loss; scratch of two threads.
  const int64_t scratch = 4 * (256 * 768 + 512 * 768);
  CHECK(bytes.workspace ==
        2 * 4 * 32 * 1536 + 768 + 4 * 32 * 16 + 4 * 32 + 8 * 4 * 32 + 128 + 2 * scratch);
  CHECK(bytes.total() == bytes.weights + bytes.activations + bytes.workspace);
}

TEST_CASE("A stage of one block has no workspace for the other kind") {
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    GroupShape shape{1024, 512, {.kind = kind, .threads = 2, .multiprocessors = 132}};
    const int64_t both = BytesOfGroup(SmolLm2(), shape, {1, 3}).workspace;
    for (const int32_t block : {1, 2}) {
      const int64_t one = BytesOfGroup(SmolLm2(), shape, {block, block + 1}).workspace;
      CHECK(one > 0);
      CHECK(one <= both);
    }
  }
}

TEST_CASE("Slots") {
  // q: A 4 x 16, B 16 x 4; v: A 4 x 16, B 8 x 4; down: A 4 x 32, B 16 x 4, in each of two layers.
  const AdapterShape adapter{4, {"q_proj", "v_proj", "down_proj"}};
  CHECK(AdapterParameters(Tiny(), adapter) == 2 * (64 + 64 + 64 + 32 + 128 + 64));
  const SlotBytes bytes = BytesOfSlot(Tiny(), adapter);
  CHECK(bytes.adapters == 2 * 4 * 416);
  CHECK(bytes.optimizer == 2 * (2 * 4 + 8) * 416);
  CHECK(bytes.staging == 12 * 2 * 416);
  // An odd rank: every matrix is rounded up to 64 bytes by itself.
  const SlotBytes odd = BytesOfSlot(Tiny(), {3, {"v_proj"}});
  CHECK(odd.adapters == 2 * (192 + 128));  // 3 x 16 and 8 x 3 floats
  CHECK(odd.optimizer == 2 * (2 * (192 + 128) + (384 + 192)));
  CHECK(odd.staging == 12 * 144);
  CHECK(BytesOfSlot(Tiny(), {4, {"unknown"}}).total() == 0);
}

TEST_CASE("Parameters of a real adapter") {
  const AdapterShape all{
      8, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}};
  CHECK(AdapterParameters(SmolLm2(), all) == 2442240);  // as PEFT prints it
}

TEST_CASE("Admission keeps a margin") {
  CHECK(Fits(1000, 1020));
  CHECK_FALSE(Fits(1001, 1020));
  CHECK_FALSE(Fits(1, 0));
}

}  // namespace
}  // namespace lorad::planner
