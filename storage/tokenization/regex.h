#pragma once

// The regular expressions of tokenizer.json files (Oniguruma's syntax) on PCRE2's compiler.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorad::storage::tokenization {

// The same expression in PCRE2's words. INVALID_ARGUMENT names an element that the two understand
// differently, or whose time could grow faster than the square of the text's length.
absl::StatusOr<std::string> TranslateRegex(std::string_view pattern);

// A compiled pattern. Immutable; may be used by any number of threads at once.
class Regex {
 public:
  // Refuses what TranslateRegex refuses, and a pattern that matches the empty text.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  // Matches `text` itself. REQUIRES: not empty.
  static Regex Literal(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Calls `part` for every match and every stretch between matches, in order; they cover `text`.
  // REQUIRES: `text` is UTF-8. RESOURCE_EXHAUSTED if the matcher gives up.
  absl::Status Split(std::string_view text,
                     const std::function<void(size_t begin, size_t end, bool match)>& part) const;

 private:
  struct Code;
  Regex();

  std::string literal_;
  std::unique_ptr<const Code> code_;
};

}  // namespace lorad::storage::tokenization
