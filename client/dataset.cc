// lora dataset add | validate | ls | show | rm

#include <CLI/CLI.hpp>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/calls/error.h"
#include "client/calls/range.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/calls/transfer.h"
#include "client/inputs/row_source.h"
#include "client/text/json.h"
#include "client/text/table.h"
#include "client/text/width.h"
#include "lorad/v1/datasets.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Dataset;
using lorad::v1::DatasetReport;
using lorad::v1::Datasets;

struct Options {
  std::string name;
  std::string file;  // "-" is standard input
  std::string format;
  std::string columns;
  std::string request_id;
  std::string model;
  std::string stored;
  std::optional<int> max_length;  // not given = what the service takes
  bool refuse_overflow = false;
  std::string overflow;
  std::string train_on;
  std::string print_rows;  // "A:B"
};

void Print(const Dataset& dataset, const Session& session) {
  if (session.json) {
    std::cout << ToJson(dataset) << "\n";
    return;
  }
  Table table = Table::OfFields();
  table.Add({"name", dataset.name()});
  table.Add({"format", Dataset::Format_Name(dataset.format())});
  table.Add({"rows", absl::StrCat(dataset.rows())});
  table.Add({"size", BytesText(dataset.size_bytes())});
  table.Add({"sha256", dataset.sha256()});
  table.Add({"created", TimeText(dataset.create_time())});
  table.PrintFields(std::cout, TerminalColumns());
}

// Sends rows as messages that hold a chunk each, below the API's limit of 1 MiB. A stream that the
// server ended early is no error here: its Finish() says why. The bar counts what the source has
// read: nobody knows what its rows will make.
template <typename Request, typename Writer>
absl::Status SendRows(RowSource& rows, Writer& writer, TransferBar& bar) {
  constexpr std::size_t kChunkBytes = 256 << 10;
  Request request;
  std::int64_t sent = 0;  // of the source
  while (true) {
    const absl::StatusOr<std::string> bytes = rows.Next();
    if (!bytes.ok()) return bytes.status();
    if (bytes->empty()) return absl::OkStatus();
    for (std::size_t at = 0; at < bytes->size(); at += kChunkBytes) {
      request.set_chunk(bytes->substr(at, kChunkBytes));
      if (!writer.Write(request)) return absl::OkStatus();
    }
    bar.Add(rows.read_bytes() - std::exchange(sent, rows.read_bytes()));
  }
}

absl::Status Add(Session& session, const Options& options) {
  const auto rows = RowSource::Open(options.file, options.format, options.columns);
  if (!rows.ok()) return rows.status();
  Dataset dataset;
  Datasets::Stub stub(session.channel());
  grpc::ClientContext context;
  SetDeadline(context, kWorkSeconds);
  const auto writer = stub.CreateDataset(&context, &dataset);
  lorad::v1::CreateDatasetRequest first;
  first.mutable_config()->set_name(options.name);
  first.mutable_config()->set_request_id(options.request_id);
  first.mutable_config()->set_size_bytes((*rows)->size_bytes());
  absl::Status read = absl::OkStatus();
  if (writer->Write(first)) {
    TransferBar bar(!session.json, options.name, (*rows)->source_bytes());
    read = SendRows<lorad::v1::CreateDatasetRequest>(**rows, *writer, bar);
  }
  if (!read.ok()) {
    context.TryCancel();
    return read;
  }
  writer->WritesDone();
  const absl::Status status = session.FromRpc(writer->Finish());
  if (status.ok()) Print(dataset, session);
  return status;
}

absl::Status ReadRange(const std::string& text, lorad::v1::ValidateDatasetRequest::Config& config) {
  if (text.empty()) return absl::OkStatus();
  const std::vector<std::string> ends = absl::StrSplit(text, ':');
  std::int64_t begin = 0;
  std::int64_t end = 0;
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &begin) || !absl::SimpleAtoi(ends[1], &end) ||
      begin < 0 || end < begin) {
    return Error("USAGE", absl::StrCat("--print-rows must be A:B with 0 <= A <= B, got ", text));
  }
  config.set_print_rows_begin(begin);
  config.set_print_rows_end(end);
  return absl::OkStatus();
}

absl::Status ReadRules(const Options& options, lorad::v1::ValidateDatasetRequest::Config& config) {
  lorad::v1::TrainingConfig::Overflow overflow = lorad::v1::TrainingConfig::OVERFLOW_UNSPECIFIED;
  lorad::v1::TrainingConfig::TrainOn train_on = lorad::v1::TrainingConfig::TRAIN_ON_UNSPECIFIED;
  if (!options.overflow.empty() && !lorad::v1::TrainingConfig::Overflow_Parse(
                                       absl::AsciiStrToUpper(options.overflow), &overflow)) {
    return Error("USAGE", absl::StrCat("--overflow must be TRUNCATE, ERROR or SKIP, got ",
                                       options.overflow));
  }
  if (!options.train_on.empty() && !lorad::v1::TrainingConfig::TrainOn_Parse(
                                       absl::AsciiStrToUpper(options.train_on), &train_on)) {
    return Error("USAGE",
                 absl::StrCat("--train-on must be ASSISTANT or ALL, got ", options.train_on));
  }
  config.set_overflow(overflow);
  config.set_train_on(train_on);
  return absl::OkStatus();
}

void PrintRow(const lorad::v1::EncodedRow& row, const Session& session) {
  if (session.json) {
    std::cout << ToJson(row) << "\n";
    return;
  }
  int trained = 0;
  for (const int label : row.labels()) trained += label != -100 ? 1 : 0;
  std::cout << "row " << row.row() << (row.sequence() > 0 ? absl::StrCat(".", row.sequence()) : "")
            << ": " << row.input_ids_size() << " tokens, " << trained << " trained\n"
            << row.text() << "\n";
}

// "3, 9-12": however many there are.
std::string UntrainedText(const DatasetReport& report) {
  std::string text;
  for (const lorad::v1::LineRange& range : report.untrained_lines()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", range.first());
    if (range.last() > range.first()) absl::StrAppend(&text, "-", range.last());
  }
  return text;
}

absl::Status PrintReport(const DatasetReport& report, const std::string& what,
                         const Session& session) {
  if (session.json) {
    std::cout << ToJson(report) << "\n";
  } else {
    Table table = Table::OfFields();
    table.Add({"format", Dataset::Format_Name(report.format())});
    table.Add({"rows", absl::StrCat(report.rows())});
    table.Add({"sequences", absl::StrCat(report.sequences())});
    table.Add({"tokens", absl::StrCat(report.tokens())});
    table.Add({"trained tokens", absl::StrCat(report.trained_tokens())});
    table.Add({"truncated rows", absl::StrCat(report.truncated_rows())});
    table.Add({"skipped rows", absl::StrCat(report.skipped_rows())});
    table.Add({"longest row", absl::StrCat(report.longest_tokens(), " tokens")});
    table.Add({"bad rows", absl::StrCat(report.error_count())});
    table.PrintFields(std::cout, TerminalColumns());
    if (!report.sample().empty()) {
      std::cout << "\nA row as rendered, what is trained on between guillemets:\n"
                << report.sample() << "\n";
    }
  }
  if (!session.json && 2 * report.truncated_rows() > report.sequences()) {
    std::cerr << "warning: " << report.truncated_rows() << " of " << report.sequences()
              << " sequences are cut at this --max-length\n";
  }
  if (report.error_count() == 0 && report.errors().empty()) return absl::OkStatus();
  std::string lines;
  for (const lorad::v1::RowError& error : report.errors()) {
    absl::StrAppend(&lines, lines.empty() ? "" : "\n", "line ", error.line(), ": ", error.reason());
  }
  if (report.error_count() > report.errors_size()) {
    absl::StrAppend(&lines, "\n... and ", report.error_count() - report.errors_size(), " more");
  }
  if (report.untrained_lines_size() > 0) {
    absl::StrAppend(&lines, "\nno token is trained on in line ", UntrainedText(report),
                    " (--overflow SKIP leaves such rows out)");
  }
  return Error("BAD_ROWS",
               absl::StrCat(what, ": ", report.error_count(),
                            report.error_count() == 1 ? " bad row" : " bad rows",
                            "; mend or remove what is named"),
               lines);
}

absl::Status Validate(Session& session, const Options& options) {
  if (options.file.empty() == options.stored.empty()) {
    return Error("USAGE", "give either a file or --dataset NAME");
  }
  lorad::v1::ValidateDatasetRequest first;
  auto& config = *first.mutable_config();
  config.set_model(options.model);
  config.set_dataset(options.stored);
  if (options.max_length.has_value()) config.set_max_length(*options.max_length);
  config.set_refuse_overflow(options.refuse_overflow);
  if (const absl::Status rules = ReadRules(options, config); !rules.ok()) return rules;
  if (const absl::Status range = ReadRange(options.print_rows, config); !range.ok()) return range;
  // Rows that are printed meanwhile would be drawn over.
  const bool wants_bar = !session.json && options.print_rows.empty();
  config.set_progress(wants_bar && options.file.empty());
  absl::StatusOr<std::unique_ptr<RowSource>> rows = std::unique_ptr<RowSource>();
  if (!options.file.empty()) {
    rows = RowSource::Open(options.file, options.format, options.columns);
  }
  if (!rows.ok()) return rows.status();

  Datasets::Stub stub(session.channel());
  grpc::ClientContext context;
  SetDeadline(context, kWorkSeconds);
  const auto stream = stub.ValidateDataset(&context);
  // Rows come back while the file is still being sent: two threads, or both sides would wait to be
  // read.
  absl::Status read = absl::OkStatus();
  std::thread sender([&] {
    if (stream->Write(first) && !options.file.empty()) {
      TransferBar bar(wants_bar, options.file, (*rows)->source_bytes());
      read = SendRows<lorad::v1::ValidateDatasetRequest>(**rows, *stream, bar);
    }
    if (!read.ok()) context.TryCancel();
    stream->WritesDone();
  });
  lorad::v1::ValidateDatasetResponse response;
  DatasetReport report;
  {
    TransferBar bar(config.progress(), options.stored, 0);
    std::int64_t shown = 0;
    while (stream->Read(&response)) {
      if (response.has_row()) PrintRow(response.row(), session);
      if (response.has_report()) report = response.report();
      if (!response.has_progress()) continue;
      bar.SetTotal(response.progress().total_bytes());
      bar.Add(response.progress().bytes() - std::exchange(shown, response.progress().bytes()));
    }
  }
  sender.join();
  const absl::Status status = session.FromRpc(stream->Finish());
  if (!read.ok()) return read;
  if (!status.ok()) return status;
  return PrintReport(report, options.file.empty() ? options.stored : options.file, session);
}

absl::Status List(Session& session) {
  Table table({"NAME", "FORMAT", "ROWS", "SIZE", "CREATED"});
  const auto status =
      ForEachPage(session, &Datasets::Stub::ListDatasets, lorad::v1::ListDatasetsRequest(),
                  [&](const lorad::v1::ListDatasetsResponse& page) {
                    for (const Dataset& dataset : page.datasets()) {
                      if (session.json) std::cout << ToJson(dataset) << "\n";
                      table.Add({dataset.name(), Dataset::Format_Name(dataset.format()),
                                 absl::StrCat(dataset.rows()), BytesText(dataset.size_bytes()),
                                 TimeText(dataset.create_time())});
                    }
                  });
  if (status.ok() && !session.json) table.Print(std::cout);
  return status;
}

absl::Status Show(Session& session, const Options& options) {
  lorad::v1::GetDatasetRequest request;
  request.set_name(options.name);
  Dataset dataset;
  const auto status = Call(session, &Datasets::Stub::GetDataset, request, dataset);
  if (status.ok()) Print(dataset, session);
  return status;
}

absl::Status Remove(Session& session, const Options& options) {
  lorad::v1::DeleteDatasetRequest request;
  request.set_name(options.name);
  google::protobuf::Empty empty;
  return Call(session, &Datasets::Stub::DeleteDataset, request, empty);
}

}  // namespace

namespace {

void AddFileOptions(CLI::App& command, Options& options) {
  command.add_option("--format", options.format,
                     "jsonl, json, csv, tsv or parquet (default: by name and first bytes)");
  command.add_option("--columns", options.columns,
                     "Renames: prompt=question,completion=answer takes prompt from question");
}

}  // namespace

void AddDatasetCommands(CLI::App& app, Session& session) {
  CLI::App& group =
      *app.add_subcommand("dataset", "Training rows, as JSON Lines, CSV, TSV or Parquet");
  group.require_subcommand(0, 1);
  const auto options = std::make_shared<Options>();

  CLI::App& add = *group.add_subcommand("add", "Store a file of rows");
  add.add_option("name", options->name, "The dataset's id")->required();
  add.add_option(
         "file", options->file,
         "JSON Lines, a JSON array, CSV, TSV or Parquet, also packed by gzip or zstd; -: stdin")
      ->required();
  AddFileOptions(add, *options);
  add.add_option("--request-id", options->request_id, "Makes a repeated call harmless");
  add.callback([&session, options] {
    session.action = [&session, options] { return Add(session, *options); };
  });

  CLI::App& validate =
      *group.add_subcommand("validate", "Render and tokenize rows by a model, storing nothing");
  validate.add_option("file", options->file, "As dataset add takes it");
  AddFileOptions(validate, *options);
  validate.add_option("--dataset", options->stored, "A stored dataset in place of a file");
  validate.add_option("--model", options->model, "Whose tokenizer and template")->required();
  validate
      .add_option("--max-length", options->max_length,
                  "Tokens of a row (default: 1024, or the model's if fewer)")
      ->check(From(1, std::numeric_limits<int>::max()));
  validate.add_flag("--refuse-overflow", options->refuse_overflow, "The same as --overflow ERROR");
  validate.add_option("--overflow", options->overflow,
                      "As training.overflow: TRUNCATE, ERROR or SKIP");
  validate.add_option("--train-on", options->train_on, "As training.train_on: ASSISTANT or ALL");
  validate.add_option("--print-rows", options->print_rows, "A:B prints rows A <= row < B first");
  validate.callback([&session, options] {
    session.action = [&session, options] { return Validate(session, *options); };
  });

  group.add_subcommand("ls", "List them")->callback([&session] {
    session.action = [&session] { return List(session); };
  });

  CLI::App& show = *group.add_subcommand("show", "Show one");
  show.add_option("name", options->name, "The dataset's id")->required();
  show.callback([&session, options] {
    session.action = [&session, options] { return Show(session, *options); };
  });

  CLI::App& remove = *group.add_subcommand("rm", "Delete one");
  remove.add_option("name", options->name, "The dataset's id")->required();
  remove.callback([&session, options] {
    session.action = [&session, options] { return Remove(session, *options); };
  });
}

}  // namespace lorad::client
