#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "lorad/v1/adapters.grpc.pb.h"
#include "server/answers/asked_models.h"
#include "server/calls/backend.h"
#include "server/calls/call.h"
#include "server/calls/file_receiver.h"
#include "server/calls/unary_call.h"
#include "server/calls/upload.h"
#include "server/services/services.h"
#include "server/validation/adapter.h"
#include "server/validation/limits.h"
#include "server/validation/utf8.h"
#include "storage/adapters/manifest.h"
#include "storage/adapters/peft.h"
#include "storage/files/files.h"

namespace lorad::server {
namespace {

using Context = grpc::CallbackServerContext;

constexpr int64_t kConfigBytesMax = 1 << 20;

// The directory of an adapter on its way in: its files one after the other, all removed unless they
// were handed over.
class AdapterUpload {
 public:
  static absl::StatusOr<std::unique_ptr<AdapterUpload>> Create(storage::Files& files,
                                                               const std::string& directory) {
    auto upload = std::unique_ptr<AdapterUpload>(new AdapterUpload(files, directory));
    if (absl::Status status = files.MakeDirectory(directory); !status.ok()) return status;
    return upload;
  }

  ~AdapterUpload() {
    file_.reset();
    if (!directory_.empty()) (void)storage::RemoveTree(files_, directory_);
  }

  absl::Status BeginFile(const std::string& name) {
    if (absl::Status status = EndFile(); !status.ok()) return status;
    const bool config = name == storage::kAdapterConfigFile;
    if ((!config && name != storage::kAdapterModelFile) || sha256_.count(name) > 0) {
      return InvalidFields("request",
                           {{"file", absl::StrCat("must be ", storage::kAdapterConfigFile, " or ",
                                                  storage::kAdapterModelFile, ", each once, got '",
                                                  Quotable(name, 100), "'")}});
    }
    absl::StatusOr<Upload> file = Upload::Create(files_, storage::JoinPath(directory_, name), name,
                                                 config ? kConfigBytesMax : kAdapterBytesMax);
    if (!file.ok()) return file.status();
    file_.emplace(*std::move(file));
    name_ = name;
    return absl::OkStatus();
  }

  absl::Status Append(const std::string& bytes) {
    if (!file_) return InvalidFields("request", {{"file", "must come before its chunks"}});
    return file_->Append(bytes);
  }

  // Both files are there and durable, with the manifest by which damage is found.
  absl::Status Finish() {
    if (absl::Status status = EndFile(); !status.ok()) return status;
    for (const char* name : {storage::kAdapterConfigFile, storage::kAdapterModelFile}) {
      if (sha256_.count(name) == 0) {
        return Error(absl::StatusCode::kInvalidArgument, "ADAPTER_INVALID",
                     absl::StrCat(name, " did not come: send both files of the PEFT directory"));
      }
    }
    const std::vector<storage::ListedFile> listed = {
        {storage::kAdapterConfigFile, config_bytes_, sha256(storage::kAdapterConfigFile)},
        {storage::kAdapterModelFile, model_bytes_, sha256(storage::kAdapterModelFile)}};
    absl::Status status =
        storage::WriteSynced(files_, storage::JoinPath(directory_, storage::kManifestFile),
                             storage::ManifestText(listed));
    if (!status.ok()) return status;
    return files_.SyncDirectory(directory_);
  }

  const std::string& directory() const { return directory_; }
  const std::string& sha256(const std::string& name) const { return sha256_.at(name); }
  int64_t model_bytes() const { return static_cast<int64_t>(model_bytes_); }
  std::string Release() { return std::exchange(directory_, ""); }

 private:
  AdapterUpload(storage::Files& files, std::string directory)
      : files_(files), directory_(std::move(directory)) {}

  absl::Status EndFile() {
    if (!file_) return absl::OkStatus();
    if (absl::Status status = file_->Finish(0, ""); !status.ok()) return status;
    sha256_[name_] = file_->sha256();
    const bool config = name_ == storage::kAdapterConfigFile;
    (config ? config_bytes_ : model_bytes_) = static_cast<uint64_t>(file_->bytes());
    file_->Release();
    file_.reset();
    return absl::OkStatus();
  }

  storage::Files& files_;
  std::string directory_;
  std::optional<Upload> file_;                 // being written
  std::string name_;                           // its name
  std::map<std::string, std::string> sha256_;  // of the files that are whole
  uint64_t config_bytes_ = 0, model_bytes_ = 0;
};

// Where an upload lies says nothing to its client: the two files go by their names.
absl::Status WithoutDirectory(const absl::Status& status, const std::string& directory) {
  absl::Status out(status.code(), absl::StrReplaceAll(status.message(), {{directory + "/", ""}}));
  status.ForEachPayload(
      [&out](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

// ImportAdapter: config, then each file's name and its chunks.
class AdapterIntake final : public Intake<v1::ImportAdapterRequest> {
 public:
  explicit AdapterIntake(Backend& backend) : backend_(backend) {}

  absl::Status Take(const v1::ImportAdapterRequest& message) override {
    if (!config_) return TakeConfig(message);
    if (!upload_) {
      if (absl::Status status = Open(); !status.ok()) return status;
    }
    switch (message.content_case()) {
      case v1::ImportAdapterRequest::kFile:
        return upload_->BeginFile(message.file());
      case v1::ImportAdapterRequest::kChunk:
        return upload_->Append(message.chunk());
      default:
        return InvalidFields("request", {{"config", "must come once, in the first message"}});
    }
  }

  absl::Status Complete() override {
    if (!config_) return NoConfig();
    if (!upload_) {
      if (absl::Status status = Open(); !status.ok()) return status;
    }
    if (absl::Status status = upload_->Finish(); !status.ok()) return status;
    absl::Status status = Describe();
    return status.ok() ? status : WithoutDirectory(status, upload_->directory());
  }

  Request Release() override {
    import_.upload = upload_->Release();
    return std::move(import_);
  }

 private:
  static absl::Status NoConfig() {
    return InvalidFields("request", {{"config", "the first message must be the config"}});
  }

  absl::Status TakeConfig(const v1::ImportAdapterRequest& message) {
    if (!message.has_config()) return NoConfig();
    config_ = message.config();
    absl::Status status = RequestCheck()
                              .Field("config.name", CheckName(config_->name()))
                              .Field("config.request_id", CheckRequestId(config_->request_id()))
                              .status();
    return status.ok() ? backend_.driver.Writable() : status;
  }

  // A place is taken when there is something to keep.
  absl::Status Open() {
    absl::StatusOr<Gate::Pass> pass = backend_.uploads.Enter();
    if (!pass.ok()) return pass.status();
    pass_.emplace(*std::move(pass));
    absl::StatusOr<std::unique_ptr<AdapterUpload>> upload =
        AdapterUpload::Create(backend_.driver.files(), backend_.driver.data_dir().NewUpload());
    if (!upload.ok()) return upload.status();
    upload_ = *std::move(upload);
    return absl::OkStatus();
  }

  absl::Status Describe() {
    absl::StatusOr<storage::PeftAdapter> adapter =
        storage::PeftAdapter::Open(upload_->directory(), backend_.driver.files());
    if (!adapter.ok()) return adapter.status();
    if (absl::Status status = adapter->CheckFinite(); !status.ok()) return status;
    const std::string& sha256 = upload_->sha256(storage::kAdapterModelFile);
    import_.request_id = {config_->request_id(),
                          absl::StrCat("adapter ", config_->name(), " ", sha256, " ",
                                       upload_->sha256(storage::kAdapterConfigFile))};
    import_.adapter.set_name(config_->name());
    import_.adapter.set_rank(adapter->config().rank);
    import_.adapter.set_alpha(adapter->config().alpha);
    import_.adapter.set_use_rslora(adapter->config().rslora);
    for (const std::string& module : adapter->modules()) {
      import_.adapter.add_target_modules(module);
    }
    v1::AdapterConfig& config = *import_.adapter.mutable_config();
    config = AdapterConfigOf(adapter->config());
    config.set_dropout(adapter->config().dropout);
    if (adapter->config().has_patterns()) SetModules(adapter->Trained(), 0, &config);
    import_.adapter.set_size_bytes(upload_->model_bytes());
    import_.adapter.set_sha256(sha256);
    return CheckUtf8("adapter", import_.adapter);
  }

  Backend& backend_;
  std::optional<v1::ImportAdapterRequest::Config> config_;
  std::optional<Gate::Pass> pass_;
  std::unique_ptr<AdapterUpload> upload_;
  server::ImportAdapter import_;
};

class AdaptersService final : public v1::Adapters::CallbackService {
 public:
  explicit AdaptersService(Backend& backend) : backend_(backend) {}

  grpc::ServerReadReactor<v1::ImportAdapterRequest>* ImportAdapter(Context* context,
                                                                   v1::Adapter* response) override {
    return new FileReceiver<v1::ImportAdapterRequest, v1::Adapter>(
        backend_, context, Connections::Who::kClient, std::make_unique<AdapterIntake>(backend_),
        response);
  }

  grpc::ServerUnaryReactor* GetAdapter(Context* context, const v1::GetAdapterRequest* request,
                                       v1::Adapter* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* ListAdapters(Context* context, const v1::ListAdaptersRequest* request,
                                         v1::ListAdaptersResponse* response) override {
    auto* call = new UnaryCall(backend_, context);
    v1::ListAdaptersRequest page = *request;
    absl::Status status = CompletePage(page, kPageSizeMax, kPageSizeDefault);
    return status.ok() ? call->Relay(std::move(page), response) : call->End(status);
  }

  grpc::ServerUnaryReactor* DeleteAdapter(Context* context, const v1::DeleteAdapterRequest* request,
                                          google::protobuf::Empty*) override {
    return (new UnaryCall(backend_, context))->Relay(*request);
  }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      Context* context, const v1::GenerateRequest* request) override {
    return NewGenerateStream(backend_, models_, context, *request);
  }

 private:
  Backend& backend_;
  AskedModels models_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdaptersService(Backend& backend) {
  return std::make_unique<AdaptersService>(backend);
}

}  // namespace lorad::server
