#include "server/validation/job.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/validation/limits.h"
#include "server/validation/names.h"
#include "storage/adapters/peft.h"

namespace lorad::server {
namespace {

// Every digit that distinguishes it from its neighbours: 0.9999995 is not 1.
std::string Shortest(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

// Collects violations; each Check adds at most one.
class Checker {
 public:
  void Add(const std::string& field, const std::string& description) {
    if (!description.empty()) violations_.push_back({field, description});
  }

  void Between(const std::string& field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return;
    Add(field, absl::StrCat("must be between ", low, " and ", high, ", got ", value));
  }

  // low < value <= high, or low <= value < high, or both ends in, as `open` says: 'l', 'h' or ' '.
  void Real(const std::string& field, double value, double low, double high, char open) {
    const bool above = open == 'l' ? value > low : value >= low;  // false for NaN
    const bool below = open == 'h' ? value < high : value <= high;
    if (above && below) return;
    Add(field,
        absl::StrCat("must be ", open == 'l' ? "greater than " : "at least ", low, " and ",
                     open == 'h' ? "less than " : "at most ", high, ", got ", Shortest(value)));
  }

  std::vector<FieldViolation> Take() { return std::move(violations_); }

 private:
  std::vector<FieldViolation> violations_;
};

// Unset fields take their defaults: init_from's adapter's where there is one, else PEFT's.
void CompleteAdapter(v1::AdapterConfig& adapter, const JobReferences& references) {
  const bool continues = !adapter.init_from().empty() && references.source_known;
  const v1::AdapterConfig& source = references.source;
  if (!adapter.has_rank()) adapter.set_rank(continues ? source.rank() : 8);
  if (!adapter.has_alpha()) adapter.set_alpha(continues ? source.alpha() : 8);
  if (!adapter.has_use_rslora()) adapter.set_use_rslora(continues && source.use_rslora());
  if (!adapter.has_seed()) adapter.set_seed(0);
  if (adapter.target_modules().empty() && continues) {
    *adapter.mutable_target_modules() = source.target_modules();
  } else if (adapter.target_modules().empty()) {
    adapter.add_target_modules("q_proj");
    adapter.add_target_modules("v_proj");
  }
}

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

std::set<std::string> AsSet(const v1::AdapterConfig& adapter) {
  return {adapter.target_modules().begin(), adapter.target_modules().end()};
}

void CheckTargets(Checker& checker, const v1::AdapterConfig& adapter,
                  const JobReferences& references) {
  constexpr char kField[] = "adapter.target_modules";
  if (adapter.target_modules_size() > kTargetModulesMax) {
    checker.Add(kField, absl::StrCat("must be at most ", kTargetModulesMax, ", got ",
                                     adapter.target_modules_size()));
    return;
  }
  const std::vector<std::string>& own = references.model.target_modules;
  std::set<std::string> seen;
  std::set<std::string> unknown;
  for (const std::string& target : adapter.target_modules()) {
    if (!seen.insert(target).second) {
      checker.Add(kField, absl::StrCat("names '", Quotable(target, kNameBytesMax), "' twice"));
      return;
    }
    if (references.model_known && std::find(own.begin(), own.end(), target) == own.end()) {
      unknown.insert(Quotable(target, kNameBytesMax));
    }
  }
  if (unknown.empty()) return;
  checker.Add(kField, absl::StrCat("must be among the model's ", absl::StrJoin(own, ", "),
                                   ", got '", absl::StrJoin(unknown, "', '"), "'"));
}

void CheckSource(Checker& checker, const v1::AdapterConfig& adapter,
                 const JobReferences& references) {
  if (adapter.init_from().empty()) return;
  if (!references.source_known) {
    checker.Add("adapter.init_from",
                absl::StrCat("there is no adapter or checkpoint '",
                             Quotable(adapter.init_from(), 2 * kNameBytesMax),
                             "': name an imported adapter, or a checkpoint as JOB/STEP"));
    return;
  }
  const v1::AdapterConfig& source = references.source;
  if (adapter.rank() != source.rank()) {
    checker.Add("adapter.rank", absl::StrCat("must be ", source.rank(), " as in '",
                                             adapter.init_from(), "', got ", adapter.rank()));
  }
  if (AsSet(adapter) != AsSet(source)) {
    checker.Add("adapter.target_modules",
                absl::StrCat("must be ", absl::StrJoin(source.target_modules(), ", "), " as in '",
                             adapter.init_from(), "', got ",
                             absl::StrJoin(adapter.target_modules(), ", ")));
  }
}

void CheckAdapter(Checker& checker, const v1::AdapterConfig& adapter,
                  const JobReferences& references) {
  checker.Between("adapter.rank", adapter.rank(), 1, kRankMax);
  checker.Real("adapter.alpha", adapter.alpha(), storage::kAlphaMin, 1e6, ' ');
  checker.Real("adapter.dropout", adapter.dropout(), 0, storage::kDropoutMax, ' ');
  CheckTargets(checker, adapter, references);
  CheckSource(checker, adapter, references);
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

void CheckTraining(Checker& checker, const v1::Job& job, const JobReferences& references) {
  const v1::TrainingConfig& training = job.training();
  checker.Between("training.epochs", training.epochs(), 1, kEpochsMax);
  checker.Between("training.max_steps", training.max_steps(), 0, kStepsMax);
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
  checker.Real("training.weight_decay", training.weight_decay(), 0, 1e3, ' ');
  checker.Real("training.beta1", training.beta1(), 0, 1, 'h');
  checker.Real("training.beta2", training.beta2(), 0, 1, 'h');
  checker.Real("training.eps", training.eps(), kEpsMin, 1, ' ');
  checker.Real("training.max_grad_norm", training.max_grad_norm(), 0, 1e9, ' ');
  checker.Real("training.loraplus_lr_ratio", training.loraplus_lr_ratio(), 0, 1e4, 'l');
  checker.Between("training.checkpoint_every_steps", training.checkpoint_every_steps(), 0,
                  kStepsMax);
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
    checker.Add(field, CheckText(value, kLabelValueBytesMax));
  }
}

}  // namespace

std::vector<FieldViolation> CompleteJob(v1::Job& job, const JobReferences& references) {
  DropOutputFields(job);
  CompleteAdapter(*job.mutable_adapter(), references);
  CompleteTraining(*job.mutable_training(), references);

  Checker checker;
  if (!job.name().empty()) {
    checker.Add("name", "is chosen by the service: leave it out, and use display_name for yours");
  }
  checker.Add("display_name", CheckText(job.display_name(), kDisplayNameBytesMax));
  CheckReference(checker, "base_model", "model", job.base_model(), references.model_known,
                 "register it first (lora model add)");
  CheckReference(checker, "training_dataset", "dataset", job.training_dataset(),
                 references.training_dataset_known, "create it first (lora dataset add)");
  if (!job.validation_dataset().empty()) {
    CheckReference(checker, "validation_dataset", "dataset", job.validation_dataset(),
                   references.validation_dataset_known, "create it first (lora dataset add)");
  }
  CheckAdapter(checker, job.adapter(), references);
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
