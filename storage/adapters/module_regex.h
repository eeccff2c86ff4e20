#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorad::storage {

// A regular expression over module paths, as PEFT has it in target_modules and rank_pattern:
// Python's syntax on PCRE2's compiler. What the two read in different ways is refused, because
// PEFT reads what we write. Movable; const methods are thread-safe.
class ModuleRegex {
 public:
  enum class Extent {
    kWhole,   // of a path: re.fullmatch(pattern, path)
    kEnding,  // all of it, or what follows a dot: re.match(r"(.*\.)?(pattern)$", path)
  };

  // ADAPTER_INVALID: it does not compile, or is not Python's (with the place), or is longer than
  // 64 KiB.
  static absl::StatusOr<ModuleRegex> Compile(std::string_view pattern,
                                             Extent extent = Extent::kWhole);

  ModuleRegex(ModuleRegex&&) noexcept;
  ModuleRegex& operator=(ModuleRegex&&) noexcept;
  ~ModuleRegex();

  // Whether `path` matches in its extent. ADAPTER_INVALID if it backtracks without end, as PEFT
  // would.
  absl::StatusOr<bool> Matches(std::string_view path) const;

 private:
  struct Code;
  ModuleRegex();

  std::string pattern_;
  std::unique_ptr<const Code> code_;
};

}  // namespace lorad::storage
