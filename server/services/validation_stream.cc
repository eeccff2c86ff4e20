#include "server/services/validation_stream.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/calls/stream_errors.h"
#include "server/errors/errors.h"
#include "server/errors/grpc_status.h"
#include "server/validation/limits.h"
#include "storage/datasets/dataset.h"
#include "storage/files/files.h"

namespace lorad::server {
namespace {

absl::Status NotFirst() {
  return InvalidFields("request",
                       {{"config", "the first message, and no other, must be the config"}});
}

absl::Status Left() { return absl::CancelledError("the client left in mid-upload"); }

}  // namespace

ValidationStream::ValidationStream(Backend& backend, grpc::CallbackServerContext* context)
    : here_(backend.calls),
      backend_(backend),
      context_(context),
      strand_(backend.files),
      question_(backend.driver, backend.answers),
      timer_(backend.patience, [this] { strand_.Post([this] { OnLate(); }); }) {
  absl::StatusOr<Connections::Visit> visit =
      backend.connections.Enter(CallerOf(*context), Connections::Who::kClient);
  if (!visit.ok()) {
    End(visit.status());
    return;
  }
  visit_.emplace(*std::move(visit));
  timer_.Start(backend.waits.first_message);
  StartRead(&message_);
}

void ValidationStream::OnReadDone(bool ok) {
  timer_.Stop();
  strand_.Post([this, ok] { ok ? OnMessage() : OnEnd(); });
}

void ValidationStream::OnWriteDone(bool ok) {
  timer_.Stop();
  strand_.Post([this, ok] {
    writing_ = false;
    validation_->messages().pop_front();
    if (ok) return GoOn();
    End(absl::CancelledError("the client left, or did not read"));
  });
}

void ValidationStream::OnDone() {
  timer_.Close();
  strand_.Post([this] { delete this; });
}

void ValidationStream::OnLate() {
  if (ended_ || !timer_.due()) return;
  if (writing_) return context_->TryCancel();  // it reads nothing, so an answer would not reach it
  End(config_ ? StreamIdle(backend_.waits.idle) : FirstMessageLate(backend_.waits.first_message));
}

void ValidationStream::OnMessage() {
  if (ended_) return;
  if (!config_) return TakeConfig();
  if (message_.content_case() != v1::ValidateDatasetRequest::kChunk) return End(NotFirst());
  absl::Status status = Open();
  if (status.ok()) status = validation_->Add(message_.chunk());
  if (!status.ok()) return End(status);
  GoOn();
}

void ValidationStream::OnEnd() {
  if (ended_) return;
  if (context_->IsCancelled()) return End(Left());
  if (!config_) return End(NotFirst());
  if (absl::Status status = Open(); !status.ok()) return End(status);
  validation_->Finish();
  complete_ = true;
  GoOn();
}

void ValidationStream::TakeConfig() {
  if (!message_.has_config()) return End(NotFirst());
  config_ = message_.config();
  v1::GetModelRequest model;
  model.set_name(config_->model());
  std::vector<Request> requests = {std::move(model)};
  if (!config_->dataset().empty()) {
    v1::GetDatasetRequest dataset;
    dataset.set_name(config_->dataset());
    requests.push_back(std::move(dataset));
  }
  question_.AskAll(std::move(requests), [this](std::vector<Question::Answer> answers) {
    strand_.Post([this, answers = std::move(answers)] { TakeAnswers(answers); });
  });
}

void ValidationStream::TakeAnswers(const std::vector<Question::Answer>& answers) {
  for (const Question::Answer& answer : answers) {
    if (!answer.ok()) return End(answer.status());
  }
  model_ = std::get<v1::Model>(*answers.front());
  if (answers.size() > 1) {
    absl::StatusOr<std::string> path = backend_.driver.DatasetPath(config_->dataset());
    absl::Status status = path.ok() ? Open() : path.status();
    if (!status.ok()) return End(status);
    stored_path_ = *std::move(path);
    stored_sha256_ = std::get<v1::Dataset>(*answers.back()).sha256();
    stored_bytes_ = std::get<v1::Dataset>(*answers.back()).size_bytes();
  }
  GoOn();
}

absl::Status ValidationStream::Open() {
  if (validation_ != nullptr) return absl::OkStatus();
  absl::StatusOr<Gate::Pass> pass = backend_.uploads.Enter();
  if (!pass.ok()) return pass.status();
  pass_.emplace(*std::move(pass));
  absl::StatusOr<std::unique_ptr<Validation>> validation = Validation::Open(*config_, model_);
  if (!validation.ok()) return validation.status();
  validation_ = *std::move(validation);
  return absl::OkStatus();
}

void ValidationStream::GoOn() {
  if (ended_) return;
  if (validation_ != nullptr && !validation_->messages().empty()) {
    writing_ = true;
    timer_.Start(backend_.waits.idle);
    return StartWrite(&validation_->messages().front());
  }
  if (complete_) return End(absl::OkStatus());
  if (!stored_path_.empty()) return strand_.Post([this] { ReadStored(); });
  timer_.Start(backend_.waits.idle);
  StartRead(&message_);
}

void ValidationStream::ReadStored() {
  if (ended_) return;
  if (context_->IsCancelled()) return End(Left());
  const absl::StatusOr<std::string> bytes =
      backend_.driver.files().ReadRange(stored_path_, stored_offset_, kChunkBytesMax);
  if (!bytes.ok()) return End(bytes.status());
  stored_offset_ += bytes->size();
  stored_hash_.Update(*bytes);
  if (bytes->empty()) {
    absl::Status same =
        storage::CheckDataset(stored_path_, stored_hash_.HexDigest(), stored_sha256_);
    if (!same.ok()) return End(same);
    validation_->Finish();
    complete_ = true;
  } else if (absl::Status status = validation_->Add(*bytes); !status.ok()) {
    return End(status);
  } else if (config_->progress()) {
    TellProgress();
  }
  GoOn();
}

void ValidationStream::TellProgress() {
  v1::ValidateDatasetResponse response;
  response.mutable_progress()->set_bytes(static_cast<int64_t>(stored_offset_));
  response.mutable_progress()->set_total_bytes(stored_bytes_);
  validation_->messages().push_back(std::move(response));
}

void ValidationStream::End(const absl::Status& status) {
  ended_ = true;
  timer_.Stop();
  Finish(ToGrpc(status));
}

}  // namespace lorad::server
