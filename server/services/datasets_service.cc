#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lorad/v1/datasets.grpc.pb.h"
#include "server/calls/backend.h"
#include "server/calls/call.h"
#include "server/calls/file_receiver.h"
#include "server/calls/unary_call.h"
#include "server/calls/upload.h"
#include "server/services/services.h"
#include "server/services/validation_stream.h"
#include "server/validation/limits.h"
#include "storage/datasets/dataset.h"

namespace lorad::server {
namespace {

using Context = grpc::CallbackServerContext;

// CreateDataset: config, then the file's chunks.
class DatasetIntake final : public Intake<v1::CreateDatasetRequest> {
 public:
  explicit DatasetIntake(Backend& backend) : backend_(backend), scanner_(UploadLimits()) {}

  absl::Status Take(const v1::CreateDatasetRequest& message) override {
    if (!config_) return TakeConfig(message);
    if (message.content_case() != v1::CreateDatasetRequest::kChunk) return NotFirst();
    if (!upload_) {
      if (absl::Status status = Open(); !status.ok()) return status;
    }
    // It may be what makes the room low.
    if (absl::Status status = backend_.driver.Writable(); !status.ok()) return status;
    if (absl::Status status = upload_->Append(message.chunk()); !status.ok()) return status;
    return scanner_.Add(message.chunk());
  }

  absl::Status Complete() override {
    if (!config_) return NotFirst();
    if (!upload_) {
      if (absl::Status status = Open(); !status.ok()) return status;
    }
    absl::Status status = upload_->Finish(config_->size_bytes(), "");
    if (!status.ok()) return status;
    report_ = scanner_.Finish();
    return storage::ToStatus(report_);
  }

  Request Release() override {
    server::CreateDataset create;
    create.dataset.set_name(config_->name());
    create.dataset.set_format(report_.format ? static_cast<v1::Dataset::Format>(*report_.format)
                                             : v1::Dataset::FORMAT_UNSPECIFIED);
    create.dataset.set_rows(report_.rows);
    create.dataset.set_size_bytes(upload_->bytes());
    create.dataset.set_sha256(upload_->sha256());
    create.request_id = {config_->request_id(),
                         absl::StrCat("dataset ", config_->name(), " ", upload_->sha256())};
    create.upload = upload_->Release();
    return create;
  }

 private:
  static absl::Status NotFirst() {
    return InvalidFields("request",
                         {{"config", "the first message, and no other, must be the config"}});
  }

  absl::Status TakeConfig(const v1::CreateDatasetRequest& message) {
    if (!message.has_config()) return NotFirst();
    config_ = message.config();
    RequestCheck check;
    check.Field("config.name", CheckName(config_->name()))
        .Field("config.request_id", CheckRequestId(config_->request_id()));
    if (config_->size_bytes() < 0 || config_->size_bytes() > kDatasetBytesMax) {
      check.Field("config.size_bytes", absl::StrCat("must be between 0 and ", kDatasetBytesMax,
                                                    ", got ", config_->size_bytes()));
    }
    if (absl::Status status = check.status(); !status.ok()) return status;
    if (absl::Status status = backend_.driver.Writable(); !status.ok()) return status;
    // Says before the upload what would be said after it; with a request_id it may be a repetition.
    const bool taken =
        config_->request_id().empty() && backend_.driver.DatasetPath(config_->name()).ok();
    return taken ? AlreadyExists("dataset", config_->name()) : absl::OkStatus();
  }

  // A place is taken when there is something to keep.
  absl::Status Open() {
    absl::StatusOr<Gate::Pass> pass = backend_.uploads.Enter();
    if (!pass.ok()) return pass.status();
    pass_.emplace(*std::move(pass));
    absl::StatusOr<Upload> upload =
        Upload::Create(backend_.driver.files(), backend_.driver.data_dir().NewUpload(), "dataset",
                       kDatasetBytesMax);
    if (!upload.ok()) return upload.status();
    upload_.emplace(*std::move(upload));
    return absl::OkStatus();
  }

  Backend& backend_;
  std::optional<v1::CreateDatasetRequest::Config> config_;
  std::optional<Gate::Pass> pass_;
  std::optional<Upload> upload_;
  storage::DatasetScanner scanner_;
  storage::DatasetReport report_;
};

class DatasetsService final : public v1::Datasets::CallbackService {
 public:
  explicit DatasetsService(Backend& backend) : backend_(backend) {}

  grpc::ServerReadReactor<v1::CreateDatasetRequest>* CreateDataset(Context* context,
                                                                   v1::Dataset* response) override {
    return new FileReceiver<v1::CreateDatasetRequest, v1::Dataset>(
        backend_, context, Connections::Who::kClient, std::make_unique<DatasetIntake>(backend_),
        response);
  }

  grpc::ServerUnaryReactor* GetDataset(Context* context, const v1::GetDatasetRequest* request,
                                       v1::Dataset* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* ListDatasets(Context* context, const v1::ListDatasetsRequest* request,
                                         v1::ListDatasetsResponse* response) override {
    auto* call = new UnaryCall(backend_, context);
    v1::ListDatasetsRequest page = *request;
    absl::Status status = CompletePage(page, kPageSizeMax, kPageSizeDefault);
    return status.ok() ? call->Relay(std::move(page), response) : call->End(status);
  }

  grpc::ServerUnaryReactor* DeleteDataset(Context* context, const v1::DeleteDatasetRequest* request,
                                          google::protobuf::Empty*) override {
    return (new UnaryCall(backend_, context))->Relay(*request);
  }

  grpc::ServerBidiReactor<v1::ValidateDatasetRequest, v1::ValidateDatasetResponse>* ValidateDataset(
      Context* context) override {
    return new ValidationStream(backend_, context);
  }

 private:
  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDatasetsService(Backend& backend) {
  return std::make_unique<DatasetsService>(backend);
}

}  // namespace lorad::server
