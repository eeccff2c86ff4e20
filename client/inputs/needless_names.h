#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lorad::client {

// A name of PEFT's, TRL's or transformers' that no field needs: it says what is done here anyway.
// Threads: all of this file is safe from any.
struct NeedlessName {
  absl::string_view section;  // "adapter" or "training"
  absl::string_view name;
  absl::string_view values;  // what it may say, as a JSON list; "": anything
  absl::string_view why;     // no other value is taken, and what to say instead
};

// The one table of such names; docs/api.md names each, and the Python package has the same
// (client/python/src/lorad/needless.py).
absl::Span<const NeedlessName> NeedlessNames();

// What is wrong with this value of the name; "" where it says what is done anyway, or null.
std::string WhyNot(const NeedlessName& name, const nlohmann::json& value);

}  // namespace lorad::client
