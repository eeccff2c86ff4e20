#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "lorad/v1/checkpoints.grpc.pb.h"
#include "server/calls/backend.h"
#include "server/calls/call.h"
#include "server/calls/file_sender.h"
#include "server/calls/unary_call.h"
#include "server/core/rules/job_states.h"
#include "server/core/rules/kept_checkpoints.h"
#include "server/services/services.h"
#include "server/validation/limits.h"
#include "storage/adapters/merged_model.h"
#include "storage/adapters/shard_reader.h"
#include "storage/files/files.h"
#include "storage/files/sha256.h"

namespace lorad::server {
namespace {

using Context = grpc::CallbackServerContext;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr absl::Duration kHoldAgain = absl::Seconds(20);

// Says that a checkpoint is read, for as long as Next goes on: where the job's settings let
// checkpoints go, this one stays meanwhile (HoldCheckpoint). Where nobody answers, nothing can be
// removed either.
class Hold {
 public:
  explicit Hold(Driver& driver) : driver_(driver) {}

  // The newest, where the step is 0, has its step from then on.
  void Take(v1::GetCheckpointRequest* get) {
    v1::GetJobRequest get_job;
    get_job.set_name(get->job());
    const absl::StatusOr<v1::Job> job = driver_.Ask<v1::Job>(get_job, absl::Now() + kPatience);
    if (!job.ok() || !KeepsSome(job->training())) return;
    held_ = {get->job(), get->step()};
    const absl::StatusOr<v1::Job> now = Ask();
    if (!now.ok()) return;
    // Of an ended job its last one may be deleted; the newest that is there stays by itself.
    if (get->step() == 0 && IsLive(now->state())) get->set_step(now->last_checkpoint_step());
    held_.step = get->step();
  }
  void Renew() {
    if (held_.step > 0 && absl::Now() >= again_) Ask().IgnoreError();
  }

 private:
  absl::StatusOr<v1::Job> Ask() {
    again_ = absl::Now() + kHoldAgain;
    return driver_.Ask<v1::Job>(held_, absl::Now() + kPatience);
  }

  Driver& driver_;
  HoldCheckpoint held_;  // step 0: nothing is
  absl::Time again_;
};

// What GetCheckpoint answers; whoever asked may read it next.
absl::StatusOr<v1::Checkpoint> FindCheckpoint(Driver& driver, v1::GetCheckpointRequest get) {
  Hold(driver).Take(&get);
  return driver.GetCheckpoint(get);
}

// Bytes [offset, size) of a checkpoint's file.
class CheckpointSource final : public Source<v1::DownloadCheckpointResponse> {
 public:
  CheckpointSource(Driver& driver, v1::DownloadCheckpointRequest request)
      : driver_(driver), request_(std::move(request)), hold_(driver), offset_(request_.offset()) {}

  absl::StatusOr<bool> Next(v1::DownloadCheckpointResponse* response) override {
    hold_.Renew();
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
    if (absl::IsUnavailable(bytes.status())) return bytes.status();  // no descriptor, say
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
    hold_.Take(&get);
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
  Hold hold_;
  std::string path_;  // empty before the first message
  int64_t size_ = 0;
  int64_t offset_ = 0;
};

// A merge before any byte of it is made.
struct Merge {
  v1::Merged description;
  std::unique_ptr<storage::MergedModel> merged;
};

absl::StatusOr<v1::Model> BaseOf(Driver& driver, const v1::Job& job) {
  v1::GetModelRequest get;
  get.set_name(job.base_model());
  absl::StatusOr<v1::Model> model = driver.Ask<v1::Model>(get, absl::Now() + kPatience);
  if (!model.ok()) return model.status();
  // Jobs of older versions do not say.
  if (job.base_model_fingerprint().empty() ||
      job.base_model_fingerprint() == model->fingerprint()) {
    return model;
  }
  return PreconditionFailed(
      "MODEL_CHANGED", absl::StrCat("model ", job.base_model()),
      absl::StrCat("job ", job.name(),
                   " was trained on other files than those "
                   "that the model '",
                   job.base_model(), "' has now: register those again under this name"));
}

absl::StatusOr<Merge> OpenMerge(Driver& driver, Hold& hold, const std::string& job_name,
                                int64_t step) {
  v1::GetJobRequest get_job;
  get_job.set_name(job_name);
  const absl::StatusOr<v1::Job> job = driver.Ask<v1::Job>(get_job, absl::Now() + kPatience);
  if (!job.ok()) return job.status();
  v1::GetCheckpointRequest get;
  get.set_job(job_name);
  get.set_step(step);
  hold.Take(&get);
  std::string directory;
  const absl::StatusOr<v1::Checkpoint> checkpoint = driver.GetCheckpoint(get, &directory);
  if (!checkpoint.ok()) return checkpoint.status();
  absl::StatusOr<v1::Model> model = BaseOf(driver, *job);
  if (!model.ok()) return model.status();
  if (absl::Status whole = storage::VerifyCheckpoint(driver.files(), directory); !whole.ok()) {
    return whole;
  }
  absl::StatusOr<storage::MergedModel> merged = storage::MergedModel::Open(
      model->path(), model->fingerprint(), directory, model->chat_template(), driver.files());
  if (!merged.ok()) return merged.status();

  Merge merge;
  merge.description.set_job(job_name);
  merge.description.set_step(checkpoint->step());
  std::string parts = absl::StrCat(model->fingerprint(), " ", model->chat_template_sha256());
  for (const v1::CheckpointFile& file : checkpoint->files()) {
    if (absl::StartsWith(file.name(), "adapter_")) absl::StrAppend(&parts, " ", file.sha256());
  }
  merge.description.set_etag(storage::Sha256::Of(parts).substr(0, 32));
  for (const storage::MergedFile& file : merged->files()) {
    v1::MergedFile* listed = merge.description.add_files();
    listed->set_name(file.name);
    listed->set_size_bytes(static_cast<int64_t>(file.size_bytes));
  }
  merge.merged = std::make_unique<storage::MergedModel>(*std::move(merged));
  return merge;
}

// What GetMerged answers.
absl::StatusOr<v1::Merged> DescribeMerged(Driver& driver, const v1::GetMergedRequest& request) {
  Hold hold(driver);
  absl::StatusOr<Merge> merge = OpenMerge(driver, hold, request.job(), request.step());
  if (!merge.ok()) return merge.status();
  return std::move(merge->description);
}

// Bytes [offset, size) of one file; the last message has the sha256 of all that were sent.
class MergedSource final : public Source<v1::DownloadMergedResponse> {
 public:
  MergedSource(Driver& driver, v1::DownloadMergedRequest request)
      : driver_(driver), request_(std::move(request)), hold_(driver), offset_(request_.offset()) {}

  absl::StatusOr<bool> Next(v1::DownloadMergedResponse* response) override;

 private:
  absl::Status Open();

  Driver& driver_;
  const v1::DownloadMergedRequest request_;
  Hold hold_;
  std::unique_ptr<storage::MergedModel> merged_;  // null before the first message
  int64_t size_ = 0;
  int64_t offset_ = 0;
  bool ended_ = false;
  storage::Sha256 hash_;
};

absl::Status MergedSource::Open() {
  absl::StatusOr<Merge> merge = OpenMerge(driver_, hold_, request_.job(), request_.step());
  if (!merge.ok()) return merge.status();
  if (merge->description.etag() != request_.etag()) {
    return Error(absl::StatusCode::kAborted, "ETAG_MISMATCH",
                 absl::StrCat("the merge has the etag ", merge->description.etag(), ", not '",
                              request_.etag(),
                              "': its base model or its checkpoint is another now; "
                              "ask GetMerged again"));
  }
  const auto& files = merge->description.files();
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const auto& f) { return f.name() == request_.file(); });
  if (file == files.end()) {
    return Error(absl::StatusCode::kNotFound, "FILE_NOT_FOUND",
                 absl::StrCat("the merged model has no file '", request_.file(), "'"),
                 {{"file", request_.file()}});
  }
  if (offset_ < 0 || offset_ > file->size_bytes()) {
    return Error(absl::StatusCode::kOutOfRange, "OFFSET_OUT_OF_RANGE",
                 absl::StrCat("offset must be between 0 and the file's ", file->size_bytes(),
                              " bytes, got ", offset_));
  }
  size_ = file->size_bytes();
  merged_ = std::move(merge->merged);
  return absl::OkStatus();
}

absl::StatusOr<bool> MergedSource::Next(v1::DownloadMergedResponse* response) {
  if (ended_) return false;
  hold_.Renew();
  if (merged_ == nullptr) {
    if (absl::Status status = Open(); !status.ok()) return status;
  }
  const auto length = std::min<int64_t>(size_ - offset_, kChunkBytesMax);
  absl::StatusOr<std::string> bytes =
      merged_->Read(request_.file(), static_cast<uint64_t>(offset_), static_cast<uint64_t>(length));
  if (!bytes.ok()) return bytes.status();
  hash_.Update(*bytes);
  offset_ += length;
  response->set_chunk(*std::move(bytes));
  if (offset_ < size_) return true;
  if (absl::Status status = merged_->CheckUnchanged(); !status.ok()) return status;
  response->set_sha256(hash_.HexDigest());
  ended_ = true;
  return true;
}

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
      return FindCheckpoint(backend_.driver, *request);
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

  grpc::ServerUnaryReactor* GetMerged(Context* context, const v1::GetMergedRequest* request,
                                      v1::Merged* response) override {
    return (new UnaryCall(backend_, context))->Read<v1::Merged>(response, [this, request] {
      return DescribeMerged(backend_.driver, *request);
    });
  }

  grpc::ServerWriteReactor<v1::DownloadMergedResponse>* DownloadMerged(
      Context* context, const v1::DownloadMergedRequest* request) override {
    return new FileSender<v1::DownloadMergedResponse>(
        backend_, context, Connections::Who::kClient,
        std::make_unique<MergedSource>(backend_.driver, *request));
  }

 private:
  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCheckpointsService(Backend& backend) {
  return std::make_unique<CheckpointsService>(backend);
}

}  // namespace lorad::server
