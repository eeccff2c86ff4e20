// TranslateRegex: a reader of the common part of Oniguruma's and PCRE2's syntax. Syntax that the
// two read alike passes through; \s, \d, \u and '.' are spelled out; all else is refused.

#include <cctype>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/tokenization/regex.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::tokenization {
namespace {

// Unicode's White_Space. PCRE2's own \s has U+180E besides.
constexpr std::string_view kSpaces =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr int kMaxDepth = 32;
constexpr size_t kMaxPatternBytes = 16384;
constexpr int kMaxRepeat = 1000;

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    if (in_.size() > kMaxPatternBytes) Fail("longer than 16384 bytes");
    if (!IsUtf8(in_)) Fail("not UTF-8");
    bool quantified = false;
    if (ok()) Alternatives(0, &quantified);
    if (ok() && at_ < in_.size()) Fail("a ')' without its '('");
    if (!ok()) {
      return Refuse("TOKENIZER_UNSUPPORTED",
                    absl::StrCat("regular expression \"", Absl(in_), "\": ", error_));
    }
    return std::move(out_);
  }

 private:
  bool ok() const { return error_.empty(); }
  bool More() const { return at_ < in_.size(); }
  bool Take(std::string_view text) {
    if (in_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  void Fail(std::string_view why) {
    if (ok()) error_ = absl::StrCat("at byte ", at_, ": ", Absl(why));
  }
  void Emit(std::string_view text) { out_ += text; }

  // Sets *quantified if anything in it is repeated.
  void Alternatives(int depth, bool* quantified) {
    if (depth > kMaxDepth) return Fail("groups are nested too deep");
    while (ok() && More() && in_[at_] != ')') {
      if (Take("|")) {
        Emit("|");
        continue;
      }
      bool inner_quantified = false;
      const bool repeatable = Atom(depth, &inner_quantified);
      if (!ok()) return;
      const bool repeated = Quantifier(repeatable);
      if (repeated && inner_quantified) {
        return Fail("a repeated group with a repetition inside is not supported");
      }
      *quantified |= repeated || inner_quantified;
    }
  }

  // Returns whether a quantifier may follow.
  bool Atom(int depth, bool* quantified) {
    const char c = in_[at_];
    if (c == '(') return Group(depth, quantified);
    if (c == '[') return Class();
    if (c == '\\') return Escape(false);
    if (Take(".")) return Emit("[^\\n]"), true;
    if (c == '^' || c == '$' || c == '*' || c == '+' || c == '?' || c == '{' || c == '}') {
      Fail(absl::StrCat("'", std::string(1, c), "' is not supported here"));
      return false;
    }
    CopyCharacter();
    return true;
  }

  bool Group(int depth, bool* quantified) {
    bool assertion = false;
    std::string_view opening = "(?:";
    if (Take("(?:")) {
    } else if (Take("(?i:")) {
      opening = "(?i:";
    } else if (Take("(?=")) {
      opening = "(?=";
      assertion = true;
    } else if (Take("(?!")) {
      opening = "(?!";
      assertion = true;
    } else if (in_.substr(at_, 2) == "(?" || in_.substr(at_, 2) == "(*") {
      Fail("this kind of group is not supported");
      return false;
    } else {
      ++at_;
    }
    Emit(opening);
    Alternatives(depth + 1, quantified);
    if (ok() && !Take(")")) Fail("a '(' without its ')'");
    Emit(")");
    return !assertion;
  }

  bool Class() {
    ++at_;
    Emit("[");
    if (Take("^")) Emit("^");
    if (More() && in_[at_] == ']') Fail("an empty character class");
    while (ok()) {
      if (!More()) return Fail("a '[' without its ']'"), false;
      if (Take("]")) break;
      if (in_[at_] == '[') return Fail("a class in a class is not supported"), false;
      if (in_.substr(at_, 2) == "&&") return Fail("'&&' in a class is not supported"), false;
      if (in_[at_] == '\\') {
        Escape(true);
        if (in_.substr(at_, 1) == "-" && in_.substr(at_, 2) != "-]") {
          Fail("a range that begins with an escape is not supported");
        }
      } else {
        CopyCharacter();
      }
    }
    Emit("]");
    return true;
  }

  bool Escape(bool in_class) {
    if (at_ + 1 >= in_.size()) return Fail("a lone '\\' at the end"), false;
    const char c = in_[at_ + 1];
    at_ += 2;
    if (c == 's') return Emit(in_class ? kSpaces : absl::StrCat("[", Absl(kSpaces), "]")), true;
    if (c == 'S' && !in_class) return Emit(absl::StrCat("[^", Absl(kSpaces), "]")), true;
    if (c == 'd') return Emit("\\p{Nd}"), true;
    if (c == 'D') return Emit("\\P{Nd}"), true;
    if (c == 'r' || c == 'n' || c == 't' || c == 'f') {
      return Emit(std::string{'\\', c}), true;
    }
    if (c == 'p' || c == 'P') return Property(c), true;
    if (c == 'u' || c == 'x') return CodePoint(c), true;
    if (std::isalnum(static_cast<unsigned char>(c)) || (c & 0x80) != 0) {
      at_ -= 2;
      Fail(absl::StrCat("'\\", std::string(1, c), "' is not supported",
                        in_class ? " in a class" : ""));
      return false;
    }
    return Emit(std::string{'\\', c}), true;
  }

  void Property(char letter) {
    const size_t end = in_.find('}', at_);
    if (!Take("{") || end == std::string_view::npos) return Fail("\\p wants a name in braces");
    const std::string_view name = in_.substr(at_, end - at_);
    for (size_t i = 0; i < name.size(); ++i) {
      const auto c = static_cast<unsigned char>(name[i]);
      if (!std::isalpha(c) && c != '_' && !(c == '^' && i == 0)) return Fail("a bad \\p name");
    }
    at_ = end + 1;
    Emit(absl::StrCat("\\", std::string(1, letter), "{", Absl(name), "}"));
  }

  // \uHHHH, \xHH or \x{H...}.
  void CodePoint(char letter) {
    std::string_view digits;
    if (letter == 'x' && Take("{")) {
      const size_t end = in_.find('}', at_);
      if (end == std::string_view::npos) return Fail("a '{' without its '}'");
      digits = in_.substr(at_, end - at_);
      at_ = end + 1;
    } else {
      digits = in_.substr(at_, letter == 'x' ? 2 : 4);
      at_ += digits.size();
      if (digits.size() != (letter == 'x' ? 2U : 4U)) return Fail("too few hexadecimal digits");
      // Oniguruma reads \x80 and above as a byte, not as a character.
      if (letter == 'x' && digits[0] > '7') return Fail("'\\x80' and above are not supported");
    }
    if (digits.empty() || digits.size() > 6) return Fail("a bad code point");
    for (const char c : digits) {
      if (!std::isxdigit(static_cast<unsigned char>(c))) return Fail("a bad code point");
    }
    Emit(absl::StrCat("\\x{", Absl(digits), "}"));
  }

  bool Quantifier(bool allowed) {
    if (!More()) return false;
    const char c = in_[at_];
    bool interval = false;
    if (c == '*' || c == '+' || c == '?') {
      ++at_;
      Emit(std::string(1, c));
    } else if (c == '{') {
      interval = true;
      Interval();
    } else {
      return false;
    }
    if (!allowed) Fail("nothing to repeat");
    if (Take("?")) Emit("?");
    if (More() && in_[at_] == '+') {
      // Oniguruma reads {n,m}+ as a repetition of the repetition.
      if (interval) Fail("'+' behind '{...}' is not supported");
      ++at_;
      Emit("+");
    }
    if (More() && (in_[at_] == '*' || in_[at_] == '+' || in_[at_] == '?' || in_[at_] == '{')) {
      Fail("a repeated repetition is not supported");
    }
    return true;
  }

  // {n}, {n,} or {n,m}.
  void Interval() {
    ++at_;
    Emit("{");
    Number();
    if (Take(",")) {
      Emit(",");
      if (More() && in_[at_] != '}') Number();
    }
    if (!Take("}")) Fail("a bad '{...}'");
    Emit("}");
  }

  void Number() {
    int value = 0;
    const size_t begin = at_;
    while (More() && std::isdigit(static_cast<unsigned char>(in_[at_])) && value <= kMaxRepeat) {
      value = value * 10 + (in_[at_++] - '0');
    }
    if (at_ == begin || value > kMaxRepeat) return Fail("a bad number in '{...}'");
    Emit(absl::StrCat(value));
  }

  void CopyCharacter() {
    const size_t bytes = CharacterBytes(in_[at_]);
    Emit(in_.substr(at_, bytes));
    at_ += bytes;
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  std::string error_;
};

}  // namespace

absl::StatusOr<std::string> TranslateRegex(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace lorad::storage::tokenization
