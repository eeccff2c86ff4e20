// What the planner's tests share: printed seeds and model shapes.
#pragma once

#include <cstdint>
#include <iostream>
#include <memory>
#include <random>
#include <vector>

#include "planner/cost/memory.h"

namespace lorad::planner {

// The fixed seed, and a fresh one that a failure prints.
inline std::vector<uint32_t> Seeds() {
  const uint32_t fresh = std::random_device()();
  std::cout << "random seed " << fresh << "\n";
  return {20240607u, fresh};
}

// SmolLM2-135M.
inline ModelShape SmolLm2() {
  ModelShape model;
  model.layers = 30;
  model.hidden = 576;
  model.ffn = 1536;
  model.heads = 9;
  model.kv_heads = 3;
  model.head_size = 64;
  model.vocabulary = 49152;
  model.tied_head = true;
  model.groups = {
      {576, {{"q_proj", 576, false}, {"k_proj", 192, false}, {"v_proj", 192, false}}},
      {576, {{"o_proj", 576, false}}},
      {576, {{"gate_proj", 1536, false}, {"up_proj", 1536, false}}},
      {1536, {{"down_proj", 576, false}}},
  };
  model.ropes = {{.features = 64}};
  return model;
}

// Llama-3.1-8B.
inline ModelShape Llama8B() {
  ModelShape model;
  model.layers = 32;
  model.hidden = 4096;
  model.ffn = 14336;
  model.heads = 32;
  model.kv_heads = 8;
  model.head_size = 128;
  model.vocabulary = 128256;
  model.tied_head = false;
  model.groups = {
      {4096, {{"q_proj", 4096, false}, {"k_proj", 1024, false}, {"v_proj", 1024, false}}},
      {4096, {{"o_proj", 4096, false}}},
      {4096, {{"gate_proj", 14336, false}, {"up_proj", 14336, false}}},
      {14336, {{"down_proj", 4096, false}}},
  };
  model.ropes = {{.features = 128}};
  return model;
}

inline std::shared_ptr<const ModelShape> Shared(const ModelShape& shape) {
  return std::make_shared<const ModelShape>(shape);
}

// A model whose bytes can be followed by hand.
inline ModelShape Tiny() {
  ModelShape model;
  model.layers = 2;
  model.hidden = 16;
  model.ffn = 32;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_size = 8;
  model.vocabulary = 64;
  model.tied_head = false;
  model.groups = {
      {16, {{"q_proj", 16, true}, {"k_proj", 8, true}, {"v_proj", 8, true}}},
      {16, {{"o_proj", 16, false}}},
      {16, {{"gate_proj", 32, false}, {"up_proj", 32, false}}},
      {32, {{"down_proj", 16, false}}},
  };
  model.ropes = {{.features = 8}};
  return model;
}

// Bytes of a group on a CPU with two threads that computes blocks of SmolLM2 again.
inline int64_t BlocksAgain(int64_t capacity, int64_t longest) {
  GroupShape shape{capacity, longest, {.threads = 2}};
  shape.recomputation = Recomputation::kBlocks;
  return BytesOfGroup(SmolLm2(), shape).total();
}

}  // namespace lorad::planner
