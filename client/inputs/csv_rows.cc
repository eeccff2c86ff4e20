#include "client/inputs/csv_rows.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/inputs/quoted.h"

namespace lorad::client {
namespace {

constexpr std::size_t kRowBytesMax = 16 << 20;
constexpr char kByteOrderMark[] = "\xef\xbb\xbf";

std::string SeparatorText(char separator) {
  return separator == '\t' ? "tabs" : separator == ',' ? "commas" : std::string(1, separator);
}

}  // namespace

absl::Status CsvRows::Wrong(std::int64_t line, const std::string& what) const {
  return Error("BAD_ROWS_FILE", absl::StrCat(file_name_, ": line ", line, ": ", what));
}

absl::Status CsvRows::Take(absl::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    if (!past_mark_) {
      mark_ += c;
      const absl::string_view mark(kByteOrderMark);
      if (mark_.size() < mark.size() && mark.substr(0, mark_.size()) == mark_) continue;
      past_mark_ = true;
      if (mark == mark_) continue;
      for (const char held : mark_) {
        if (const auto status = TakeByte(held, out); !status.ok()) return status;
      }
      continue;
    }
    if (const auto status = TakeByte(c, out); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CsvRows::TakeByte(char c, std::string& out) {
  if (c == '\0') {
    return Wrong(
        line_, "a NUL byte; is this text in UTF-8? iconv -f UTF-16 -t UTF-8 makes it from UTF-16");
  }
  if (++row_bytes_ > kRowBytesMax) {
    return Wrong(row_line_, "the row is longer than 16 MiB; is a quote missing?");
  }
  if (in_ == In::kQuoted) {
    if (c == '"') {
      in_ = In::kQuoteSeen;
    } else {
      field_ += c;
      if (c == '\n') ++line_;
    }
    return absl::OkStatus();
  }
  if (carriage_return_ && c != '\n') {
    return Wrong(line_,
                 "a carriage return without a line feed; put such a field in quotes, or make lines "
                 "of an old Mac's: tr '\\r' '\\n' < FILE | lora dataset add NAME - --format csv");
  }
  if (c == '\n') {
    carriage_return_ = false;
    ++line_;
    return EndRow(out);
  }
  if (c == '\r') {
    carriage_return_ = true;
    return absl::OkStatus();
  }
  if (c == separator_) return EndField();
  if (in_ == In::kQuoteSeen && c != '"') {
    return Wrong(line_, "text behind a closing quote; a quote inside of a quoted field is doubled");
  }
  if (c == '"' && in_ == In::kFieldStart) {
    in_ = In::kQuoted;
    quote_line_ = line_;
    return absl::OkStatus();
  }
  if (in_ == In::kQuoteSeen) {
    in_ = In::kQuoted;
  } else {
    in_ = In::kPlain;
  }
  field_ += c;
  return absl::OkStatus();
}

absl::Status CsvRows::EndField() {
  in_ = In::kFieldStart;
  std::string text = Quoted(field_);
  if (text.empty()) {
    return Wrong(row_line_, absl::StrCat("field ", row_.size() + 1,
                                         " is not UTF-8; iconv -f LATIN1 -t UTF-8 makes it from "
                                         "Latin-1"));
  }
  row_.push_back(keys_.empty() ? field_ : std::move(text));
  field_.clear();
  return absl::OkStatus();
}

// The error of a header that another separator divides; OK where it may be one column.
absl::Status CsvRows::CheckSeparator() const {
  const std::string& header = row_[0];
  for (const char other : {';', '\t', '|', ','}) {
    if (other == separator_ || header.find(other) == std::string::npos) continue;
    std::string mend = other == '\t' ? "say --format tsv" : "say --format csv";
    if (other == ';' || other == '|') {
      mend = absl::StrCat(
          "python3 -c 'import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, "
          "delimiter=\"",
          std::string(1, other), "\"))' < FILE | lora dataset add NAME - --format csv");
    }
    return Wrong(row_line_,
                 absl::StrCat("the header is one column, ", Quoted(header), ": it seems to have ",
                              SeparatorText(other), " between columns, not ",
                              SeparatorText(separator_), "; ", mend));
  }
  return absl::OkStatus();
}

absl::Status CsvRows::TakeHeader() {
  if (row_.size() == 1 && !columns_.contains(row_[0])) {
    if (const auto status = CheckSeparator(); !status.ok()) return status;
  }
  std::set<std::string> seen;
  std::set<std::string> found;
  for (std::size_t i = 0; i < row_.size(); ++i) {
    const std::string& name = row_[i];
    if (name.empty()) {
      return Wrong(row_line_, absl::StrCat("column ", i + 1,
                                           " has no name in the header; pandas leaves its index "
                                           "out with to_csv(index=False)"));
    }
    const auto renamed = columns_.find(name);
    if (renamed != columns_.end()) found.insert(name);
    const std::string key = renamed == columns_.end() ? name : renamed->second;
    if (!seen.insert(key).second) {
      const bool by_option = std::ranges::any_of(
          columns_, [&](const auto& pair) { return pair.second == key && pair.first != key; });
      return Wrong(row_line_, absl::StrCat("two columns are ", key,
                                           by_option ? ", one of them by --columns" : "",
                                           "; rename or remove one"));
    }
    keys_.push_back(absl::StrCat(Quoted(key), ": "));
  }
  for (const auto& [name, meant] : columns_) {
    if (found.contains(name)) continue;
    std::string names;
    for (const std::string& column : row_) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", column);
    }
    return Wrong(row_line_,
                 absl::StrCat("no column ", name, " as --columns says; there are ", names));
  }
  return absl::OkStatus();
}

absl::Status CsvRows::EndRow(std::string& out) {
  const bool blank = row_.empty() && field_.empty() && in_ == In::kFieldStart;
  if (!blank) {
    if (const auto status = EndField(); !status.ok()) return status;
    if (keys_.empty()) {
      if (const auto status = TakeHeader(); !status.ok()) return status;
    } else if (row_.size() != keys_.size()) {
      return Wrong(row_line_,
                   absl::StrCat("has ", row_.size(), " fields, the header has ", keys_.size(),
                                "; put fields that have a ", separator_ == ',' ? "comma" : "tab",
                                " in them in quotes"));
    } else {
      ++rows_;
      for (std::size_t i = 0; i < row_.size(); ++i) {
        absl::StrAppend(&out, i == 0 ? "{" : ", ", keys_[i], row_[i]);
      }
      out += "}\n";
    }
  }
  row_.clear();
  row_bytes_ = 0;
  row_line_ = line_;
  return absl::OkStatus();
}

absl::Status CsvRows::Finish(std::string& out) {
  for (const char held : past_mark_ ? std::string() : mark_) {
    if (const auto status = TakeByte(held, out); !status.ok()) return status;
  }
  if (in_ == In::kQuoted) {
    return Wrong(quote_line_, "the quote that opens here is never closed");
  }
  if (const auto status = EndRow(out); !status.ok()) return status;
  if (rows_ > 0) return absl::OkStatus();
  return Wrong(line_, keys_.empty() ? "the file is empty; a header and rows are needed"
                                    : "there is a header, and no row behind it");
}

}  // namespace lorad::client
