#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "lorad/v1/checkpoints.grpc.pb.h"
#include "server/calls/backend.h"
#include "server/calls/call.h"
#include "server/calls/file_sender.h"
#include "server/calls/unary_call.h"
#include "server/services/services.h"
#include "server/validation/limits.h"
#include "storage/files/files.h"

namespace lorad::server {
namespace {

using Context = grpc::CallbackServerContext;

// Bytes [offset, size) of a checkpoint's file.
class CheckpointSource final : public Source<v1::DownloadCheckpointResponse> {
 public:
  CheckpointSource(Driver& driver, v1::DownloadCheckpointRequest request)
      : driver_(driver), request_(std::move(request)), offset_(request_.offset()) {}

  absl::StatusOr<bool> Next(v1::DownloadCheckpointResponse* response) override {
    const bool first = path_.empty();
    if (first) {
      absl::Status status = Open(response);
      if (!status.ok()) return status;
    } else if (offset_ == size_) {
      return false;
    }
    absl::StatusOr<std::string> bytes = driver_.files().ReadRange(
        path_, static_cast<uint64_t>(offset_),
        static_cast<uint64_t>(std::min<int64_t>(size_ - offset_, kChunkBytesMax)));
    if (!bytes.ok() || (bytes->empty() && offset_ < size_)) {
      return Error(absl::StatusCode::kAborted, "CHECKPOINT_GONE",
                   absl::StrCat(bytes.ok() ? absl::StrCat(path_, ": ends after ", offset_, " of ",
                                                          size_, " bytes")
                                           : std::string(bytes.status().message()),
                                "; the checkpoint was deleted while it was read, or its file was "
                                "taken from the data directory"));
    }
    offset_ += static_cast<int64_t>(bytes->size());
    response->set_chunk(*std::move(bytes));
    return true;
  }

 private:
  // Finds the file, and names it in the first message.
  absl::Status Open(v1::DownloadCheckpointResponse* response) {
    v1::GetCheckpointRequest get;
    get.set_job(request_.job());
    get.set_step(request_.step());
    std::string directory;
    absl::StatusOr<v1::Checkpoint> checkpoint = driver_.GetCheckpoint(get, &directory);
    if (!checkpoint.ok()) return checkpoint.status();
    const auto file = std::find_if(checkpoint->files().begin(), checkpoint->files().end(),
                                   [&](const auto& f) { return f.name() == request_.file(); });
    if (file == checkpoint->files().end()) {
      return Error(absl::StatusCode::kNotFound, "FILE_NOT_FOUND",
                   absl::StrCat("the checkpoint '", request_.job(), "/", checkpoint->step(),
                                "' has no file '", request_.file(), "'"),
                   {{"file", request_.file()}});
    }
    if (offset_ < 0 || offset_ > file->size_bytes()) {
      return Error(absl::StatusCode::kOutOfRange, "OFFSET_OUT_OF_RANGE",
                   absl::StrCat("offset must be between 0 and the file's ", file->size_bytes(),
                                " bytes, got ", offset_));
    }
    path_ = storage::JoinPath(directory, file->name());
    size_ = file->size_bytes();
    *response->mutable_file() = *file;
    return absl::OkStatus();
  }

  Driver& driver_;
  const v1::DownloadCheckpointRequest request_;
  std::string path_;  // empty before the first message
  int64_t size_ = 0;
  int64_t offset_ = 0;
};

class CheckpointsService final : public v1::Checkpoints::CallbackService {
 public:
  explicit CheckpointsService(Backend& backend) : backend_(backend) {}

  grpc::ServerUnaryReactor* ListCheckpoints(Context* context,
                                            const v1::ListCheckpointsRequest* request,
                                            v1::ListCheckpointsResponse* response) override {
    auto* call = new UnaryCall(backend_, context);
    v1::ListCheckpointsRequest page = *request;
    absl::Status status = CompletePage(page, kPageSizeMax, kPageSizeDefault);
    if (!status.ok()) return call->End(status);
    return call->Read<v1::ListCheckpointsResponse>(
        response, [this, page] { return backend_.driver.ListCheckpoints(page); });
  }

  grpc::ServerUnaryReactor* GetCheckpoint(Context* context, const v1::GetCheckpointRequest* request,
                                          v1::Checkpoint* response) override {
    return (new UnaryCall(backend_, context))->Read<v1::Checkpoint>(response, [this, request] {
      return backend_.driver.GetCheckpoint(*request);
    });
  }

  grpc::ServerUnaryReactor* DeleteCheckpoint(Context* context,
                                             const v1::DeleteCheckpointRequest* request,
                                             google::protobuf::Empty*) override {
    return (new UnaryCall(backend_, context))->Relay(*request);
  }

  grpc::ServerWriteReactor<v1::DownloadCheckpointResponse>* DownloadCheckpoint(
      Context* context, const v1::DownloadCheckpointRequest* request) override {
    return new FileSender<v1::DownloadCheckpointResponse>(
        backend_, context, Connections::Who::kClient,
        std::make_unique<CheckpointSource>(backend_.driver, *request));
  }

 private:
  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCheckpointsService(Backend& backend) {
  return std::make_unique<CheckpointsService>(backend);
}

}  // namespace lorad::server
