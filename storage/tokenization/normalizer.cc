#include "storage/tokenization/normalizer.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cassert>
#include <optional>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::tokenization {
namespace {

constexpr int kMaxDepth = 8;
constexpr size_t kMaxPrefixBytes = 64;

// A rewritten text may be so long, by the input's length; real normalizers at most triple it.
size_t LengthLimit(size_t bytes) { return 16 * bytes + 4096; }

absl::Status TooLong(size_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "the tokenizer's normalizer makes more than 16 times as much text of ", bytes, " bytes"));
}

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}

  absl::Status Apply(const TextView& text, AlignedText* out, bool* changed) const override {
    if (text.text.empty() || prefix_.empty()) return absl::OkStatus();
    *out = Prepend(text, prefix_);
    *changed = true;
    return absl::OkStatus();
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Regex pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  absl::Status Apply(const TextView& text, AlignedText* out, bool* changed) const override {
    AlignedText result;
    result.text.reserve(text.text.size());
    result.spans.reserve(text.text.size());
    bool matched = false;
    const size_t limit = LengthLimit(text.text.size());
    const absl::Status status =
        pattern_.Split(text.text, [&](size_t begin, size_t end, bool match) {
          if (result.text.size() > limit) return;
          if (match) {
            // New text belongs to the last character of what it replaces.
            result.Append(content_, text.SpanOf(end - 1));
            matched = true;
          } else {
            result.Append(text.Slice(begin, end));
          }
        });
    if (!status.ok() || !matched) return status;
    if (result.text.size() > limit) return TooLong(text.text.size());
    *out = std::move(result);
    *changed = true;
    return status;
  }

 private:
  Regex pattern_;
  std::string content_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  absl::Status Apply(const TextView& text, AlignedText* out, bool* changed) const override {
    std::vector<Rewrite> rewrites;
    rewrites.reserve(text.text.size());
    for (size_t at = 0; at < text.text.size();) {
      const char32_t character = NextCharacter(text.text, &at);
      if (character == 0x130) {  // the one character whose lower case is two, whatever surrounds it
        rewrites.insert(rewrites.end(), {{U'i', 0}, {0x307, 1}});
      } else {
        rewrites.push_back({static_cast<char32_t>(u_tolower(static_cast<UChar32>(character))), 0});
      }
    }
    *out = ApplyRewrites(text, rewrites);
    *changed = true;
    return absl::OkStatus();
  }
};

// Unicode's normalization forms (UAX #15). Changes are counted as the library's own normalizer
// counts them, since spans follow from the counts.
class UnicodeNormalizer : public Normalizer {
 public:
  UnicodeNormalizer(const icu::Normalizer2* form, const icu::Normalizer2* composed, bool compose)
      : form_(form), composed_(composed), compose_(compose) {}

  absl::Status Apply(const TextView& text, AlignedText* out, bool* changed) const override {
    if (IsAscii(text.text)) return absl::OkStatus();
    UErrorCode error = U_ZERO_ERROR;
    const icu::StringPiece piece(text.text.data(), static_cast<int32_t>(text.text.size()));
    if (form_->isNormalizedUTF8(piece, error) && U_SUCCESS(error)) return absl::OkStatus();
    std::vector<Rewrite> rewrites = Decompose(text.text);
    if (compose_) Compose(&rewrites);
    *out = ApplyRewrites(text, rewrites);
    *changed = true;
    return absl::OkStatus();
  }

 private:
  static uint8_t Class(char32_t character) {
    return u_getCombiningClass(static_cast<UChar32>(character));
  }

  std::vector<Rewrite> Decompose(std::string_view text) const {
    std::vector<Rewrite> out;
    out.reserve(text.size());
    size_t marks = 0;  // where the marks that may have to be sorted begin
    icu::UnicodeString parts;
    const auto push = [&](char32_t character, int change) {
      if (Class(character) == 0) {
        SortMarks(&out, marks);
        out.push_back({character, change});
        marks = out.size();
      } else {
        out.push_back({character, change});
      }
    };
    for (size_t at = 0; at < text.size();) {
      const char32_t character = NextCharacter(text, &at);
      if (!composed_->getDecomposition(static_cast<UChar32>(character), parts)) {
        push(character, 0);
        continue;
      }
      for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1)) {
        push(static_cast<char32_t>(parts.char32At(i)), i == 0 ? 0 : 1);
      }
    }
    SortMarks(&out, marks);
    return out;
  }

  static void SortMarks(std::vector<Rewrite>* all, size_t begin) {
    std::stable_sort(
        all->begin() + static_cast<ptrdiff_t>(begin), all->end(),
        [](const Rewrite& a, const Rewrite& b) { return Class(a.character) < Class(b.character); });
  }

  // Joins each starter with the marks behind it that are not blocked. A character that is joined
  // gives its change to the starter, less one for its going.
  void Compose(std::vector<Rewrite>* all) const {
    std::vector<Rewrite> out;
    out.reserve(all->size());
    std::optional<size_t> starter;  // its place in `out`
    int last_class = -1;            // of the last mark kept behind the starter, -1: none
    for (const Rewrite& rewrite : *all) {
      const int character_class = Class(rewrite.character);
      if (starter.has_value() && last_class < character_class) {
        const UChar32 joined = composed_->composePair(static_cast<UChar32>(out[*starter].character),
                                                      static_cast<UChar32>(rewrite.character));
        if (joined >= 0) {
          out[*starter].character = static_cast<char32_t>(joined);
          out[*starter].change += rewrite.change - 1;
          continue;
        }
      }
      if (character_class == 0) {
        starter = out.size();
        last_class = -1;
      } else if (starter.has_value()) {
        last_class = character_class;
      }
      out.push_back(rewrite);
    }
    *all = std::move(out);
  }

  const icu::Normalizer2* form_;      // what "is normalized" means; ICU's own, never freed
  const icu::Normalizer2* composed_;  // knows the decompositions and the pairs
  bool compose_;
};

absl::StatusOr<std::unique_ptr<const Normalizer>> MakeUnicodeNormalizer(const std::string& type) {
  UErrorCode error = U_ZERO_ERROR;
  const bool compatible = type == "NFKC" || type == "NFKD";
  const bool compose = type == "NFC" || type == "NFKC";
  const icu::Normalizer2* composed = compatible ? icu::Normalizer2::getNFKCInstance(error)
                                                : icu::Normalizer2::getNFCInstance(error);
  const icu::Normalizer2* form = compose      ? composed
                                 : compatible ? icu::Normalizer2::getNFKDInstance(error)
                                              : icu::Normalizer2::getNFDInstance(error);
  if (U_FAILURE(error)) {
    return absl::InternalError(absl::StrCat("ICU has no ", type, ": ", u_errorName(error)));
  }
  return std::make_unique<UnicodeNormalizer>(form, composed, compose);
}

}  // namespace

absl::Status ReadNormalizer(const Json& json, std::string_view where, int depth, Normalizers* out) {
  Fields fields(std::string(where), json);
  const std::string type = fields.Text("type");
  if (!fields.ok()) return fields.Finish();
  if (type == "Sequence") {
    if (depth >= kMaxDepth) return InvalidTokenizer(where, "Sequences are nested too deep");
    const Json* steps = fields.Array("normalizers");
    if (steps != nullptr) {
      for (size_t i = 0; i < steps->size() && fields.ok(); ++i) {
        fields.Fail(
            ReadNormalizer((*steps)[i], absl::StrCat(Absl(where), "[", i, "]"), depth + 1, out));
      }
    }
  } else if (type == "Prepend") {
    std::string prefix = fields.Text("prepend");
    if (prefix.size() > kMaxPrefixBytes) {
      fields.Fail(InvalidTokenizer(where, "prepend is longer than 64 bytes"));
    }
    out->push_back(std::make_unique<PrependNormalizer>(std::move(prefix)));
  } else if (type == "Replace") {
    const PatternField pattern = ReadPattern(&fields, "pattern");
    std::string content = fields.Text("content");
    if (!fields.ok()) return fields.Finish();
    absl::StatusOr<Regex> regex =
        pattern.regex ? Regex::Compile(pattern.text) : Regex::Literal(pattern.text);
    if (!regex.ok()) return At(where, regex.status());
    out->push_back(std::make_unique<ReplaceNormalizer>(*std::move(regex), std::move(content)));
  } else if (type == "Lowercase") {
    out->push_back(std::make_unique<LowercaseNormalizer>());
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    auto normalizer = MakeUnicodeNormalizer(type);
    if (!normalizer.ok()) return normalizer.status();
    out->push_back(*std::move(normalizer));
  } else {
    return UnsupportedTokenizer(where, absl::StrCat("normalizer ", type, " is not supported"));
  }
  return fields.Finish();
}

absl::StatusOr<TextView> Normalize(const Normalizers& normalizers, const TextView& text,
                                   AlignedText* storage) {
  TextView now = text;
  for (const auto& normalizer : normalizers) {
    AlignedText next;
    bool changed = false;
    const absl::Status status = normalizer->Apply(now, &next, &changed);
    if (!status.ok()) return status;
    if (!changed) continue;
    if (next.text.size() > LengthLimit(text.text.size())) return TooLong(text.text.size());
    *storage = std::move(next);
    now = storage->view();
  }
  return now;
}

}  // namespace lorad::storage::tokenization
