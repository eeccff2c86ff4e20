#pragma once

// Template text to tokens, with the white space around tags taken away as jinja2 does with
// trim_blocks and lstrip_blocks on.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lorad::storage::jinja {

enum class TokenKind {
  kText,           // between tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of a string: its value
  int64_t integer = 0;
  double floating = 0;
  int line = 1;
};

// INVALID_ARGUMENT with reason TEMPLATE_INVALID and the line.
absl::Status InvalidTemplate(int line, std::string_view what);
// INVALID_ARGUMENT with reason TEMPLATE_UNSUPPORTED and the line.
absl::Status UnsupportedTemplate(int line, std::string_view what);

// The tokens of `source`; the last is kEnd.
absl::StatusOr<std::vector<Token>> Lex(std::string_view source);

}  // namespace lorad::storage::jinja
