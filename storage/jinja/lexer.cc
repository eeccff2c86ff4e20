#include "storage/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/jinja/python_text.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::jinja {
namespace {

constexpr std::array<std::string_view, 26> kOperators = {
    "==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool IsNamePart(char c) { return IsNameStart(c) || IsDigit(c); }

// Line ends become \n; one at the very end is dropped.
std::string NormalLines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t at = 0; at < source.size(); ++at) {
    if (source[at] != '\r') {
      out += source[at];
      continue;
    }
    out += '\n';
    if (source.substr(at + 1, 1) == "\n") ++at;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(NormalLines(source)), in_(text_) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (status_.ok() && at_ < in_.size()) TextAndTag();
    if (!status_.ok()) return status_;
    Push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Fail(std::string_view what) {
    if (status_.ok()) status_ = InvalidTemplate(line_, what);
  }
  std::string_view Rest() const { return in_.substr(at_); }
  bool Take(std::string_view text) {
    if (!Rest().starts_with(text)) return false;
    Skip(text.size());
    return true;
  }
  void Skip(size_t bytes) {
    line_ += static_cast<int>(std::count(in_.begin() + at_, in_.begin() + at_ + bytes, '\n'));
    at_ += bytes;
  }
  void SkipSpace() { Skip(Rest().size() - Strip(Rest(), Side::kLeft).size()); }
  Token& Push(TokenKind kind, std::string_view text) {
    Token token;
    token.kind = kind;
    token.text = text;
    token.line = line_;
    tokens_.push_back(std::move(token));
    return tokens_.back();
  }

  // Where the next tag begins: {% {{ or {#.
  size_t FindTag() const {
    for (size_t at = at_; (at = in_.find('{', at)) != std::string_view::npos; ++at) {
      const std::string_view next = in_.substr(at + 1, 1);
      if (next == "%" || next == "{" || next == "#") return at;
    }
    return std::string_view::npos;
  }

  void TextAndTag() {
    const size_t tag = FindTag();
    if (tag == std::string_view::npos) {
      Push(TokenKind::kText, Rest());
      Skip(Rest().size());
      return;
    }
    std::string_view text = in_.substr(at_, tag - at_);
    const char kind = in_[tag + 1];
    const std::string_view sign = in_.substr(tag + 2, 1);
    if (sign == "-") {
      text = Strip(text, Side::kRight);
    } else if (sign != "+" && kind != '{') {
      // A tag alone at the beginning of its line takes the white space before it along.
      const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
      const bool whole_line = line > 0 || line_starts_;
      if (whole_line && Strip(text.substr(line), Side::kLeft).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) Push(TokenKind::kText, text);
    Skip(tag - at_ + 2);
    if (sign == "-" || sign == "+") Skip(1);
    line_starts_ = false;
    if (kind == '#') {
      Comment();
    } else {
      Tag(kind == '%');
    }
  }

  void Comment() {
    const size_t end = in_.find("#}", at_);
    if (end == std::string_view::npos) return Fail("a comment without its #}");
    const char sign = end > at_ ? in_[end - 1] : ' ';
    Skip(end + 2 - at_);
    AfterTag(sign, true);
  }

  // White space behind a tag whose end has `sign` before it.
  void AfterTag(char sign, bool trims_newline) {
    const size_t begin = at_;
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && trims_newline) {
      Take("\n");
    }
    line_starts_ = at_ > begin && in_[at_ - 1] == '\n';
  }

  void Tag(bool block) {
    Push(block ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
    const std::string_view end = block ? "%}" : "}}";
    std::string open;  // brackets not yet closed
    while (status_.ok()) {
      SkipSpace();
      if (at_ >= in_.size()) return Fail("a tag without its end");
      if (open.empty()) {
        const std::string_view sign = Rest().substr(0, 1);
        const bool signed_end = sign == "-" || (sign == "+" && block);
        if (Rest().substr(signed_end ? 1 : 0).starts_with(end)) {
          Push(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
          Skip((signed_end ? 1 : 0) + end.size());
          return AfterTag(signed_end ? sign[0] : ' ', block);
        }
      }
      ExpressionToken(&open);
    }
  }

  void ExpressionToken(std::string* open) {
    const char c = in_[at_];
    if (IsNameStart(c)) {
      size_t end = at_;
      while (end < in_.size() && IsNamePart(in_[end])) ++end;
      Push(TokenKind::kName, in_.substr(at_, end - at_));
      Skip(end - at_);
    } else if (IsDigit(c)) {
      Number();
    } else if (c == '"' || c == '\'') {
      String();
    } else {
      Operator(open);
    }
  }

  void Operator(std::string* open) {
    for (const std::string_view op : kOperators) {
      if (!Rest().starts_with(op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      if (c == ')' || c == ']' || c == '}') {
        if (open->empty() || open->back() != c) {
          return Fail(absl::StrCat("'", std::string(1, c), "' closes nothing"));
        }
        open->pop_back();
      }
      Push(TokenKind::kOperator, op);
      return Skip(op.size());
    }
    Fail(absl::StrCat("unexpected character '", Absl(Characters(Rest().substr(0, 4))[0]), "'"));
  }

  void Number() {
    const std::string_view rest = Rest();
    size_t end = 0;
    const auto digits = [&] {
      while (end < rest.size() && (IsDigit(rest[end]) || rest[end] == '_')) ++end;
    };
    digits();
    bool floating = false;
    if (end + 1 < rest.size() && rest[end] == '.' && IsDigit(rest[end + 1])) {
      floating = true;
      ++end;
      digits();
    }
    if (end < rest.size() && (rest[end] == 'e' || rest[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < rest.size() && (rest[exponent] == '+' || rest[exponent] == '-')) ++exponent;
      if (exponent < rest.size() && IsDigit(rest[exponent])) {
        floating = true;
        end = exponent;
        digits();
      }
    }
    std::string number(rest.substr(0, end));
    number.erase(std::remove(number.begin(), number.end(), '_'), number.end());
    if (end < rest.size() && IsNamePart(rest[end])) return Fail("a bad number: " + number);
    Token& token = Push(floating ? TokenKind::kFloat : TokenKind::kInteger, number);
    const char* last = number.data() + number.size();
    const auto parsed = floating ? std::from_chars(number.data(), last, token.floating)
                                 : std::from_chars(number.data(), last, token.integer);
    if (parsed.ec != std::errc() || parsed.ptr != last) return Fail("a bad number: " + number);
    if (!floating && number.size() > 1 && number[0] == '0') return Fail("a bad number: " + number);
    Skip(end);
  }

  void String() {
    const char quote = in_[at_];
    const int line = line_;
    size_t end = at_ + 1;
    while (end < in_.size() && in_[end] != quote) end += in_[end] == '\\' ? 2 : 1;
    if (end >= in_.size()) return Fail("a string without its end");
    std::string value;
    if (!Unescape(in_.substr(at_ + 1, end - at_ - 1), &value)) return Fail("a bad escape");
    Push(TokenKind::kString, value).line = line;
    Skip(end + 1 - at_);
  }

  // Python's escapes. All else stays as it is.
  static bool Unescape(std::string_view raw, std::string* out) {
    constexpr std::string_view kLetters = "\\'\"abfnrtv\n";
    constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    for (size_t at = 0; at < raw.size(); ++at) {
      if (raw[at] != '\\' || at + 1 == raw.size()) {
        *out += raw[at];
        continue;
      }
      const char c = raw[++at];
      const size_t known = kLetters.find(c);
      if (c == '\n') continue;  // a line that goes on
      if (known != std::string_view::npos) {
        *out += kMeanings[known];
        continue;
      }
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      uint32_t character = 0;
      size_t used = 0;
      if (digits > 0) {
        const std::string_view hex = raw.substr(at + 1, digits);
        const auto parsed = std::from_chars(hex.data(), hex.data() + hex.size(), character, 16);
        if (hex.size() != digits || parsed.ptr != hex.data() + hex.size()) return false;
        used = digits;
      } else if (c >= '0' && c <= '7') {
        while (used < 3 && at + used < raw.size() && raw[at + used] >= '0' &&
               raw[at + used] <= '7') {
          character = character * 8 + static_cast<uint32_t>(raw[at + used++] - '0');
        }
        --used;
      } else if (c == 'N') {
        return false;  // a character by its name
      } else {
        *out += '\\';
        *out += c;
        continue;
      }
      if (character > 0x10FFFF || (character >= 0xD800 && character < 0xE000)) return false;
      tokenization::AppendCharacter(character, out);
      at += used;
    }
    return true;
  }

  std::string text_;
  std::string_view in_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
  absl::Status status_;
};

}  // namespace

absl::Status InvalidTemplate(int line, std::string_view what) {
  return Refuse("TEMPLATE_INVALID", absl::StrCat("chat template, line ", line, ": ", Absl(what)));
}

absl::Status UnsupportedTemplate(int line, std::string_view what) {
  return Refuse("TEMPLATE_UNSUPPORTED",
                absl::StrCat("chat template, line ", line, ": ", Absl(what), " is not supported"));
}

absl::StatusOr<std::vector<Token>> Lex(std::string_view source) { return Lexer(source).Run(); }

}  // namespace lorad::storage::jinja
