#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lorad/v1/models.grpc.pb.h"
#include "server/calls/backend.h"
#include "server/calls/call.h"
#include "server/calls/unary_call.h"
#include "server/services/model_path.h"
#include "server/services/services.h"
#include "server/validation/limits.h"
#include "server/validation/utf8.h"
#include "storage/datasets/text_model.h"
#include "storage/files/sha256.h"
#include "storage/models/model_directory.h"

namespace lorad::server {
namespace {

using Context = grpc::CallbackServerContext;

std::string CheckPath(const std::string& path) {
  if (path.empty()) return "must be given";
  if (!absl::StartsWith(path, "/")) return "must be an absolute path on the server's machine";
  if (path.find('\0') != std::string::npos) return "must not hold a zero byte";
  return CheckText(path, kPathBytesMax);
}

std::string CheckTemplate(const std::string& text) {
  if (text.size() <= kTemplateBytesMax) return "";
  return absl::StrCat("must have at most ", kTemplateBytesMax, " bytes, got ", text.size());
}

std::string CheckMask(const google::protobuf::FieldMask& mask) {
  if (mask.paths().empty()) return "must name what is to change: stages";
  for (const std::string& path : mask.paths()) {
    if (path != "stages") {
      return absl::StrCat("'", Quotable(path, kNameBytesMax),
                          "' cannot be changed: only stages can");
    }
  }
  return "";
}

// Everything about a model that its directory says; with a template, that this one is in its place.
absl::StatusOr<server::RegisterModel> DescribeDirectory(const std::string& name,
                                                        const std::string& path,
                                                        const std::string& chat_template) {
  absl::StatusOr<storage::ModelDirectory> directory = storage::ModelDirectory::Open(path);
  if (!directory.ok()) return directory.status();
  absl::StatusOr<storage::TextModel> text = storage::LoadTextModel(*directory, chat_template);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::string> config = directory->ReadText("config.json");
  if (!config.ok()) return config.status();

  const storage::ModelDescription& description = directory->description();
  server::RegisterModel registration;
  registration.config_json = *std::move(config);
  v1::Model& model = registration.model;
  model.set_name(name);
  model.set_path(path);
  model.set_architecture(description.architecture);
  model.set_parameters(storage::ParameterCount(description));
  model.set_size_bytes(static_cast<int64_t>(directory->weight_bytes()));
  model.set_layers(description.layers);
  model.set_hidden_size(static_cast<int32_t>(description.hidden));
  model.set_vocabulary_size(static_cast<int32_t>(description.vocabulary));
  model.set_max_position_embeddings(static_cast<int32_t>(description.max_positions));
  for (const std::string& target : storage::TargetModules(description)) {
    model.add_target_modules(target);
  }
  model.set_has_tokenizer(text->tokenizer != nullptr);
  model.set_has_chat_template(text->chat_template != nullptr);
  model.set_fingerprint(directory->fingerprint());
  if (!chat_template.empty()) {
    model.set_chat_template(chat_template);
    model.set_chat_template_sha256(storage::Sha256::Of(chat_template));
  }
  return registration;
}

class ModelsService final : public v1::Models::CallbackService {
 public:
  explicit ModelsService(Backend& backend) : backend_(backend) {}

  grpc::ServerUnaryReactor* RegisterModel(Context* context, const v1::RegisterModelRequest* request,
                                          v1::Model* response) override {
    auto* call = new UnaryCall(backend_, context);
    absl::Status status = RequestCheck()
                              .Field("name", CheckName(request->name()))
                              .Field("path", CheckPath(request->path()))
                              .Field("request_id", CheckRequestId(request->request_id()))
                              .Field("chat_template", CheckTemplate(request->chat_template()))
                              .status();
    if (!status.ok()) return call->End(status);
    return call->OnReads([this, call, request, response] {
      absl::StatusOr<server::RegisterModel> registration = Describe(*request);
      if (!registration.ok()) return (void)call->End(registration.status());
      call->Relay(*std::move(registration), response);
    });
  }

  grpc::ServerUnaryReactor* GetModel(Context* context, const v1::GetModelRequest* request,
                                     v1::Model* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* ListModels(Context* context, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override {
    auto* call = new UnaryCall(backend_, context);
    v1::ListModelsRequest page = *request;
    absl::Status status = CompletePage(page, kPageSizeMax, kPageSizeDefault);
    return status.ok() ? call->Relay(std::move(page), response) : call->End(status);
  }

  grpc::ServerUnaryReactor* UpdateModel(Context* context, const v1::UpdateModelRequest* request,
                                        v1::Model* response) override {
    auto* call = new UnaryCall(backend_, context);
    absl::Status status =
        RequestCheck().Field("update_mask", CheckMask(request->update_mask())).status();
    return status.ok() ? call->Relay(*request, response) : call->End(status);
  }

  grpc::ServerUnaryReactor* UnregisterModel(Context* context,
                                            const v1::UnregisterModelRequest* request,
                                            google::protobuf::Empty*) override {
    return (new UnaryCall(backend_, context))->Relay(*request);
  }

 private:
  absl::StatusOr<server::RegisterModel> Describe(const v1::RegisterModelRequest& request) {
    const absl::StatusOr<std::string> path = ResolveModelPath(request.path(), backend_.model_roots);
    if (!path.ok()) return path.status();
    absl::StatusOr<server::RegisterModel> registration =
        DescribeDirectory(request.name(), *path, request.chat_template());
    if (!registration.ok()) return registration.status();
    registration->model.set_stages(request.stages());
    registration->request_id = {request.request_id(),
                                absl::StrCat("model ", request.name(), " ", *path)};
    if (request.stages() != 0) {
      absl::StrAppend(&registration->request_id.content, " stages ", request.stages());
    }
    if (const std::string& sha256 = registration->model.chat_template_sha256(); !sha256.empty()) {
      absl::StrAppend(&registration->request_id.content, " ", sha256);
    }
    if (!IsUtf8(registration->config_json)) {
      return InvalidFields("model", {{"config.json", "must be valid UTF-8"}});
    }
    if (absl::Status status = CheckUtf8("model", registration->model); !status.ok()) return status;
    return registration;
  }

  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeModelsService(Backend& backend) {
  return std::make_unique<ModelsService>(backend);
}

}  // namespace lorad::server
