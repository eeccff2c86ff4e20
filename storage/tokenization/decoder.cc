#include "storage/tokenization/decoder.h"

#include <unicode/utf8.h>

#include <cctype>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/tokenization/regex.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::tokenization {
namespace {

constexpr int kMaxDepth = 8;
constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

using Tokens = std::vector<std::string>;

// `bytes` with U+FFFD for every longest beginning of a character that does not go on (Unicode 15,
// section 3.9, "Substitution of Maximal Subparts").
std::string Utf8OrReplacement(std::string_view bytes) {
  if (IsUtf8(bytes)) return std::string(bytes);
  std::string out;
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    UChar32 character;
    U8_NEXT(data, at, bytes.size(), character);
    out += character < 0 ? kReplacementCharacter : bytes.substr(begin, at - begin);
  }
  return out;
}

absl::Status DecodeByteLevel(Tokens* tokens) {
  std::string bytes;
  for (const std::string& token : *tokens) {
    std::string spelled;
    bool all = true;
    for (size_t at = 0; all && at < token.size();) {
      const int byte = CharacterByte(NextCharacter(token, &at));
      all = byte >= 0;
      spelled.push_back(static_cast<char>(byte));
    }
    bytes += all ? spelled : token;
  }
  *tokens = {Utf8OrReplacement(bytes)};
  return absl::OkStatus();
}

int ByteOfFallback(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return -1;
    value = value * 16 + (c <= '9' ? c - '0' : std::tolower(c) - 'a' + 10);
  }
  return value;
}

absl::Status DecodeByteFallback(Tokens* tokens) {
  Tokens out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (IsUtf8(bytes)) {
      out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), std::string(kReplacementCharacter));
    }
    bytes.clear();
  };
  for (std::string& token : *tokens) {
    if (const int byte = ByteOfFallback(token); byte >= 0) {
      bytes.push_back(static_cast<char>(byte));
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  *tokens = std::move(out);
  return absl::OkStatus();
}

absl::Status Fuse(Tokens* tokens) {
  *tokens = {std::accumulate(tokens->begin(), tokens->end(), std::string())};
  return absl::OkStatus();
}

absl::StatusOr<DecoderStep> ReadReplace(Fields* fields) {
  const PatternField pattern = ReadPattern(fields, "pattern");
  std::string content = fields->Text("content");
  if (!fields->ok()) return fields->Finish();
  absl::StatusOr<Regex> compiled =
      pattern.regex ? Regex::Compile(pattern.text) : Regex::Literal(pattern.text);
  if (!compiled.ok()) return At(fields->where(), compiled.status());
  // std::function copies; a compiled pattern cannot be.
  const auto regex = std::make_shared<const Regex>(*std::move(compiled));
  return [regex, content = std::move(content)](Tokens* tokens) {
    for (std::string& token : *tokens) {
      std::string out;
      const absl::Status status = regex->Split(token, [&](size_t begin, size_t end, bool match) {
        out += match ? content : token.substr(begin, end - begin);
      });
      if (!status.ok()) return status;
      token = std::move(out);
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<DecoderStep> ReadStrip(Fields* fields) {
  const std::string content = fields->Text("content");
  const uint64_t start = fields->Count("start", 1 << 20);
  const uint64_t stop = fields->Count("stop", 1 << 20);
  if (fields->ok() && (content.empty() || CountCharacters(content) != 1)) {
    return InvalidTokenizer(fields->where(), "content must be one character");
  }
  return [content, start, stop](Tokens* tokens) {
    for (std::string& token : *tokens) {
      std::string_view rest = token;
      for (uint64_t i = 0; i < start && rest.starts_with(content); ++i) {
        rest.remove_prefix(content.size());
      }
      for (uint64_t i = 0; i < stop && rest.ends_with(content); ++i) {
        rest.remove_suffix(content.size());
      }
      token = std::string(rest);
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<DecoderStep> ReadMetaspace(Fields* fields) {
  const std::string replacement = fields->Text("replacement");
  const bool drop_first = fields->OptionalText("prepend_scheme").value_or("always") != "never" &&
                          fields->Bool("add_prefix_space", true);
  for (const char* other : {"split", "str_rep", "add_prefix_space"}) fields->Ignore(other);
  if (fields->ok() && (replacement.empty() || CountCharacters(replacement) != 1)) {
    return InvalidTokenizer(fields->where(), "replacement must be one character");
  }
  return [replacement, drop_first](Tokens* tokens) {
    for (size_t i = 0; i < tokens->size(); ++i) {
      std::string out;
      const std::string& token = (*tokens)[i];
      size_t done = 0;
      for (size_t at; (at = token.find(replacement, done)) != std::string::npos;
           done = at + replacement.size()) {
        out += token.substr(done, at - done);
        if (i > 0 || !drop_first) out += ' ';
      }
      (*tokens)[i] = out + token.substr(done);
    }
    return absl::OkStatus();
  };
}

}  // namespace

absl::Status ReadDecoder(const Json& json, std::string_view where, int depth,
                         std::vector<DecoderStep>* out) {
  Fields fields(std::string(where), json);
  const std::string type = fields.Text("type");
  if (!fields.ok()) return fields.Finish();
  if (type == "Sequence") {
    if (depth >= kMaxDepth) return InvalidTokenizer(where, "Sequences are nested too deep");
    const Json* steps = fields.Array("decoders");
    if (steps != nullptr && steps->size() > 16) {
      return InvalidTokenizer(where, "more than 16 steps");
    }
    for (size_t i = 0; steps != nullptr && i < steps->size() && fields.ok(); ++i) {
      fields.Fail(ReadDecoder((*steps)[i], absl::StrCat(Absl(where), "[", i, "]"), depth + 1, out));
    }
    return fields.Finish();
  }
  absl::StatusOr<DecoderStep> step;
  if (type == "ByteLevel") {
    for (const char* option : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      fields.Ignore(option);  // of the pre-tokenizer of that name
    }
    step = DecodeByteLevel;
  } else if (type == "ByteFallback") {
    step = DecodeByteFallback;
  } else if (type == "Fuse") {
    step = Fuse;
  } else if (type == "Replace") {
    step = ReadReplace(&fields);
  } else if (type == "Strip") {
    step = ReadStrip(&fields);
  } else if (type == "Metaspace") {
    step = ReadMetaspace(&fields);
  } else {
    return UnsupportedTokenizer(where, absl::StrCat("decoder ", type, " is not supported"));
  }
  if (!step.ok()) return step.status();
  out->push_back(*std::move(step));
  return fields.Finish();
}

}  // namespace lorad::storage::tokenization
