#include "storage/tokenization/added_tokens.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::tokenization {
namespace {

constexpr size_t kMaxTokens = 1 << 20;
constexpr size_t kMaxTokenBytes = 1024;
constexpr uint64_t kMaxId = (1 << 28) - 1;

bool EndsWithWord(std::string_view text) {
  size_t at = text.size() - 1;
  while (IsContinuation(text[at])) --at;
  return IsWord(NextCharacter(text, &at));
}

bool BeginsWithWord(std::string_view text) {
  size_t at = 0;
  return IsWord(NextCharacter(text, &at));
}

}  // namespace

absl::Status ReadAddedTokens(const Json& json, const Normalizers& normalizers,
                             std::vector<AddedToken>* out) {
  if (!json.is_array()) return InvalidTokenizer("added_tokens", "must be a list");
  if (json.size() > kMaxTokens) return InvalidTokenizer("added_tokens", "too many");
  for (size_t i = 0; i < json.size(); ++i) {
    Fields fields(absl::StrCat("added_tokens[", i, "]"), json[i]);
    AddedToken token;
    token.id = static_cast<int32_t>(fields.Count("id", kMaxId));
    token.content = fields.Text("content");
    token.single_word = fields.Bool("single_word");
    token.lstrip = fields.Bool("lstrip");
    token.rstrip = fields.Bool("rstrip");
    token.normalized = fields.Bool("normalized");
    token.special = fields.Bool("special");
    if (token.content.empty() || token.content.size() > kMaxTokenBytes) {
      fields.Fail(InvalidTokenizer(fields.where(), "content must have 1 to 1024 bytes"));
    }
    if ((token.lstrip || token.rstrip) &&
        LeadingWhitespace(token.content) + TrailingWhitespace(token.content) > 0) {
      fields.Fail(UnsupportedTokenizer(
          fields.where(), "white space around a token with lstrip or rstrip is not supported"));
    }
    const absl::Status status = fields.Finish();
    if (!status.ok()) return status;
    token.pattern = token.content;
    if (token.normalized) {
      AlignedText storage;
      const absl::StatusOr<TextView> normal = Normalize(normalizers, {token.content}, &storage);
      if (!normal.ok()) return normal.status();
      token.pattern = std::string(normal->text);
    }
    out->push_back(std::move(token));
  }
  return absl::OkStatus();
}

AddedTokenFinder::AddedTokenFinder(std::vector<const AddedToken*> tokens) {
  std::set<size_t, std::greater<>> lengths;
  for (const AddedToken* token : tokens) {
    if (token->pattern.empty()) continue;
    by_pattern_.emplace(token->pattern, token);
    first_bytes_[static_cast<uint8_t>(token->pattern[0])] = true;
    lengths.insert(token->pattern.size());
  }
  lengths_.assign(lengths.begin(), lengths.end());
}

const AddedToken* AddedTokenFinder::LongestAt(std::string_view text, size_t at) const {
  for (const size_t length : lengths_) {
    if (length > text.size() - at) continue;
    const auto found = by_pattern_.find(Absl(text.substr(at, length)));
    if (found != by_pattern_.end()) return found->second;
  }
  return nullptr;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::Find(std::string_view text) const {
  std::vector<Part> out;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (!first_bytes_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* token = LongestAt(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->pattern.size();
    at = end;
    if (token->single_word && ((begin > 0 && EndsWithWord(text.substr(0, begin))) ||
                               (end < text.size() && BeginsWithWord(text.substr(end))))) {
      continue;
    }
    if (token->lstrip) {
      begin = std::max(done, begin - TrailingWhitespace(text.substr(0, begin)));
    }
    if (token->rstrip) end += LeadingWhitespace(text.substr(end));
    begin = std::min(begin, end);
    if (done < begin) out.push_back({done, begin, nullptr});
    out.push_back({begin, end, token});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), nullptr});
  return out;
}

}  // namespace lorad::storage::tokenization
