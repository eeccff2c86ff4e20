#pragma once

// Python's operators on values.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "storage/jinja/builtins.h"
#include "storage/jinja/program.h"
#include "storage/jinja/value.h"

namespace lorad::storage::jinja {

inline constexpr uint64_t kBytesPerStep = 16;

// Fails with what an undefined value says of itself.
Value FailUndefined(Context* context, const Value& value);

Value ApplyUnary(Context* context, Operator op, const Value& value);
Value ApplyBinary(Context* context, Operator op, const Value& left, const Value& right);
bool ApplyComparison(Context* context, Operator op, const Value& left, const Value& right);

// object[begin:end:step]; what was left out is nothing.
using SliceBounds = std::array<std::optional<int64_t>, 3>;
Value SliceOf(Context* context, const Value& object, const SliceBounds& bounds);

// range(..).
Value MakeRange(Context* context, const std::vector<Value>& arguments);

}  // namespace lorad::storage::jinja
