#include "storage/adapters/module_regex.h"

#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr char kInvalid[] = "ADAPTER_INVALID";
constexpr size_t kPatternLimit = 64 << 10;
// Ten times what an honest expression needs for a path of a hundred characters; a millisecond.
constexpr uint32_t kMatchLimit = 50'000;
// PEFT's, around a pattern for an ending.
constexpr std::string_view kBefore = "(.*\\.)?(", kBehind = ")";

using MatchData =
    std::unique_ptr<pcre2_match_data, decltype([](auto* data) { pcre2_match_data_free(data); })>;
using MatchContext = std::unique_ptr<pcre2_match_context,
                                     decltype([](auto* data) { pcre2_match_context_free(data); })>;

// At "(?": a group that Python has. Flags for all of an expression stand at its beginning.
bool IsGroup(std::string_view rest, bool first) {
  for (const std::string_view known :
       {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?P<", "(?P=", "(?>"}) {
    if (rest.substr(0, known.size()) == known) return true;
  }
  const size_t end = rest.find_first_not_of("imsx", 2);
  return end != std::string_view::npos && end > 2 &&
         (rest[end] == ':' || (first && rest[end] == ')'));
}

// The first place that Python's re does not have, or reads in another way; else npos.
size_t FindForeign(std::string_view pattern, ModuleRegex::Extent extent) {
  constexpr std::string_view kLetters = "AbBdDsSwWZafnrtx";
  for (size_t i = 0; i + 1 < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    if (rest[0] == '\\') {
      if (absl::ascii_isalpha(rest[1]) && kLetters.find(rest[1]) == std::string_view::npos)
        return i;
      ++i;
      continue;
    }
    if (rest[0] == '(' && rest[1] == '*') return i;
    const bool first = i == 0 && extent == ModuleRegex::Extent::kWhole;
    if (rest[0] == '(' && rest[1] == '?' && !IsGroup(rest, first)) return i;
    if (rest[0] == '[' && rest[1] == ':' && rest.find(":]") != std::string_view::npos) return i;
  }
  return std::string_view::npos;
}

}  // namespace

struct ModuleRegex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

ModuleRegex::ModuleRegex() = default;
ModuleRegex::ModuleRegex(ModuleRegex&&) noexcept = default;
ModuleRegex& ModuleRegex::operator=(ModuleRegex&&) noexcept = default;
ModuleRegex::~ModuleRegex() = default;

absl::StatusOr<ModuleRegex> ModuleRegex::Compile(std::string_view pattern, Extent extent) {
  if (pattern.size() > kPatternLimit) {
    return Refuse(kInvalid, absl::StrCat("a regular expression of ", pattern.size(),
                                         " bytes; at most ", kPatternLimit));
  }
  if (const size_t foreign = FindForeign(pattern, extent); foreign != std::string_view::npos) {
    return Refuse(kInvalid,
                  absl::StrCat("the regular expression ", Quoted(pattern), " has at character ",
                               foreign, " what Python's re reads otherwise, and so PEFT would: ",
                               Quoted(pattern.substr(foreign, 8))));
  }
  const std::string text = extent == Extent::kWhole
                               ? std::string(pattern)
                               : absl::StrCat(Absl(kBefore), Absl(pattern), Absl(kBehind));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &offset, nullptr);
  if (code->code == nullptr) {
    PCRE2_UCHAR why[128];
    pcre2_get_error_message(error, why, sizeof why);
    const size_t before = extent == Extent::kWhole ? 0 : kBefore.size();
    return Refuse(
        kInvalid,
        absl::StrCat("the regular expression ", Quoted(pattern), " is wrong at character ",
                     std::min(offset - std::min(offset, before), pattern.size()), ": ",
                     reinterpret_cast<const char*>(why)));
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
