#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lorad/v1/datasets.grpc.pb.h"
#include "server/services/backend.h"
#include "server/services/call.h"
#include "server/services/services.h"
#include "server/services/upload.h"
#include "server/validation/limits.h"
#include "storage/dataset.h"
#include "storage/dataset_encode.h"
#include "storage/model_directory.h"

namespace lorad::server {
namespace {

constexpr size_t kReasonBytesMax = 500;
constexpr size_t kTextBytesMax = 1 << 20;

using CreateReader = grpc::ServerReader<v1::CreateDatasetRequest>;
using ValidateStream =
    grpc::ServerReaderWriter<v1::ValidateDatasetResponse, v1::ValidateDatasetRequest>;

v1::Dataset::Format FormatOf(const storage::DatasetReport& report) {
  return report.format ? static_cast<v1::Dataset::Format>(*report.format)
                       : v1::Dataset::FORMAT_UNSPECIFIED;
}

storage::DatasetLimits Limits() {
  storage::DatasetLimits limits;
  limits.file_bytes = kDatasetBytesMax;
  return limits;
}

absl::Status NotFirst(const char* what) {
  return InvalidFields("request", {{what, "the first message, and no other, must be the config"}});
}

v1::ValidateDatasetResponse ReportMessage(const storage::DatasetReport& report) {
  v1::ValidateDatasetResponse response;
  v1::DatasetReport& message = *response.mutable_report();
  message.set_format(FormatOf(report));
  message.set_rows(report.rows);
  message.set_tokens(report.tokens);
  message.set_trained_tokens(report.trained_tokens);
  message.set_truncated_rows(report.truncated_rows);
  message.set_longest_tokens(report.longest_tokens);
  message.set_error_count(report.error_count);
  message.set_sample(Quotable(report.sample, kTextBytesMax));
  for (const storage::RowError& error : report.errors) {
    v1::RowError* row = message.add_errors();
    row->set_line(error.line);
    row->set_reason(Quotable(error.reason, kReasonBytesMax));
  }
  return response;
}

v1::ValidateDatasetResponse RowMessage(int64_t row, const storage::EncodedRow& encoded) {
  v1::ValidateDatasetResponse response;
  v1::EncodedRow& message = *response.mutable_row();
  message.set_row(row);
  message.set_text(Quotable(encoded.text, kTextBytesMax));
  message.mutable_input_ids()->Add(encoded.ids.begin(), encoded.ids.end());
  message.mutable_labels()->Add(encoded.labels.begin(), encoded.labels.end());
  return response;
}

class DatasetsService final : public v1::Datasets::Service {
 public:
  explicit DatasetsService(Backend& backend) : backend_(backend) {}

  grpc::Status CreateDataset(grpc::ServerContext* context, CreateReader* reader,
                             v1::Dataset* response) override {
    return Answer(Create(*context, *reader), response);
  }

  grpc::Status GetDataset(grpc::ServerContext* context, const v1::GetDatasetRequest* request,
                          v1::Dataset* response) override {
    return Answer(backend_.driver.Ask<v1::Dataset>(*request, DeadlineOf(*context)), response);
  }

  grpc::Status ListDatasets(grpc::ServerContext* context, const v1::ListDatasetsRequest* request,
                            v1::ListDatasetsResponse* response) override {
    v1::ListDatasetsRequest page = *request;
    absl::Status status = CompletePage(page, kPageSizeMax, kPageSizeDefault);
    if (!status.ok()) return ToGrpc(status);
    return Answer(backend_.driver.Ask<v1::ListDatasetsResponse>(page, DeadlineOf(*context)),
                  response);
  }

  grpc::Status DeleteDataset(grpc::ServerContext* context, const v1::DeleteDatasetRequest* request,
                             google::protobuf::Empty*) override {
    return ToGrpc(backend_.driver.Call(*request, DeadlineOf(*context)).status());
  }

  grpc::Status ValidateDataset(grpc::ServerContext* context, ValidateStream* stream) override {
    return ToGrpc(Validate(*context, *stream));
  }

 private:
  absl::StatusOr<v1::Dataset> Create(grpc::ServerContext& context, CreateReader& reader) {
    v1::CreateDatasetRequest message;
    if (!reader.Read(&message) || !message.has_config()) return NotFirst("config");
    const v1::CreateDatasetRequest::Config config = message.config();
    if (absl::Status status = CheckConfig(config); !status.ok()) return status;
    absl::StatusOr<Gate::Pass> pass = backend_.uploads.Enter();
    if (!pass.ok()) return pass.status();
    if (absl::Status status = CheckNew(config); !status.ok()) return status;

    absl::StatusOr<Upload> upload =
        Upload::Create(backend_.driver.files(), backend_.driver.data_dir().NewUpload(), "dataset",
                       kDatasetBytesMax);
    if (!upload.ok()) return upload.status();
    storage::DatasetScanner scanner(Limits());
    while (reader.Read(&message)) {
      if (message.content_case() != v1::CreateDatasetRequest::kChunk) return NotFirst("config");
      if (absl::Status status = upload->Append(message.chunk()); !status.ok()) return status;
      if (absl::Status status = scanner.Add(message.chunk()); !status.ok()) return status;
    }
    if (context.IsCancelled()) return absl::CancelledError("the client left in mid-upload");
    if (absl::Status status = upload->Finish(config.size_bytes(), ""); !status.ok()) return status;
    const storage::DatasetReport report = scanner.Finish();
    if (absl::Status status = storage::ToStatus(report); !status.ok()) return status;
    // A connection that broke looks like an end at first; by now, an fsync later, it is known.
    if (context.IsCancelled()) return absl::CancelledError("the client left in mid-upload");

    server::CreateDataset create;
    create.dataset.set_name(config.name());
    create.dataset.set_format(FormatOf(report));
    create.dataset.set_rows(report.rows);
    create.dataset.set_size_bytes(upload->bytes());
    create.dataset.set_sha256(upload->sha256());
    create.request_id = {config.request_id(),
                         absl::StrCat("dataset ", config.name(), " ", upload->sha256())};
    create.upload = upload->Release();
    return backend_.driver.Ask<v1::Dataset>(std::move(create), DeadlineOf(context));
  }

  static absl::Status CheckConfig(const v1::CreateDatasetRequest::Config& config) {
    RequestCheck check;
    check.Field("config.name", CheckName(config.name()))
        .Field("config.request_id", CheckRequestId(config.request_id()));
    if (config.size_bytes() < 0 || config.size_bytes() > kDatasetBytesMax) {
      check.Field("config.size_bytes", absl::StrCat("must be between 0 and ", kDatasetBytesMax,
                                                    ", got ", config.size_bytes()));
    }
    return check.status();
  }

  // Says before the upload what would be said after it.
  absl::Status CheckNew(const v1::CreateDatasetRequest::Config& config) {
    if (!config.request_id().empty()) return absl::OkStatus();  // may be a repetition
    v1::GetDatasetRequest get;
    get.set_name(config.name());
    return backend_.driver.Ask<v1::Dataset>(std::move(get)).ok()
               ? AlreadyExists("dataset", config.name())
               : absl::OkStatus();
  }

  absl::Status Validate(grpc::ServerContext& context, ValidateStream& stream) {
    v1::ValidateDatasetRequest message;
    if (!stream.Read(&message) || !message.has_config()) return NotFirst("config");
    const v1::ValidateDatasetRequest::Config config = message.config();
    absl::StatusOr<Gate::Pass> pass = backend_.uploads.Enter();
    if (!pass.ok()) return pass.status();
    v1::GetModelRequest get;
    get.set_name(config.model());
    absl::StatusOr<v1::Model> model = backend_.driver.Ask<v1::Model>(std::move(get));
    if (!model.ok()) return model.status();
    storage::EncodeOptions options;
    options.refuse_overflow = config.refuse_overflow();
    options.max_length = config.has_max_length() ? config.max_length()
                                                 : std::min(1024, model->max_position_embeddings());
    if (absl::Status status = CheckConfig(config, options, *model); !status.ok()) return status;
    absl::StatusOr<storage::ModelDirectory> directory =
        storage::ModelDirectory::Open(model->path());
    if (!directory.ok()) return directory.status();
    absl::StatusOr<storage::TextModel> text = storage::LoadTextModel(*directory);
    if (!text.ok()) return text.status();

    storage::DatasetEncoder encoder(
        *text, options, [&](int64_t row, int64_t, const storage::EncodedRow& encoded) {
          const bool asked = row >= config.print_rows_begin() && row < config.print_rows_end();
          if (asked) stream.Write(RowMessage(row, encoded));
          return absl::OkStatus();
        });
    const auto encode = [&](int64_t row, int64_t line, const storage::DatasetRow& content) {
      return encoder.Encode(row, line, content);
    };
    absl::StatusOr<storage::DatasetReport> report = config.dataset().empty()
                                                        ? ScanStream(context, stream, encode)
                                                        : ScanStored(config.dataset(), encode);
    if (!report.ok()) return report.status();
    encoder.Complete(&*report);
    stream.Write(ReportMessage(*report));
    return absl::OkStatus();
  }

  static absl::Status CheckConfig(const v1::ValidateDatasetRequest::Config& config,
                                  const storage::EncodeOptions& options, const v1::Model& model) {
    RequestCheck check;
    const int positions = model.max_position_embeddings();
    if (options.max_length < 2 || options.max_length > positions) {
      check.Field("config.max_length", absl::StrCat("must be between 2 and the model's ", positions,
                                                    " positions, got ", options.max_length));
    }
    const int64_t begin = config.print_rows_begin();
    const int64_t end = config.print_rows_end();
    if (begin < 0 || end < begin || end - begin > kPrintRowsMax) {
      check.Field("config.print_rows_end",
                  absl::StrCat("must be at least print_rows_begin and at most ", kPrintRowsMax,
                               " rows after it, got ", begin, " and ", end));
    }
    return check.status();
  }

  absl::StatusOr<storage::DatasetReport> ScanStream(grpc::ServerContext& context,
                                                    ValidateStream& stream,
                                                    storage::DatasetScanner::OnRow on_row) {
    storage::DatasetScanner scanner(Limits(), std::move(on_row));
    v1::ValidateDatasetRequest message;
    while (stream.Read(&message)) {
      if (message.content_case() != v1::ValidateDatasetRequest::kChunk) return NotFirst("config");
      if (absl::Status status = scanner.Add(message.chunk()); !status.ok()) return status;
    }
    if (context.IsCancelled()) return absl::CancelledError("the client left in mid-upload");
    return scanner.Finish();
  }

  absl::StatusOr<storage::DatasetReport> ScanStored(const std::string& name,
                                                    storage::DatasetScanner::OnRow on_row) {
    absl::StatusOr<std::string> path = backend_.driver.DatasetPath(name);
    if (!path.ok()) return path.status();
    return storage::ScanDataset(backend_.driver.files(), *path, Limits(), std::move(on_row));
  }

  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDatasetsService(Backend& backend) {
  return std::make_unique<DatasetsService>(backend);
}

}  // namespace lorad::server
