#include "client/inputs/rows.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/calls/error.h"
#include "client/inputs/csv_rows.h"
#include "client/inputs/json_rows.h"

namespace lorad::client {
namespace {

// Lines as they are; what has no lines is found before all of it is sent.
class Unchanged final : public RowConverter {
 public:
  explicit Unchanged(std::string file_name) : file_name_(std::move(file_name)) {}

  absl::Status Take(absl::string_view bytes, std::string& out) override {
    for (absl::string_view rest = bytes; !rest.empty();) {
      const std::size_t end = rest.find('\n');
      line_bytes_ += std::min(end, rest.size());
      if (line_bytes_ > kLineBytesMax) {
        return Error("BAD_ROWS_FILE", absl::StrCat(file_name_, ": line ", line_,
                                                   ": longer than 16 MiB; is this JSON Lines?"));
      }
      if (end == absl::string_view::npos) break;
      rest.remove_prefix(end + 1);
      line_bytes_ = 0;
      ++line_;
    }
    out.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  absl::Status Finish(std::string&) override { return absl::OkStatus(); }

 private:
  static constexpr std::size_t kLineBytesMax = (16 << 20) + 1;  // the daemon's, and a CR

  std::string file_name_;
  std::size_t line_bytes_ = 0;
  std::int64_t line_ = 1;
};

}  // namespace

absl::StatusOr<Columns> ReadColumns(const std::string& text) {
  Columns columns;
  std::map<std::string, int> meant;
  if (text.empty()) return columns;
  for (const absl::string_view pair : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> names = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    if (names.first.empty() || names.second.empty()) {
      return Error("USAGE", absl::StrCat("--columns must be like prompt=question,completion=answer "
                                         "(the row's name, then the file's), got ",
                                         text));
    }
    if (!columns.emplace(names.second, names.first).second || meant[names.first]++ > 0) {
      return Error("USAGE", absl::StrCat("--columns names a column twice: ", pair));
    }
  }
  return columns;
}

std::unique_ptr<RowConverter> MakeRowConverter(RowFormat format, const Columns& columns,
                                               const std::string& file_name) {
  switch (format) {
    case RowFormat::kCsv:
      return std::make_unique<CsvRows>(',', columns, file_name);
    case RowFormat::kTsv:
      return std::make_unique<CsvRows>('\t', columns, file_name);
    case RowFormat::kArray:
      return std::make_unique<JsonRows>(true, columns, file_name);
    case RowFormat::kLines:
      break;
  }
  if (columns.empty()) return std::make_unique<Unchanged>(file_name);
  return std::make_unique<JsonRows>(false, columns, file_name);
}

}  // namespace lorad::client
