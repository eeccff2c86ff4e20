#include "storage/adapters/module_regex.h"

#include <pcre2.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr char kInvalid[] = "ADAPTER_INVALID";
constexpr size_t kPatternLimit = 64 << 10;
// Far above what an honest expression needs for a path of a hundred characters; some milliseconds.
constexpr uint32_t kMatchLimit = 1'000'000;

using MatchData =
    std::unique_ptr<pcre2_match_data, decltype([](auto* data) { pcre2_match_data_free(data); })>;
using MatchContext = std::unique_ptr<pcre2_match_context,
                                     decltype([](auto* data) { pcre2_match_context_free(data); })>;

}  // namespace

struct ModuleRegex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

ModuleRegex::ModuleRegex() = default;
ModuleRegex::ModuleRegex(ModuleRegex&&) noexcept = default;
ModuleRegex& ModuleRegex::operator=(ModuleRegex&&) noexcept = default;
ModuleRegex::~ModuleRegex() = default;

absl::StatusOr<ModuleRegex> ModuleRegex::Compile(std::string_view pattern) {
  if (pattern.size() > kPatternLimit) {
    return Refuse(kInvalid, absl::StrCat("a regular expression of ", pattern.size(),
                                         " bytes; at most ", kPatternLimit));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &offset, nullptr);
  if (code->code == nullptr) {
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(error, text, sizeof text);
    return Refuse(kInvalid, absl::StrCat("the regular expression ", Quoted(pattern),
                                         " is wrong at character ", offset, ": ",
                                         reinterpret_cast<const char*>(text)));
  }
  ModuleRegex regex;
  regex.pattern_ = std::string(pattern);
  regex.code_ = std::move(code);
  return regex;
}

absl::StatusOr<bool> ModuleRegex::Matches(std::string_view path) const {
  const MatchData data(pcre2_match_data_create_from_pattern(code_->code, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMatchLimit);
  const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(path.data()), path.size(),
                                0, 0, data.get(), context.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  return Refuse(kInvalid,
                absl::StrCat("the regular expression ", Quoted(pattern_), " takes too long on ",
                             Quoted(path), ": it backtracks; write it without repeated groups"));
}

}  // namespace lorad::storage
