#include "storage/tokenization/regex.h"

#include <pcre2.h>

#include <cassert>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage::tokenization {
namespace {

// One search's work: far above what a split of honest text needs at one place.
constexpr uint32_t kMatchLimit = 200'000'000;

using MatchData =
    std::unique_ptr<pcre2_match_data, decltype([](auto* data) { pcre2_match_data_free(data); })>;

struct CompiledCode {
  pcre2_code* code = nullptr;
  ~CompiledCode() { pcre2_code_free(code); }
};

std::string ErrorText(int error) {
  PCRE2_UCHAR text[128];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  CompiledCode compiled;
  bool jit = false;
};

Regex::Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Regex Regex::Literal(std::string_view text) {
  assert(!text.empty());
  Regex out;
  out.literal_ = text;
  return out;
}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  const absl::StatusOr<std::string> translated = TranslateRegex(pattern);
  if (!translated.ok()) return translated.status();
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->compiled.code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  const auto refuse = [pattern](std::string_view why) {
    return Refuse("TOKENIZER_UNSUPPORTED",
                  absl::StrCat("regular expression \"", Absl(pattern), "\": ", Absl(why)));
  };
  if (code->compiled.code == nullptr) return refuse(ErrorText(error));
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code->compiled.code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) return refuse("it matches the empty text, which cannot split a text");
  code->jit = pcre2_jit_compile(code->compiled.code, PCRE2_JIT_COMPLETE) == 0;
  Regex out;
  out.code_ = std::move(code);
  return out;
}

absl::Status Regex::Split(
    std::string_view text,
    const std::function<void(size_t begin, size_t end, bool match)>& part) const {
  size_t done = 0;
  const auto found = [&](size_t begin, size_t end) {
    if (done != begin) part(done, begin, false);
    part(begin, end, true);
    done = end;
  };
  if (code_ == nullptr) {
    for (size_t at; (at = text.find(literal_, done)) != std::string_view::npos;) {
      found(at, at + literal_.size());
    }
  } else {
    const MatchData data(pcre2_match_data_create(1, nullptr));
    const std::unique_ptr<pcre2_match_context,
                          decltype([](auto* c) { pcre2_match_context_free(c); })>
        context(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(context.get(), kMatchLimit);
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    while (done < text.size()) {
      int rc = PCRE2_ERROR_JIT_STACKLIMIT;
      if (code_->jit) {
        rc = pcre2_jit_match(code_->compiled.code, subject, text.size(), done, PCRE2_NO_UTF_CHECK,
                             data.get(), context.get());
      }
      if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        // The interpreter keeps its stack on the heap.
        rc = pcre2_match(code_->compiled.code, subject, text.size(), done,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), context.get());
      }
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the tokenizer's regular expression gave up at byte ", done, " of ",
                         text.size(), ": ", ErrorText(rc)));
      }
      const PCRE2_SIZE* place = pcre2_get_ovector_pointer(data.get());
      found(place[0], place[1]);
    }
  }
  if (done < text.size()) part(done, text.size(), false);
  return absl::OkStatus();
}

}  // namespace lorad::storage::tokenization
