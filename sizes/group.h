// The words in which sizes are asked for: a base model, a device, a group, an adapter.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "sizes/batch.h"

namespace lorad::sizes {

// What of a base model memory and time depend on.
struct ModelShape {
  struct Part {
    std::string target;  // "q_proj"
    int64_t out_features = 0;
    bool bias = false;
  };
  // A table of cosines and sines that layers share.
  struct RopeTable {
    int64_t features = 0;  // of a head, that turn
    // Sequences longer than this have rows of their own; 0: none have.
    int64_t border = 0;

    bool operator==(const RopeTable&) const = default;
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
  bool in_norm = true;        // what goes into attention and MLP is normed
  bool out_norm = false;      // what comes out of them is, before it is added
  // Floats of the norms of q and k before they turn, of a head's or of all; 0: there are none.
  int64_t q_norm = 0;
  int64_t k_norm = 0;
  std::vector<RopeTable> ropes;
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
// on. Backends are exact, so no bit of a result depends on it.
enum class Recomputation {
  kNothing,   // everything is kept, S of the LoRA linears included
  kProducts,  // outputs of norms, the SwiGLU product and S: 2 to 3 % of a step
  kBlocks,    // blocks (attention or MLP) from their input on: about a third of a step
};

// "nothing", "products", "blocks".
const char* ToText(Recomputation recomputation);

// Rows of a rope table whose longest sequence has `longest` rows.
constexpr int64_t RopeRows(int64_t longest, int64_t border) {
  return border > 0 && longest > border ? 2 * longest : longest;
}

// Which blocks of a model a stage holds. A block is half a layer (attention or MLP), so layers may
// be cut between the two; the residual stream is what crosses a border. The stage of block 0 has
// the embedding, the stage of the last block the final norm, the head and the loss.
struct StageRange {
  int32_t first_block = 0;
  int32_t end_block = 0;  // exclusive

  bool has_embedding() const { return first_block == 0; }
  bool has_head(int64_t blocks_of_model) const { return end_block == blocks_of_model; }

  bool operator==(const StageRange&) const = default;
};

// Microbatches that a stage may have in flight, at most: the engine keeps marks for each.
inline constexpr int kInFlightMax = 16;

// Logits are kept of at most so many rows at a time, in float32, each row with room for a multiple
// of this many words.
inline constexpr int64_t kLogitRows = 16;
inline constexpr int64_t kLogitAlignment = 64;
constexpr int64_t LogitFloats(int64_t capacity_tokens, int64_t vocabulary) {
  return (capacity_tokens < kLogitRows ? capacity_tokens : kLogitRows) *
         RoundUp(vocabulary, kLogitAlignment);
}

// What the memory of a group's stage is planned for, whoever will be in it.
struct GroupShape {
  int64_t capacity_tokens = 0;   // the most of a microbatch (planner::CapacityFor)
  int64_t longest_sequence = 0;  // at most capacity_tokens
  DeviceShape device = {};       // the engine asks its backend instead
  Recomputation recomputation = Recomputation::kProducts;
  // The workspace has room for so many adapters of up to such a rank.
  int64_t rank_max = kRankMax;
  int64_t slots_max = kSlotsMax;
  // Microbatches between their Forward and the end of their Backward.
  int in_flight = 1;
};

// What an adapter's matrices take.
struct AdapterShape {
  // A projection with matrices of one rank.
  struct Part {
    std::string target;
    int64_t rank = 0;
    int64_t layers = 0;  // in so many of the model's; 0: in all

    auto operator<=>(const Part&) const = default;
  };
  std::vector<Part> parts;
  bool trains = true;  // else it only answers: no gradients, moments or staging

  AdapterShape() = default;
  // In all layers with one rank.
  AdapterShape(int64_t rank, const std::vector<std::string>& targets);

  int64_t rank_max() const;  // 0 without parts
  // "q_proj:8,v_proj:4x2", behind "answers:" where it does not train; equal if and only if the
  // shapes are.
  std::string ToText() const;

  auto operator<=>(const AdapterShape&) const = default;
};

}  // namespace lorad::sizes
