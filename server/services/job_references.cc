#include "server/services/job_references.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"
#include "server/validation/adapter.h"
#include "storage/adapters/peft.h"
#include "storage/files/files.h"
#include "storage/models/model_description.h"

namespace lorad::server {
namespace {

// A value, or nothing where there is no such thing; other errors stay errors.
template <typename T>
absl::StatusOr<std::optional<T>> Known(absl::StatusOr<T> found) {
  if (found.ok()) return std::optional<T>(*std::move(found));
  if (found.status().code() == absl::StatusCode::kNotFound) return std::optional<T>();
  return found.status();
}

// The same of an answer of the driver's.
template <typename T>
absl::StatusOr<std::optional<T>> KnownAs(const absl::StatusOr<ReplyValue>& answer) {
  if (!answer.ok()) return Known(absl::StatusOr<T>(answer.status()));
  return std::optional<T>(std::get<T>(*answer));
}

// The directory of what init_from names: "ADAPTER" or "JOB/STEP".
absl::StatusOr<std::optional<std::string>> FindSource(Driver& driver, const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos) return Known(driver.AdapterPath(name));
  v1::GetCheckpointRequest request;
  request.set_job(name.substr(0, slash));
  int64_t step = 0;
  const std::string text = name.substr(slash + 1);
  // In the one spelling that a checkpoint's record and folder have.
  if (!absl::SimpleAtoi(text, &step) || step < 1 || text != absl::StrCat(step)) {
    return std::optional<std::string>();
  }
  request.set_step(step);
  std::string path;
  absl::StatusOr<std::optional<v1::Checkpoint>> checkpoint =
      Known(driver.GetCheckpoint(request, &path));
  if (!checkpoint.ok()) return checkpoint.status();
  return *checkpoint ? std::optional<std::string>(path) : std::nullopt;
}

absl::StatusOr<storage::ModelDescription> DescriptionOf(Driver& driver, const v1::Model& model) {
  absl::StatusOr<std::string> config = driver.files().ReadAll(
      storage::JoinPath(model.path(), "config.json"), storage::kReadAllLimit);
  if (absl::IsNotFound(config.status())) {
    return Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                 absl::StrCat("what model '", model.name(), "' was registered from is not there: ",
                              std::string(config.status().message())));
  }
  if (!config.ok()) return config.status();
  return storage::DescribeModel(*config);
}

}  // namespace

std::vector<Request> ReferencesOf(const v1::Job& job) {
  v1::GetModelRequest model;
  model.set_name(job.base_model());
  v1::GetDatasetRequest training, validation;
  training.set_name(job.training_dataset());
  validation.set_name(job.validation_dataset());
  return {model, training, validation};
}

absl::Status CompleteAgainst(Driver& driver, const std::vector<absl::StatusOr<ReplyValue>>& answers,
                             v1::Job& job) {
  const auto model = KnownAs<v1::Model>(answers.at(0));
  if (!model.ok()) return model.status();
  const auto training = KnownAs<v1::Dataset>(answers.at(1));
  if (!training.ok()) return training.status();
  const auto validation = KnownAs<v1::Dataset>(answers.at(2));
  if (!validation.ok()) return validation.status();

  JobReferences references;
  references.training_dataset_known = training->has_value();
  references.validation_dataset_known = validation->has_value();
  if (model->has_value()) {
    references.model_known = true;
    references.model.architecture = (*model)->architecture();
    references.model.target_modules.assign((*model)->target_modules().begin(),
                                           (*model)->target_modules().end());
    references.model.max_positions = (*model)->max_position_embeddings();
    if (NeedsDescription(job.adapter())) {
      auto description = DescriptionOf(driver, **model);
      if (!description.ok()) return description.status();
      references.description = *std::move(description);
    }
  }

  std::string misfit;
  if (const std::string& name = job.adapter().init_from(); !name.empty()) {
    absl::StatusOr<std::optional<std::string>> directory = FindSource(driver, name);
    if (!directory.ok()) return directory.status();
    if (directory->has_value()) {
      absl::StatusOr<storage::PeftAdapter> adapter =
          storage::PeftAdapter::Open(**directory, driver.files());
      if (!adapter.ok()) return adapter.status();
      references.source_known = true;
      references.source = AdapterConfigOf(adapter->config());
      if (references.description) {
        references.source = PlainIfAlike(adapter->config(), *references.description);
        misfit = std::string(adapter->CheckFits(*references.description).message());
      }
    }
  }

  std::vector<FieldViolation> violations = CompleteJob(job, references);
  if (!misfit.empty()) {
    violations.push_back({"adapter.init_from", absl::StrCat("does not fit the model '",
                                                            job.base_model(), "': ", misfit)});
  }
  return violations.empty() ? absl::OkStatus() : InvalidFields("job", violations);
}

}  // namespace lorad::server
