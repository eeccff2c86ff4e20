#pragma once

#include "storage/files/config_reader.h"

namespace lorad::storage {

// Fields of published configs that are not read: those that change nothing that training computes
// are ignored, those that mean something else than we compute may only say what is usual.
void CheckOtherFields(ConfigReader& config);
// The same of a config with a text_config and a tower, of which nothing but the text is read.
void IgnoreTowerFields(ConfigReader& config);

}  // namespace lorad::storage
