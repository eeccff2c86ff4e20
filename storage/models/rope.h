#pragma once

#include "storage/files/config_reader.h"
#include "storage/models/model_description.h"

namespace lorad::storage {

// The rotary embedding of a config in either spelling: rope_theta + rope_scaling, or
// rope_parameters (transformers 5). Types "default" and "llama3"; others are a problem by name.
RopeSpec ReadRope(ConfigReader& config, int head_size);

}  // namespace lorad::storage
