#include "client/inputs/rows.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/calls/error.h"
#include "client/inputs/csv_rows.h"
#include "client/inputs/json_rows.h"

namespace lorad::client {
namespace {

class Unchanged final : public RowConverter {
 public:
  absl::Status Take(absl::string_view bytes, std::string& out) override {
    out.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  absl::Status Finish(std::string&) override { return absl::OkStatus(); }
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
  if (columns.empty()) return std::make_unique<Unchanged>();
  return std::make_unique<JsonRows>(false, columns, file_name);
}

}  // namespace lorad::client
