#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lorad/worker/v1/worker.grpc.pb.h"
#include "server/calls/backend.h"
#include "server/calls/file_receiver.h"
#include "server/calls/file_sender.h"
#include "server/calls/unary_call.h"
#include "server/calls/upload.h"
#include "server/errors/errors.h"
#include "server/services/control_stream.h"
#include "server/services/services.h"
#include "server/services/slot_content_source.h"
#include "server/store/model_parts.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

namespace wire = worker::v1;
using Context = grpc::CallbackServerContext;

// UploadShard: header, then chunks. It takes no place from clients, and none is refused for want of
// one: there are no more of them than groups of connected workers save.
class ShardIntake final : public Intake<wire::UploadShardRequest> {
 public:
  explicit ShardIntake(Backend& backend) : backend_(backend) {}

  void ComesFrom(const std::string& worker) override { worker_ = worker; }

  absl::Status Take(const wire::UploadShardRequest& message) override {
    if (!upload_) return TakeHeader(message);
    if (message.content_case() != wire::UploadShardRequest::kChunk) {
      return InvalidFields("message", {{"header", "must come once, in the first message"}});
    }
    return upload_->Append(message.chunk());
  }

  absl::Status Complete() override {
    if (!upload_) return NoHeader();
    return upload_->Finish(shard_.header.size_bytes(), shard_.header.sha256());
  }

  Request Release() override {
    shard_.upload = upload_->Release();
    return std::move(shard_);
  }

 private:
  static absl::Status NoHeader() {
    return InvalidFields("message", {{"header", "must be the first message"}});
  }

  absl::Status TakeHeader(const wire::UploadShardRequest& message) {
    if (!message.has_header()) return NoHeader();
    shard_.header = message.header();
    if (absl::Status status = backend_.epochs.CheckUpload(shard_.header, worker_); !status.ok()) {
      return status;
    }
    absl::StatusOr<Upload> upload =
        Upload::Create(backend_.driver.files(), backend_.driver.data_dir().NewUpload(),
                       "checkpoint shard", kShardBytesMax);
    if (!upload.ok()) return upload.status();
    upload_.emplace(*std::move(upload));
    return absl::OkStatus();
  }

  Backend& backend_;
  std::string worker_;
  ShardUploaded shard_;
  std::optional<Upload> upload_;
};

// As long as the one before was, for the key of `asked`.
absl::StatusOr<wire::RenewCertificateResponse> RenewedCertificate(const SiteCredentials& site,
                                                                  const std::string& worker,
                                                                  const std::string& before,
                                                                  const std::string& asked) {
  if (worker.empty()) {
    return PreconditionFailed("CERTIFICATE_MISSING", "certificate",
                              "only a worker that has come with a certificate has it renewed");
  }
  const absl::StatusOr<storage::Validity> validity = storage::ValidityOf(before);
  if (!validity.ok()) return validity.status();
  absl::StatusOr<std::string> certificate = site.authority->SignWorker(
      asked, worker, storage::ValidFor(validity->length(), site.wall_clock()));
  if (!certificate.ok()) return certificate.status();
  spdlog::info("the certificate of worker '{}' is renewed until {}", worker,
               storage::TimeText(storage::ValidityOf(*certificate)->until));
  wire::RenewCertificateResponse response;
  response.set_certificate(*std::move(certificate));
  return response;
}

// For a stage of the group that the worker was to form.
absl::StatusOr<wire::FindMpiServerResponse> MpiServer(Backend& backend, const std::string& worker,
                                                      const wire::FindMpiServerRequest& asked) {
  const absl::Status formed = backend.epochs.FormedBy(asked.epoch(), worker).status();
  if (!formed.ok()) return formed;
  if (!backend.find_mpi_server) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_MPI_SERVER",
                 "this lorad has no ompi-server: start `lorad serve --transport mpi`");
  }
  absl::StatusOr<std::string> uri = backend.find_mpi_server(asked.silent_uri());
  if (!uri.ok()) return uri.status();
  wire::FindMpiServerResponse response;
  response.set_uri(*std::move(uri));
  return response;
}

// DescribeModel: of the group that the calling worker is to form.
class ModelPartsSource final : public Source<wire::ModelPart> {
 public:
  ModelPartsSource(Backend& backend, KnownModelParts& known, int64_t epoch)
      : backend_(backend), known_(known), epoch_(epoch) {}

  void ComesTo(const std::string& worker) override { worker_ = worker; }

  absl::StatusOr<bool> Next(wire::ModelPart* part) override {
    if (reader_ == nullptr) {
      const absl::StatusOr<wire::FormGroup> order = backend_.epochs.FormedBy(epoch_, worker_);
      if (!order.ok()) return order.status();
      auto reader = ModelPartsReader::Open(order->model_path(), order->model_fingerprint(), known_);
      if (!reader.ok()) return reader.status();
      reader_ = *std::move(reader);
    }
    return reader_->Next(part);
  }

 private:
  Backend& backend_;
  KnownModelParts& known_;
  const int64_t epoch_;
  std::string worker_;
  std::unique_ptr<ModelPartsReader> reader_;  // null before the first
};

class CoordinatorService final : public wire::Coordinator::CallbackService {
 public:
  explicit CoordinatorService(Backend& backend) : backend_(backend) {}

  grpc::ServerBidiReactor<wire::WorkerMessage, wire::CoordinatorMessage>* Control(
      Context* context) override {
    return new ControlStream(backend_, context);
  }

  grpc::ServerWriteReactor<wire::Chunk>* FetchSlotContent(
      Context* context, const wire::FetchSlotContentRequest* request) override {
    return new FileSender<wire::Chunk>(backend_, context, Connections::Who::kWorker,
                                       std::make_unique<SlotContentSource>(backend_, *request));
  }

  grpc::ServerReadReactor<wire::UploadShardRequest>* UploadShard(
      Context* context, wire::UploadShardResponse* response) override {
    return new FileReceiver<wire::UploadShardRequest, wire::UploadShardResponse>(
        backend_, context, Connections::Who::kWorker, std::make_unique<ShardIntake>(backend_),
        response);
  }

  grpc::ServerWriteReactor<wire::ModelPart>* DescribeModel(
      Context* context, const wire::DescribeModelRequest* request) override {
    return new FileSender<wire::ModelPart>(
        backend_, context, Connections::Who::kWorker,
        std::make_unique<ModelPartsSource>(backend_, known_models_, request->epoch()));
  }

  grpc::ServerUnaryReactor* FindMpiServer(Context* context,
                                          const wire::FindMpiServerRequest* request,
                                          wire::FindMpiServerResponse* response) override {
    auto* call = new UnaryCall(backend_, context, Connections::Who::kWorker);
    return call->Read<wire::FindMpiServerResponse>(
        response, [this, worker = call->worker(), asked = *request] {
          return MpiServer(backend_, worker, asked);
        });
  }

  grpc::ServerUnaryReactor* RenewCertificate(Context* context,
                                             const wire::RenewCertificateRequest* request,
                                             wire::RenewCertificateResponse* response) override {
    auto* call = new UnaryCall(backend_, context, Connections::Who::kWorker);
    const std::string worker = call->worker();
    const std::string certificate = CallerOf(*context).certificate;
    return call->Read<wire::RenewCertificateResponse>(
        response, [this, worker, certificate, asked = request->request()] {
          return RenewedCertificate(backend_.site, worker, certificate, asked);
        });
  }

 private:
  Backend& backend_;
  KnownModelParts known_models_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCoordinatorService(Backend& backend) {
  return std::make_unique<CoordinatorService>(backend);
}

}  // namespace lorad::server
