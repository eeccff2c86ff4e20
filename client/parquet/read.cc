#include "client/parquet/read.h"

#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/inputs/quoted.h"
#include "client/parquet/json_form.h"

namespace lorad::client {
namespace {

constexpr std::int64_t kBatchRows = 64;
constexpr std::int64_t kArrowBytesMax = std::int64_t{1} << 30;
constexpr std::size_t kWriteBytes = 64 << 10;

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(what); }

absl::Status Damaged(absl::string_view why) {
  if (absl::StrContains(why, "crypt")) {
    return Wrong(
        "is encrypted, which is not read; pyarrow.parquet.read_table(path, "
        "decryption_properties=..) reads it");
  }
  return Wrong(absl::StrCat("is no whole Parquet file: ", absl::StripAsciiWhitespace(why)));
}

absl::Status FromArrow(const arrow::Status& status) {
  if (!status.IsOutOfMemory()) return Damaged(status.message());
  return Wrong(
      "takes more than 1 GiB of memory; with pandas, frame.to_parquet(path, row_group_size=1000) "
      "writes it in smaller pieces");
}

class Rows {
 public:
  Rows(const std::map<std::string, std::string>& columns,
       const std::function<bool(absl::string_view)>& write)
      : columns_(columns), write_(write) {}

  absl::Status TakeSchema(const arrow::Schema& schema);
  // False in `go_on` where nobody reads on.
  absl::Status TakeBatch(const arrow::RecordBatch& batch, bool& go_on);
  std::int64_t rows() const { return rows_; }
  bool Flush();

 private:
  struct Column {
    std::string name;  // in the file
    std::string key;
    bool renamed;
    JsonForm form;
  };

  // Makes `row_` of row `i`.
  absl::Status MakeRow(const arrow::RecordBatch& batch, std::int64_t i);

  const std::map<std::string, std::string>& columns_;
  const std::function<bool(absl::string_view)>& write_;
  std::vector<Column> fields_;
  std::int64_t rows_ = 0;
  std::string row_;
  std::string out_;
};

absl::Status Rows::TakeSchema(const arrow::Schema& schema) {
  if (schema.num_fields() == 0) return Wrong("has no columns");
  std::set<std::string> names;
  for (const std::shared_ptr<arrow::Field>& field : schema.fields()) {
    const auto renamed = columns_.find(field->name());
    const std::string& name = renamed == columns_.end() ? field->name() : renamed->second;
    if (!names.insert(name).second) {
      const bool by_option = std::ranges::any_of(
          columns_, [&](const auto& pair) { return pair.second == name && pair.first != name; });
      return Wrong(absl::StrCat("two columns are ", name,
                                by_option ? ", one of them by --columns" : "",
                                "; rename or remove one"));
    }
    const std::string quoted = Quoted(name);
    if (quoted.empty()) return Wrong("the name of a column is not UTF-8");
    absl::StatusOr<JsonForm> form = JsonForm::Of(field->name(), *field->type());
    if (!form.ok()) return form.status();
    fields_.push_back({field->name(), quoted + ": ", renamed != columns_.end(), *std::move(form)});
  }
  for (const auto& [theirs, ours] : columns_) {
    if (schema.GetFieldIndex(theirs) >= 0) continue;
    return Wrong(absl::StrCat("no column ", theirs, " as --columns says; there are ",
                              absl::StrJoin(schema.field_names(), ", ")));
  }
  return absl::OkStatus();
}

absl::Status Rows::MakeRow(const arrow::RecordBatch& batch, std::int64_t i) {
  const char* before = "";
  row_.assign(1, '{');
  for (std::size_t k = 0; k < fields_.size(); ++k) {
    const Column& column = fields_[k];
    const arrow::Array& values = *batch.column(static_cast<int>(k));
    if (values.IsNull(i)) {
      if (!column.renamed) continue;
      return Wrong(absl::StrCat("row ", rows_, " has no ", column.name, ", which --columns names"));
    }
    absl::StrAppend(&row_, before, column.key);
    before = ", ";
    if (const auto status = column.form.Append(values, i, row_); !status.ok()) {
      return Wrong(absl::StrCat("row ", rows_, ": a value in column ", column.name, " ",
                                std::string(status.message())));
    }
  }
  row_ += "}\n";
  return absl::OkStatus();
}

absl::Status Rows::TakeBatch(const arrow::RecordBatch& batch, bool& go_on) {
  // What the file itself says of its parts (offsets, codes) is not to be gone by unseen.
  if (const arrow::Status valid = batch.Validate(); !valid.ok()) return FromArrow(valid);
  for (std::int64_t i = 0; i < batch.num_rows() && go_on; ++i) {
    ++rows_;
    if (const auto status = MakeRow(batch, i); !status.ok()) return status;
    out_ += row_;
    if (out_.size() >= kWriteBytes) go_on = Flush();
  }
  return absl::OkStatus();
}

bool Rows::Flush() {
  const bool written = out_.empty() || write_(out_);
  out_.clear();
  return written;
}

absl::Status ReadAll(std::shared_ptr<arrow::io::RandomAccessFile> file, Rows& rows) {
  arrow::CappedMemoryPool pool(arrow::system_memory_pool(), kArrowBytesMax);
  parquet::ReaderProperties pages(&pool);
  pages.enable_buffered_stream();  // else a column of a row group at once
  pages.set_page_checksum_verification(true);
  parquet::ArrowReaderProperties batches(/*use_threads=*/false);
  batches.set_batch_size(kBatchRows);
  batches.set_pre_buffer(false);

  parquet::arrow::FileReaderBuilder builder;
  if (auto status = builder.Open(std::move(file), pages); !status.ok()) return FromArrow(status);
  auto built = builder.memory_pool(&pool)->properties(batches)->Build();
  if (!built.ok()) return FromArrow(built.status());
  const std::unique_ptr<parquet::arrow::FileReader> reader = *std::move(built);
  const auto metadata = reader->parquet_reader()->metadata();
  if (metadata->is_encryption_algorithm_set()) return Damaged("encrypted");
  auto made = reader->GetRecordBatchReader();
  if (!made.ok()) return FromArrow(made.status());
  const std::unique_ptr<arrow::RecordBatchReader> reading = *std::move(made);
  if (auto status = rows.TakeSchema(*reading->schema()); !status.ok()) return status;
  for (bool go_on = true; go_on;) {
    std::shared_ptr<arrow::RecordBatch> batch;
    if (auto read = reading->ReadNext(&batch); !read.ok()) return FromArrow(read);
    if (batch == nullptr) break;
    if (auto status = rows.TakeBatch(*batch, go_on); !status.ok()) return status;
    if (!go_on) return absl::OkStatus();
  }
  if (rows.rows() != metadata->num_rows()) {
    return Damaged(
        absl::StrCat("it has ", rows.rows(), " rows, and says that it has ", metadata->num_rows()));
  }
  if (rows.rows() == 0) return Wrong("has columns, and no row");
  rows.Flush();
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadParquet(std::shared_ptr<arrow::io::RandomAccessFile> file,
                         const std::map<std::string, std::string>& columns,
                         const std::function<bool(absl::string_view)>& write) {
  Rows rows(columns, write);
  absl::Status status;
  try {
    status = ReadAll(std::move(file), rows);
  } catch (const std::exception& error) {  // a few of Arrow's calls throw
    status = Damaged(error.what());
  }
  if (!status.ok()) rows.Flush();
  return status;
}

}  // namespace lorad::client
