#pragma once

#include <cstdint>
#include <vector>

#include "storage/files/config_reader.h"
#include "storage/models/families.h"

namespace lorad::storage {

// What a layer's attention sees and whether its q and k turn.
struct LayerKind {
  bool sliding = false;  // "sliding_attention"; else "full_attention"
  int64_t window = 0;    // 0: none, also where the model's longest sequence does not pass it
  bool rope = true;
};

// Of every layer, by sliding_window, use_sliding_window, max_window_layers, sliding_window_pattern,
// layer_types, no_rope_layers and no_rope_layer_interval, each where the family has it. Problems: a
// list of another length than `layers`, another kind of attention, a window of 0.
std::vector<LayerKind> ReadLayerKinds(ConfigReader& config, const Family& family, int layers,
                                      int64_t max_positions);

}  // namespace lorad::storage
