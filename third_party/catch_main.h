// What a test's program may add to the runner's main() (catch_main.cc). Both are called before
// main(), by variables that are initialised there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>

namespace lorad::testing {

// A flag beside Catch's: `--name HINT`, or `--name` alone for a bool. It is read into *value; what
// that was is its default.
using FlagValue = std::variant<bool*, int*, uint64_t*, std::string*>;
bool AddFlag(FlagValue value, const std::string& name, const std::string& hint,
             const std::string& help);

// Runs the tests (run: they, and the exit status) in a way of its own, and gives the exit status.
bool RunTestsBy(std::function<int(const std::function<int()>& run)> runner);

}  // namespace lorad::testing
