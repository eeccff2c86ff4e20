#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorad::storage {

// A regular expression over module paths, as PEFT has it in target_modules: Python's syntax on
// PCRE2's compiler, which has the same for what such expressions use. Movable; const methods are
// thread-safe.
class ModuleRegex {
 public:
  // ADAPTER_INVALID: it does not compile (with the place), or is longer than 64 KiB.
  static absl::StatusOr<ModuleRegex> Compile(std::string_view pattern);

  ModuleRegex(ModuleRegex&&) noexcept;
  ModuleRegex& operator=(ModuleRegex&&) noexcept;
  ~ModuleRegex();

  // Whether all of `path` matches (re.fullmatch). ADAPTER_INVALID if it backtracks without end.
  absl::StatusOr<bool> Matches(std::string_view path) const;

 private:
  struct Code;
  ModuleRegex();

  std::string pattern_;
  std::unique_ptr<const Code> code_;
};

}  // namespace lorad::storage
