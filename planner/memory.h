// Bytes of a stage, by the engine's own counting rules (worker/memory), as formulas. tests/worker
// holds them equal to what the arena hands out, byte for byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lorad::planner {

// What of a base model memory and time depend on.
struct ModelShape {
  struct Part {
    std::string target;  // "q_proj"
    int64_t out_features = 0;
    bool bias = false;
  };
  // Products with one input; every layer has them alike.
  struct Group {
    int64_t in_features = 0;
    std::vector<Part> parts;
  };
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t ffn = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t vocabulary = 0;
  bool tied_head = false;
  std::vector<Group> groups;  // qkv, o, gate_up, down
};

enum class DeviceKind {
  kCpu,   // in the host's memory
  kCuda,  // in the device's memory; saves are staged in the host's
};

// What of a device memory depends on.
struct DeviceShape {
  DeviceKind kind = DeviceKind::kCpu;
  int threads = 1;          // of a CPU
  int multiprocessors = 0;  // of a GPU
  int value_bytes = 4;      // of a weight, an activation and its gradient; adapters are float32

  bool operator==(const DeviceShape&) const = default;
};

// What the backward pass computes again instead of keeping it from the forward pass, from the least
// on. No bit of a result depends on it.
enum class Recomputation {
  kNothing,   // everything is kept, S of the LoRA linears included
  kProducts,  // outputs of norms, the SwiGLU product and S: 2 to 3 % of a step
  kBlocks,    // blocks (attention or MLP) from their input on: about a third of a step
};

// What a group's memory is planned for, whoever will be in it.
struct GroupShape {
  int64_t capacity_tokens = 0;
  int64_t longest_sequence = 0;
  DeviceShape device = {};
  int stages = 1;
  Recomputation recomputation = Recomputation::kProducts;
  // The workspace has room for so many adapters of up to such a rank.
  int64_t rank_max = 512;
  int64_t slots_max = 256;
};

// No tokens yet. On a CPU products are computed again, on a GPU nothing is at first. On a GPU the
// workspace is planned for 32 adapters of up to rank 64, and a group is formed for more where a job
// brings more.
GroupShape EmptyShape(const DeviceShape& device);

struct AdapterShape {
  int64_t rank = 0;
  std::vector<std::string> targets;
};

// Of a group, whoever trains on it.
struct GroupBytes {
  int64_t weights = 0;
  int64_t activations = 0;
  int64_t workspace = 0;
  int64_t total() const { return weights + activations + workspace; }
};

// Of one slot.
struct SlotBytes {
  int64_t adapters = 0;   // masters, and on a GPU the copies that products read
  int64_t optimizer = 0;  // moments and gradient accumulators
  int64_t staging = 0;    // what Save sends up; on a GPU not in its memory
  int64_t total() const { return adapters + optimizer + staging; }
};

// "nothing", "products", "blocks".
const char* ToText(Recomputation recomputation);

int64_t AdapterParameters(const ModelShape& model, const AdapterShape& adapter);
GroupBytes BytesOfGroup(const ModelShape& model, const GroupShape& group);
SlotBytes BytesOfSlot(const ModelShape& model, const AdapterShape& adapter,
                      const DeviceShape& device = {});

// estimate * (1 + kMemoryMargin) <= budget.
inline constexpr double kMemoryMargin = 0.02;
bool Fits(int64_t bytes, int64_t budget_bytes);

}  // namespace lorad::planner
