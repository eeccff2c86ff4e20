#include "storage/tokenization/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/tokenization/regex.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::tokenization {
namespace {

constexpr int kMaxDepth = 8;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The treatment of the text that a pattern matches.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

constexpr std::array<std::pair<std::string_view, Behavior>, 5> kBehaviors = {{
    {"Removed", Behavior::kRemoved},
    {"Isolated", Behavior::kIsolated},
    {"MergedWithPrevious", Behavior::kMergedWithPrevious},
    {"MergedWithNext", Behavior::kMergedWithNext},
    {"Contiguous", Behavior::kContiguous},
}};

struct Stretch {
  size_t begin;
  size_t end;
  bool match;
};

// Joins stretches as `behavior` says. Isolated and Removed join none.
std::vector<Stretch> Join(const std::vector<Stretch>& stretches, Behavior behavior) {
  std::vector<Stretch> out;
  bool previous_match = false;
  const auto step = [&](const Stretch& stretch, auto extend) {
    const bool joined = behavior == Behavior::kContiguous ? stretch.match == previous_match
                                                          : stretch.match && !previous_match;
    if (joined && !out.empty()) {
      extend(&out.back(), stretch);
    } else {
      out.push_back(stretch);
    }
    previous_match = stretch.match;
  };
  if (behavior == Behavior::kMergedWithNext) {
    for (size_t i = stretches.size(); i-- > 0;) {
      step(stretches[i], [](Stretch* last, const Stretch& next) { last->begin = next.begin; });
    }
    std::reverse(out.begin(), out.end());
  } else {
    for (const Stretch& stretch : stretches) {
      step(stretch, [](Stretch* last, const Stretch& next) { last->end = next.end; });
    }
  }
  return out;
}

// Splits by a search that calls back as Regex::Split does.
template <typename Search>
absl::Status SplitBy(const TextView& text, Behavior behavior, const PartSink& sink,
                     const Search& search) {
  absl::Status status;
  const bool direct = behavior == Behavior::kIsolated || behavior == Behavior::kRemoved;
  std::vector<Stretch> stretches;
  const absl::Status searched = search([&](size_t begin, size_t end, bool match) {
    if (!direct) {
      stretches.push_back({begin, end, match});
    } else if (status.ok() && !(match && behavior == Behavior::kRemoved)) {
      status = sink(text.Slice(begin, end));
    }
  });
  if (!searched.ok()) return searched;
  if (direct) return status;
  for (const Stretch& stretch : Join(stretches, behavior)) {
    status = sink(text.Slice(stretch.begin, stretch.end));
    if (!status.ok()) return status;
  }
  return status;
}

class RegexSplit : public PreTokenizer {
 public:
  RegexSplit(Regex pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  absl::Status Split(const TextView& text, const PartSink& sink) const override {
    return SplitBy(text, behavior_, sink, [&](const auto& part) {
      return pattern_.Split(text.text, [&](size_t begin, size_t end, bool match) {
        part(begin, end, match != invert_);
      });
    });
  }

 private:
  Regex pattern_;
  Behavior behavior_;
  bool invert_;
};

class DigitSplit : public PreTokenizer {
 public:
  explicit DigitSplit(bool individual) : individual_(individual) {}

  absl::Status Split(const TextView& text, const PartSink& sink) const override {
    const Behavior behavior = individual_ ? Behavior::kIsolated : Behavior::kContiguous;
    return SplitBy(text, behavior, sink, [&](const auto& part) {
      size_t done = 0;
      for (size_t at = 0; at < text.text.size();) {
        const size_t begin = at;
        if (!IsNumeric(NextCharacter(text.text, &at))) continue;
        if (done < begin) part(done, begin, false);
        part(begin, at, true);
        done = at;
      }
      if (done < text.text.size()) part(done, text.text.size(), false);
      return absl::OkStatus();
    });
  }

 private:
  bool individual_;
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::optional<Regex> pattern)
      : add_prefix_space_(add_prefix_space), pattern_(std::move(pattern)) {}

  absl::Status Split(const TextView& text, const PartSink& sink) const override {
    if (add_prefix_space_ && !text.text.starts_with(' ')) {
      const AlignedText spaced = Prepend(text, " ");
      return SplitWords(spaced.view(), sink);
    }
    return SplitWords(text, sink);
  }

 private:
  absl::Status SplitWords(const TextView& text, const PartSink& sink) const {
    if (!pattern_.has_value()) return sink(text);
    return SplitBy(text, Behavior::kIsolated, sink,
                   [&](const auto& part) { return pattern_->Split(text.text, part); });
  }

  bool add_prefix_space_;
  std::optional<Regex> pattern_;
};

class Metaspace : public PreTokenizer {
 public:
  enum class Scheme { kFirst, kAlways, kNever };

  Metaspace(std::string replacement, Scheme scheme, bool split)
      : replacement_(std::move(replacement)),
        pattern_(Regex::Literal(replacement_)),
        scheme_(scheme),
        split_(split) {}

  absl::Status Split(const TextView& text, const PartSink& sink) const override {
    AlignedText replaced;
    size_t done = 0;
    for (size_t at; (at = text.text.find(' ', done)) != std::string_view::npos; done = at + 1) {
      replaced.Append(text.Slice(done, at));
      replaced.Append(replacement_, text.SpanOf(at));
    }
    replaced.Append(text.Slice(done, text.text.size()));
    const bool wanted =
        scheme_ == Scheme::kAlways || (scheme_ == Scheme::kFirst && text.SpanOf(0).begin == 0);
    if (wanted && !replaced.text.starts_with(replacement_)) {
      replaced = Prepend(replaced.view(), replacement_);
    }
    const TextView view = replaced.view();
    if (!split_) return sink(view);
    return SplitBy(view, Behavior::kMergedWithNext, sink,
                   [&](const auto& part) { return pattern_.Split(view.text, part); });
  }

 private:
  std::string replacement_;
  Regex pattern_;
  Scheme scheme_;
  bool split_;
};

absl::Status ReadSplit(Fields* fields, PreTokenizers* out) {
  const PatternField pattern = ReadPattern(fields, "pattern");
  const std::string behavior = fields->Text("behavior");
  const bool invert = fields->Bool("invert");
  if (!fields->ok()) return fields->Finish();
  const auto* const found =
      std::find_if(kBehaviors.begin(), kBehaviors.end(),
                   [&](const auto& known) { return known.first == behavior; });
  if (found == kBehaviors.end()) {
    return InvalidTokenizer(fields->where(),
                            absl::StrCat("behavior \"", behavior, "\" is not known"));
  }
  absl::StatusOr<Regex> regex =
      pattern.regex ? Regex::Compile(pattern.text) : Regex::Literal(pattern.text);
  if (!regex.ok()) return At(fields->where(), regex.status());
  out->steps.push_back(std::make_unique<RegexSplit>(*std::move(regex), found->second, invert));
  return fields->Finish();
}

absl::Status ReadByteLevel(Fields* fields, PreTokenizers* out) {
  const bool add_prefix_space = fields->Bool("add_prefix_space");
  const bool use_regex = fields->Bool("use_regex", true);
  fields->Ignore("trim_offsets");  // of the post-processor of that name
  std::optional<Regex> pattern;
  if (use_regex) {
    absl::StatusOr<Regex> regex = Regex::Compile(kGpt2Pattern);
    if (!regex.ok()) return regex.status();
    pattern = *std::move(regex);
  }
  out->steps.push_back(std::make_unique<ByteLevel>(add_prefix_space, std::move(pattern)));
  out->byte_level = true;
  return fields->Finish();
}

absl::Status ReadMetaspace(Fields* fields, PreTokenizers* out) {
  const std::string replacement = fields->Text("replacement");
  const Json* prefix = fields->Any("add_prefix_space");
  const std::string scheme = fields->OptionalText("prepend_scheme").value_or("always");
  const bool split = fields->Bool("split", true);
  fields->Ignore("str_rep");  // the replacement again
  if (!fields->ok()) return fields->Finish();
  if (replacement.empty() || CountCharacters(replacement) != 1) {
    return InvalidTokenizer(fields->where(), "replacement must be one character");
  }
  Metaspace::Scheme kind = Metaspace::Scheme::kAlways;
  if (scheme == "first") {
    kind = Metaspace::Scheme::kFirst;
  } else if (scheme == "never") {
    kind = Metaspace::Scheme::kNever;
  } else if (scheme != "always") {
    return InvalidTokenizer(fields->where(), "prepend_scheme must be first, always or never");
  }
  if (prefix != nullptr && !prefix->is_boolean()) {
    return InvalidTokenizer(fields->where(), "add_prefix_space must be true or false");
  }
  if (prefix != nullptr && !prefix->get<bool>() && kind != Metaspace::Scheme::kNever) {
    return InvalidTokenizer(fields->where(), "add_prefix_space contradicts prepend_scheme");
  }
  out->steps.push_back(std::make_unique<Metaspace>(replacement, kind, split));
  return fields->Finish();
}

absl::Status RunSteps(std::span<const std::unique_ptr<const PreTokenizer>> steps,
                      const TextView& text, const PartSink& sink) {
  if (text.text.empty()) return absl::OkStatus();
  if (steps.empty()) return sink(text);
  if (steps.size() == 1) return steps.front()->Split(text, sink);
  return steps.front()->Split(
      text, [&](const TextView& part) { return RunSteps(steps.subspan(1), part, sink); });
}

}  // namespace

absl::Status ReadPreTokenizer(const Json& json, std::string_view where, int depth,
                              PreTokenizers* out) {
  Fields fields(std::string(where), json);
  const std::string type = fields.Text("type");
  if (!fields.ok()) return fields.Finish();
  if (type == "Sequence") {
    if (depth >= kMaxDepth) return InvalidTokenizer(where, "Sequences are nested too deep");
    const Json* steps = fields.Array("pretokenizers");
    if (steps != nullptr && steps->size() > 16) {
      return InvalidTokenizer(where, "more than 16 steps");
    }
    for (size_t i = 0; steps != nullptr && i < steps->size() && fields.ok(); ++i) {
      fields.Fail(
          ReadPreTokenizer((*steps)[i], absl::StrCat(Absl(where), "[", i, "]"), depth + 1, out));
    }
    return fields.Finish();
  }
  if (out->byte_level) {
    return UnsupportedTokenizer(where, absl::StrCat(type, " after ByteLevel is not supported"));
  }
  if (type == "ByteLevel") return ReadByteLevel(&fields, out);
  if (type == "Split") return ReadSplit(&fields, out);
  if (type == "Metaspace") return ReadMetaspace(&fields, out);
  if (type == "Digits") {
    out->steps.push_back(std::make_unique<DigitSplit>(fields.Bool("individual_digits")));
    return fields.Finish();
  }
  return UnsupportedTokenizer(where, absl::StrCat("pre-tokenizer ", type, " is not supported"));
}

absl::Status PreTokenize(const PreTokenizers& steps, const TextView& text, const PartSink& sink) {
  return RunSteps(steps.steps, text, sink);
}

}  // namespace lorad::storage::tokenization
