// ValidateDataset: a config, then a file or the name of a stored one; rows and a report come back.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lorad/v1/datasets.pb.h"
#include "server/calls/backend.h"
#include "server/calls/question.h"
#include "server/calls/strand.h"
#include "server/services/validation.h"
#include "storage/files/sha256.h"

namespace lorad::server {

// Belongs to itself. It takes a piece of the file, sends what came of it, and takes the next.
class ValidationStream final
    : public grpc::ServerBidiReactor<v1::ValidateDatasetRequest, v1::ValidateDatasetResponse> {
 public:
  ValidationStream(Backend& backend, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { question_.GiveUp(); }
  void OnDone() override;

 private:
  // All of this on the strand.
  void OnMessage();
  void OnEnd();
  void OnLate();
  void TakeConfig();
  // Of the model, and of the dataset where one is stored.
  void TakeAnswers(const std::vector<Question::Answer>& answers);
  // When there is something to check: then a place is taken.
  absl::Status Open();
  // Sends the first message that waits; where none does, goes for the next piece.
  void GoOn();
  void ReadStored();
  void TellProgress();
  void End(const absl::Status& status);

  const Attendance::Token here_;
  Backend& backend_;
  grpc::CallbackServerContext* const context_;
  Strand strand_;
  Question question_;
  std::optional<Connections::Visit> visit_;
  Patience::Timer timer_;
  v1::ValidateDatasetRequest message_;
  // The strand alone:
  std::optional<v1::ValidateDatasetRequest::Config> config_;
  v1::Model model_;
  std::optional<Gate::Pass> pass_;
  std::unique_ptr<Validation> validation_;  // null before Open()
  std::string stored_path_;                 // empty: the client sends the file
  std::string stored_sha256_;
  int64_t stored_bytes_ = 0;
  uint64_t stored_offset_ = 0;
  storage::Sha256 stored_hash_;
  bool writing_ = false;
  bool complete_ = false;  // the report is made
  bool ended_ = false;
};

}  // namespace lorad::server
