#include "server/validation/job.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/validation/adapter.h"
#include "server/validation/checker.h"
#include "server/validation/limits.h"
#include "server/validation/names.h"

namespace lorad::server {
namespace {

void CompleteTraining(v1::TrainingConfig& training, const JobReferences& references) {
  if (!training.has_epochs()) training.set_epochs(1);
  if (!training.has_batch_size()) training.set_batch_size(8);
  if (!training.has_max_length()) {
    const int positions = references.model_known ? references.model.max_positions : 1024;
    training.set_max_length(std::min(1024, positions));
  }
  if (training.overflow() == v1::TrainingConfig::OVERFLOW_UNSPECIFIED) {
    training.set_overflow(v1::TrainingConfig::TRUNCATE);
  }
  if (training.train_on() == v1::TrainingConfig::TRAIN_ON_UNSPECIFIED) {
    training.set_train_on(v1::TrainingConfig::ASSISTANT);
  }
  if (!training.has_learning_rate()) training.set_learning_rate(2e-4);
  if (training.schedule() == v1::TrainingConfig::SCHEDULE_UNSPECIFIED) {
    training.set_schedule(v1::TrainingConfig::LINEAR);
  }
  if (!training.has_beta1()) training.set_beta1(0.9);
  if (!training.has_beta2()) training.set_beta2(0.999);
  if (!training.has_eps()) training.set_eps(1e-8);
  if (!training.has_max_grad_norm()) training.set_max_grad_norm(1.0);
  if (!training.has_loraplus_lr_ratio()) training.set_loraplus_lr_ratio(1.0);
  if (!training.has_shuffle()) training.set_shuffle(true);
  if (!training.has_seed()) training.set_seed(0);
  if (!training.has_checkpoint_every_steps()) training.set_checkpoint_every_steps(50);
}

// The service's fields are not the client's to send: a client may post back a job that it got.
void DropOutputFields(v1::Job& job) {
  v1::Job said;
  said.set_name(job.name());
  said.set_display_name(job.display_name());
  said.set_base_model(job.base_model());
  said.set_training_dataset(job.training_dataset());
  said.set_validation_dataset(job.validation_dataset());
  *said.mutable_adapter() = job.adapter();
  *said.mutable_training() = job.training();
  said.set_priority(job.priority());
  *said.mutable_labels() = job.labels();
  job = std::move(said);
}

void CheckReference(Checker& checker, const std::string& field, const std::string& kind,
                    const std::string& name, bool known, const std::string& how) {
  if (name.empty()) {
    checker.Add(field, absl::StrCat("must name a ", kind));
  } else if (!known) {
    checker.Add(field, absl::StrCat("there is no ", kind, " '", Quotable(name, 2 * kNameBytesMax),
                                    "': ", how));
  }
}

void CheckLength(Checker& checker, const v1::TrainingConfig& training,
                 const JobReferences& references) {
  const int64_t length = training.max_length();
  if (references.model_known && length > references.model.max_positions) {
    checker.Add("training.max_length",
                absl::StrCat("must be at most the model's ", references.model.max_positions,
                             " positions, got ", length));
    return;
  }
  checker.Between("training.max_length", length, 2, kSequenceTokensMax);
  const int64_t tokens = length * training.batch_size();
  if (training.batch_size() >= 1 && training.batch_size() <= kBatchSizeMax &&
      length <= kSequenceTokensMax && tokens > kBatchTokensMax) {
    checker.Add("training.batch_size", absl::StrCat("batch_size * max_length must be at most ",
                                                    kBatchTokensMax, " tokens, got ", tokens));
  }
}

// Whether a step before the last one may be both saved and evaluated.
bool EvaluatesCheckpoints(const v1::TrainingConfig& training) {
  return training.checkpoint_every_steps() > 0 && training.eval_every_steps() > 0;
}

void CheckTraining(Checker& checker, const v1::Job& job, const JobReferences& references) {
  const v1::TrainingConfig& training = job.training();
  checker.Between("training.epochs", training.epochs(), 1, kEpochsMax);
  if (training.max_steps() < 0 || training.max_steps() > kStepsMax) {
    checker.Add(
        "training.max_steps",
        absl::StrCat("must be between 1 and ", kStepsMax,
                     ", or 0 (or left out) for epochs to decide, got ", training.max_steps()));
  }
  checker.Between("training.batch_size", training.batch_size(), 1, kBatchSizeMax);
  CheckLength(checker, training, references);
  if (!v1::TrainingConfig::Overflow_IsValid(training.overflow())) {
    checker.Add("training.overflow", absl::StrCat("must be TRUNCATE, ERROR or SKIP, got ",
                                                  static_cast<int>(training.overflow())));
  }
  if (!v1::TrainingConfig::TrainOn_IsValid(training.train_on())) {
    checker.Add("training.train_on", absl::StrCat("must be ASSISTANT or ALL, got ",
                                                  static_cast<int>(training.train_on())));
  }
  checker.Real("training.learning_rate", training.learning_rate(), 0, 100, 'l');
  if (!v1::TrainingConfig::Schedule_IsValid(training.schedule())) {
    checker.Add("training.schedule", absl::StrCat("must be CONSTANT, LINEAR or COSINE, got ",
                                                  static_cast<int>(training.schedule())));
  }
  checker.Between("training.warmup_steps", training.warmup_steps(), 0, kStepsMax);
  checker.Real("training.warmup_ratio", training.warmup_ratio(), 0, 1, ' ');
  if (training.warmup_ratio() != 0 && training.warmup_steps() != 0) {
    checker.Add("training.warmup_ratio", "stands in the place of warmup_steps; leave one out");
  }
  checker.Real("training.weight_decay", training.weight_decay(), 0, 1e3, ' ');
  checker.Real("training.beta1", training.beta1(), 0, 1, 'h');
  checker.Real("training.beta2", training.beta2(), 0, 1, 'h');
  checker.Real("training.eps", training.eps(), kEpsMin, 1, ' ');
  checker.Real("training.max_grad_norm", training.max_grad_norm(), 0, 1e9, ' ');
  checker.Real("training.loraplus_lr_ratio", training.loraplus_lr_ratio(), 0, 1e4, 'l');
  checker.Between("training.checkpoint_every_steps", training.checkpoint_every_steps(), 0,
                  kStepsMax);
  checker.Between("training.checkpoint_keep_last", training.checkpoint_keep_last(), 0, kStepsMax);
  checker.Between("training.checkpoint_keep_best", training.checkpoint_keep_best(), 0, kStepsMax);
  if (training.checkpoint_keep_best() > 0 && job.validation_dataset().empty()) {
    checker.Add("training.checkpoint_keep_best",
                "needs a validation_dataset: the best are those of the lowest validation loss");
  } else if (training.checkpoint_keep_best() > 0 && !EvaluatesCheckpoints(training)) {
    checker.Add("training.checkpoint_keep_best",
                "needs eval_every_steps at steps that are saved, such as checkpoint_every_steps: a "
                "checkpoint's loss is known where it is evaluated");
  }
  checker.Between("training.eval_every_steps", training.eval_every_steps(), 0, kStepsMax);
  if (training.eval_every_steps() > 0 && job.validation_dataset().empty()) {
    checker.Add("training.eval_every_steps", "needs a validation_dataset");
  }
}

void CheckLabels(Checker& checker, const v1::Job& job) {
  if (job.labels_size() > kLabelsMax) {
    checker.Add("labels",
                absl::StrCat("must be at most ", kLabelsMax, ", got ", job.labels_size()));
    return;
  }
  const std::map<std::string, std::string> sorted(job.labels().begin(), job.labels().end());
  for (const auto& [key, value] : sorted) {
    const std::string field = absl::StrCat("labels.", key.substr(0, kLabelKeyBytesMax));
    checker.Add(field, CheckLabelKey(key));
    checker.Add(field, CheckVisibleText(value, kLabelValueBytesMax));
  }
}

}  // namespace

std::vector<FieldViolation> CompleteJob(v1::Job& job, const JobReferences& references) {
  DropOutputFields(job);
  CompleteTraining(*job.mutable_training(), references);

  Checker checker;
  if (!job.name().empty()) {
    checker.Add("name", "is chosen by the service: leave it out, and use display_name for yours");
  }
  checker.Add("display_name", CheckVisibleText(job.display_name(), kDisplayNameBytesMax));
  CheckReference(checker, "base_model", "model", job.base_model(), references.model_known,
                 "register it first (lora model add)");
  CheckReference(checker, "training_dataset", "dataset", job.training_dataset(),
                 references.training_dataset_known, "create it first (lora dataset add)");
  if (!job.validation_dataset().empty()) {
    CheckReference(checker, "validation_dataset", "dataset", job.validation_dataset(),
                   references.validation_dataset_known, "create it first (lora dataset add)");
  }
  CompleteAdapter(checker, references, job.mutable_adapter());
  CheckTraining(checker, job, references);
  checker.Between("priority", job.priority(), -kPriorityMax, kPriorityMax);
  CheckLabels(checker, job);
  return checker.Take();
}

std::vector<FieldViolation> CheckUpdate(const v1::UpdateJobRequest& request) {
  Checker checker;
  const auto& paths = request.update_mask().paths();
  if (paths.empty()) checker.Add("update_mask", "must name what is to change: priority, labels");
  for (const std::string& path : paths) {
    if (path != "priority" && path != "labels") {
      checker.Add("update_mask", absl::StrCat("'", Quotable(path, kNameBytesMax),
                                              "' cannot be changed: priority and labels can"));
    }
  }
  if (std::ranges::count(paths, "priority") > 0) {
    checker.Between("job.priority", request.job().priority(), -kPriorityMax, kPriorityMax);
  }
  if (std::ranges::count(paths, "labels") > 0) CheckLabels(checker, request.job());
  return checker.Take();
}

}  // namespace lorad::server
