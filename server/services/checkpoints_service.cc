#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "lorad/v1/checkpoints.grpc.pb.h"
#include "server/services/backend.h"
#include "server/services/call.h"
#include "server/services/services.h"
#include "server/validation/limits.h"
#include "storage/files.h"

namespace lorad::server {
namespace {

class CheckpointsService final : public v1::Checkpoints::Service {
 public:
  explicit CheckpointsService(Backend& backend) : backend_(backend) {}

  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override {
    v1::ListCheckpointsRequest page = *request;
    absl::Status status = CompletePage(page, kPageSizeMax, kPageSizeDefault);
    if (!status.ok()) return ToGrpc(status);
    return Answer(backend_.driver.ListCheckpoints(page), response);
  }

  grpc::Status GetCheckpoint(grpc::ServerContext*, const v1::GetCheckpointRequest* request,
                             v1::Checkpoint* response) override {
    return Answer(backend_.driver.GetCheckpoint(*request), response);
  }

  grpc::Status DeleteCheckpoint(grpc::ServerContext* context,
                                const v1::DeleteCheckpointRequest* request,
                                google::protobuf::Empty*) override {
    return ToGrpc(backend_.driver.Call(*request, DeadlineOf(*context)).status());
  }

  grpc::Status DownloadCheckpoint(
      grpc::ServerContext*, const v1::DownloadCheckpointRequest* request,
      grpc::ServerWriter<v1::DownloadCheckpointResponse>* writer) override {
    return ToGrpc(Download(*request, *writer));
  }

 private:
  absl::Status Download(const v1::DownloadCheckpointRequest& request,
                        grpc::ServerWriter<v1::DownloadCheckpointResponse>& writer) {
    v1::GetCheckpointRequest get;
    get.set_job(request.job());
    get.set_step(request.step());
    std::string directory;
    absl::StatusOr<v1::Checkpoint> checkpoint = backend_.driver.GetCheckpoint(get, &directory);
    if (!checkpoint.ok()) return checkpoint.status();
    const auto file = std::find_if(checkpoint->files().begin(), checkpoint->files().end(),
                                   [&](const auto& f) { return f.name() == request.file(); });
    if (file == checkpoint->files().end()) {
      return Error(absl::StatusCode::kNotFound, "FILE_NOT_FOUND",
                   absl::StrCat("the checkpoint '", request.job(), "/", checkpoint->step(),
                                "' has no file '", request.file(), "'"),
                   {{"file", request.file()}});
    }
    if (request.offset() < 0 || request.offset() > file->size_bytes()) {
      return Error(absl::StatusCode::kOutOfRange, "OFFSET_OUT_OF_RANGE",
                   absl::StrCat("offset must be between 0 and the file's ", file->size_bytes(),
                                " bytes, got ", request.offset()));
    }
    v1::DownloadCheckpointResponse response;
    *response.mutable_file() = *file;
    return Send(storage::JoinPath(directory, file->name()), request.offset(), file->size_bytes(),
                std::move(response), writer);
  }

  // Bytes [offset, size) of the file at `path`; `response` is the first message, as yet without
  // bytes.
  absl::Status Send(const std::string& path, int64_t offset, int64_t size,
                    v1::DownloadCheckpointResponse response,
                    grpc::ServerWriter<v1::DownloadCheckpointResponse>& writer) {
    while (true) {
      absl::StatusOr<std::string> bytes = backend_.driver.files().ReadRange(
          path, static_cast<uint64_t>(offset),
          static_cast<uint64_t>(std::min<int64_t>(size - offset, kChunkBytesMax)));
      if (!bytes.ok() || (bytes->empty() && offset < size)) {
        return Error(absl::StatusCode::kAborted, "CHECKPOINT_GONE",
                     "the checkpoint was deleted while it was read");
      }
      offset += static_cast<int64_t>(bytes->size());
      response.set_chunk(*std::move(bytes));
      if (!writer.Write(response)) return absl::CancelledError("the client ended the download");
      if (offset == size) return absl::OkStatus();
      response.Clear();
    }
  }

  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCheckpointsService(Backend& backend) {
  return std::make_unique<CheckpointsService>(backend);
}

}  // namespace lorad::server
