#pragma once

#include "storage/files/config_reader.h"
#include "storage/models/families.h"
#include "storage/models/model_description.h"

namespace lorad::storage {

// The rotary embeddings of a model's two kinds of layers; equal where the family has one.
struct Ropes {
  RopeSpec full;     // of full_attention
  RopeSpec sliding;  // of sliding_attention
};

// Of a config in any spelling: rope_theta + rope_scaling (and rope_local_base_freq), or
// rope_parameters (transformers 5), flat or by kind of layer. Types "default", "linear", "llama3",
// "yarn" and "longrope"; others are a problem by name.
Ropes ReadRopes(ConfigReader& config, const Family& family, int head_size, int64_t max_positions);

}  // namespace lorad::storage
