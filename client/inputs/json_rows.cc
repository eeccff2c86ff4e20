#include "client/inputs/json_rows.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"

namespace lorad::client {
namespace {

constexpr std::size_t kRowBytesMax = 16 << 20;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

absl::Status JsonRows::Wrong(const std::string& what) const {
  return Error("BAD_ROWS_FILE", absl::StrCat(file_name_, ": line ", line_, ": ", what));
}

absl::Status JsonRows::Take(absl::string_view bytes, std::string& out) {
  const absl::string_view mark("\xef\xbb\xbf");
  for (const char c : bytes) {
    if (!past_mark_) {
      mark_ += c;
      if (mark_.size() < mark.size() && mark.substr(0, mark_.size()) == mark_) continue;
      past_mark_ = true;
      if (mark == mark_) continue;
      if (mark_.size() > 1) return Wrong("is no JSON");
    }
    if (const auto status = TakeByte(c, out); !status.ok()) return status;
    if (c == '\n') ++line_;
  }
  return absl::OkStatus();
}

absl::Status JsonRows::TakeByte(char c, std::string& out) {
  if (at_ == At::kIn) {
    if (!array_ && c == '\n') return Wrong("a row of JSON Lines must end in its line");
    if (const auto status = TakeInRow(c); !status.ok()) return status;
    return depth_ == 0 ? EndRow(out) : absl::OkStatus();
  }
  if (IsBlank(c)) {
    // A line without a row between them is none in JSON Lines.
    if (!array_ && c == '\n') at_ = At::kRow;
    return absl::OkStatus();
  }
  if (array_ && at_ == At::kBegin) {
    if (c != '[') return Wrong("must be a list of objects, [{..}, ..]");
    at_ = At::kRowOrEnd;
    return absl::OkStatus();
  }
  if (array_ && c == ']' && (at_ == At::kRowOrEnd || at_ == At::kCommaOrEnd)) {
    at_ = At::kEnd;
    return absl::OkStatus();
  }
  if (array_ && at_ == At::kCommaOrEnd) {
    if (c != ',') return Wrong("a comma or ] must follow a row");
    at_ = At::kRow;
    return absl::OkStatus();
  }
  if (at_ == At::kEnd) return Wrong("text behind the end of the list");
  if (at_ == At::kCommaOrEnd) return Wrong("a second row in one line");
  if (array_ && c == ']') {
    return Wrong(absl::StrCat("a comma behind the last row, ", rows_, "; take it away"));
  }
  if (c != '{') {
    return Wrong(absl::StrCat("row ", rows_ + 1, " must be an object, {..}"));
  }
  at_ = At::kIn;
  return TakeInRow(c);
}

absl::Status JsonRows::TakeInRow(char c) {
  if (row_.size() + blanks_.size() > kRowBytesMax) {
    return Wrong(absl::StrCat("row ", rows_ + 1, " is longer than 16 MiB; is a bracket missing?"));
  }
  if (in_string_) {
    row_ += c;
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      if (key_next_) TakeKey();
      key_next_ = false;
    } else if (c == '\n') {
      return Wrong("a line end in a string; is a quote missing?");
    }
    return absl::OkStatus();
  }
  if (IsBlank(c)) {
    blanks_ += c;
    return absl::OkStatus();
  }
  if (blanks_.find('\n') == std::string::npos) {
    row_ += blanks_;
  } else if (row_.back() == ',') {
    row_ += ' ';
  }
  blanks_.clear();
  if (c == '"') {
    in_string_ = true;
    string_begin_ = row_.size();
  }
  if (c == '{' || c == '[') ++depth_;
  if (c == '}' || c == ']') --depth_;
  if (c == '{' || c == ',') key_next_ = depth_ == 1;
  row_ += c;
  return absl::OkStatus();
}

void JsonRows::TakeKey() {
  if (columns_.empty()) return;
  const nlohmann::json key = nlohmann::json::parse(row_.substr(string_begin_), nullptr, false);
  if (!key.is_string()) return;
  const auto renamed = columns_.find(key.get<std::string>());
  if (renamed == columns_.end()) return;
  renamed_.insert(renamed->first);
  row_.replace(string_begin_, std::string::npos,
               nlohmann::json(renamed->second)
                   .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

absl::Status JsonRows::EndRow(std::string& out) {
  ++rows_;
  for (const auto& [name, meant] : columns_) {
    if (!renamed_.contains(name)) {
      return Wrong(absl::StrCat("row ", rows_, " has no ", name, ", which --columns names"));
    }
  }
  absl::StrAppend(&out, row_, "\n");
  row_.clear();
  renamed_.clear();
  at_ = At::kCommaOrEnd;
  return absl::OkStatus();
}

absl::Status JsonRows::Finish(std::string&) {
  if (at_ == At::kIn) return Wrong(absl::StrCat("the file ends inside of row ", rows_ + 1));
  if (array_ && at_ == At::kBegin) return Wrong("the file is empty; rows are needed");
  if (array_ && at_ != At::kEnd) return Wrong("the file ends before the list does; is it whole?");
  if (rows_ == 0) return Wrong("there is no row");
  return absl::OkStatus();
}

}  // namespace lorad::client
