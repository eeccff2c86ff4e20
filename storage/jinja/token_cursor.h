#pragma once

// A place in a template's tokens. The first error sticks; afterwards the token at hand is always
// kEnd, so that every rule of the grammar returns at once.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/jinja/lexer.h"

namespace lorad::storage::jinja {

class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  const Token& Now() const { return ok() ? tokens_[at_] : end_; }
  int line() const { return Now().line; }
  void Advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool Is(TokenKind kind, std::string_view text = "") const {
    return Now().kind == kind && (text.empty() || Now().text == text);
  }
  bool IsOperator(std::string_view text) const { return Is(TokenKind::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(TokenKind::kName, text); }
  bool Take(TokenKind kind, std::string_view text = "") {
    if (!Is(kind, text)) return false;
    Advance();
    return true;
  }
  bool TakeOperator(std::string_view text) { return Take(TokenKind::kOperator, text); }
  bool TakeName(std::string_view text) { return Take(TokenKind::kName, text); }

  void Invalid(std::string_view what) {
    if (ok()) status_ = InvalidTemplate(line(), what);
  }
  void Unsupported(int line, std::string_view what) {
    if (ok()) status_ = UnsupportedTemplate(line, what);
  }
  std::string Described() const {
    if (Is(TokenKind::kEnd)) return "the end of the template";
    if (Is(TokenKind::kBlockEnd)) return "'%}'";
    if (Is(TokenKind::kVariableEnd)) return "'}}'";
    return absl::StrCat("'", Now().text.substr(0, 40), "'");
  }
  void Want(TokenKind kind, std::string_view text, std::string_view what) {
    if (!Take(kind, text)) Invalid(absl::StrCat("expected ", Absl(what), ", found ", Described()));
  }
  void WantOperator(std::string_view text) {
    Want(TokenKind::kOperator, text, absl::StrCat("'", Absl(text), "'"));
  }
  std::string WantName(std::string_view what) {
    std::string name = Now().text;
    Want(TokenKind::kName, "", what);
    return name;
  }
  void EndBlock() { Want(TokenKind::kBlockEnd, "", "'%}'"); }
  // The token behind the one at hand.
  bool NextIs(TokenKind kind, std::string_view text) const {
    return at_ + 1 < tokens_.size() && tokens_[at_ + 1].kind == kind &&
           tokens_[at_ + 1].text == text;
  }

 private:
  std::vector<Token> tokens_;
  Token end_;
  size_t at_ = 0;
  absl::Status status_;
};

}  // namespace lorad::storage::jinja
