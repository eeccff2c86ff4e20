#include "client/inputs/job_names.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/inputs/needless_names.h"

namespace lorad::client {
namespace {

using nlohmann::json;

constexpr char kAccumulation[] = "gradient_accumulation_steps";
constexpr char kPerDevice[] = "per_device_train_batch_size";
constexpr char kEvaluationSteps[] = "eval_every_steps";
constexpr char kLoggingSteps[] = "logging_steps";

constexpr std::array<JobName, 16> kNames = {{
    {"", "run_name", "display_name"},
    {"adapter", "r", "rank"},
    {"adapter", "lora_alpha", "alpha"},
    {"adapter", "lora_dropout", "dropout"},
    {"training", "num_train_epochs", "epochs"},
    {"training", kPerDevice, "batch_size"},
    {"training", kAccumulation, "batch_size"},
    {"training", "max_seq_length", "max_length"},
    {"training", "lr_scheduler_type", "schedule"},
    {"training", "adam_beta1", "beta1"},
    {"training", "adam_beta2", "beta2"},
    {"training", "adam_epsilon", "eps"},
    {"training", "save_steps", "checkpoint_every_steps"},
    {"training", "save_total_limit", "checkpoint_keep_last"},
    {"training", "eval_steps", "eval_every_steps"},
    {"training", "data_seed", "seed"},
}};

constexpr std::array<JobName, 9> kLikelyNames = {{
    {"adapter", "lora_r", "rank"},
    {"adapter", "lora_rank", "rank"},
    {"training", "lr", "learning_rate"},
    {"training", "lr_scheduler", "schedule"},
    {"training", "n_epochs", "epochs"},
    {"training", "micro_batch_size", "batch_size"},
    {"training", "train_batch_size", "batch_size"},
    {"training", "sequence_len", "max_length"},
    {"training", "cutoff_len", "max_length"},
}};

// What needless names say where they say what they may (needless_names.h), if a field can say
// something else: then they are as good as that field.
struct Meaning {
  absl::string_view name;
  const char* said;  // as JSON
  const char* field;
  const char* value;  // as JSON
};
constexpr std::array<Meaning, 9> kMeanings = {{
    {"train_sampling_strategy", R"("random")", "shuffle", "true"},
    {"completion_only_loss", "true", "train_on", R"("ASSISTANT")"},
    {"assistant_only_loss", "true", "train_on", R"("ASSISTANT")"},
    {"save_strategy", R"("no")", "checkpoint_every_steps", "0"},
    {"save_strategy", R"("epoch")", "checkpoint_every_steps", R"("epoch")"},
    {"eval_strategy", R"("no")", "eval_every_steps", "0"},
    {"eval_strategy", R"("epoch")", "eval_every_steps", R"("epoch")"},
    {"evaluation_strategy", R"("no")", "eval_every_steps", "0"},
    {"evaluation_strategy", R"("epoch")", "eval_every_steps", R"("epoch")"},
}};

std::string Path(absl::string_view section, absl::string_view name) {
  return section.empty() ? std::string(name)
                         : absl::StrCat(absl::string_view(section), ".", absl::string_view(name));
}

std::string Text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Exchanges the names of one section.
class Taker {
 public:
  Taker(absl::string_view section, json& object, const NoteMistake& note)
      : section_(section), object_(object), note_(note) {}

  std::map<std::string, std::string> Take() {
    TakeBatch();
    for (const JobName& name : kNames) {
      if (name.section == section_) Exchange(name);
    }
    EvaluationSteps();
    TakeNeedless();
    Values();
    return std::move(written_);
  }

 private:
  json* Find(const char* name) {
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  void Note(absl::string_view name, const std::string& what) { note_(Path(section_, name), what); }

  // What another name of the field says must be the same. `said`: the value as the user wrote it.
  void Put(const std::string& field, const std::string& name, const json& value,
           const std::string& said) {
    const json* other = Find(field.c_str());
    const std::string path = Path(section_, field);
    if (other == nullptr) {
      object_[field] = value;
      written_[path] = Path(section_, name);
    } else if (*other != value) {
      const auto theirs = written_.find(path);
      Note(name,
           absl::StrCat("says ", said, ", but ", theirs == written_.end() ? path : theirs->second,
                        " says ", Text(*other), ": they are one field; leave one out"));
    }
  }

  void Exchange(const JobName& name) {
    const auto at = object_.find(std::string(name.name));
    if (at == object_.end()) return;
    const json value = *at;
    object_.erase(at);
    if (!value.is_null()) Put(std::string(name.field), std::string(name.name), value, Text(value));
  }

  // A count of at least 1 under this name, taken out of the object; one that is none is noted.
  std::optional<std::int64_t> TakeCount(const char* name) {
    const json value = object_[name];
    object_.erase(name);
    const double count = value.is_number() ? value.get<double>() : 0;
    constexpr int kMax = std::numeric_limits<int>::max();
    if (count < 1 || count != std::floor(count) || count > kMax) {
      Note(name, absl::StrCat("must be a whole number from 1 to ", kMax, ", got ", Text(value)));
      return std::nullopt;
    }
    return static_cast<std::int64_t>(count);
  }

  void TakeBatch() {
    if (section_ != "training" || Find(kAccumulation) == nullptr) return;
    if (Find(kPerDevice) == nullptr) {
      object_.erase(kAccumulation);
      return Note(kAccumulation,
                  absl::StrCat("needs ", kPerDevice, " beside it; batch_size is their product"));
    }
    const auto times = TakeCount(kAccumulation);
    const auto rows = TakeCount(kPerDevice);
    if (!times || !rows) return;
    const std::int64_t batch = *times * *rows;
    Put("batch_size", absl::StrCat(kPerDevice, " x ", kAccumulation), batch, absl::StrCat(batch));
  }

  // In PEFT a text is "all-linear" or an expression.
  void Targets() {
    json* targets = Find("target_modules");
    if (targets == nullptr || !targets->is_string()) return;
    if (*targets != "all-linear") {
      Note("target_modules", absl::StrCat("must be a list of names, or \"all-linear\", got ",
                                          Text(*targets), "; an expression is a target_regex"));
    }
    *targets = json::array({"all-linear"});
  }

  // Transformers evaluate every logging_steps where nobody says how many steps.
  void EvaluationSteps() {
    if (section_ != "training") return;
    for (const char* name : {"eval_strategy", "evaluation_strategy"}) {
      const json* strategy = Find(name);
      if (strategy == nullptr || *strategy != "steps" || Find(kEvaluationSteps) != nullptr)
        continue;
      if (const json* steps = Find(kLoggingSteps); steps != nullptr) {
        Put(kEvaluationSteps, kLoggingSteps, json(*steps), Text(*steps));
      } else {
        Note(name, "needs eval_steps beside it: how many steps from one evaluation to the next");
      }
    }
  }

  void TakeNeedless() {
    for (const NeedlessName& name : NeedlessNames()) {
      if (name.section != section_) continue;
      const auto at = object_.find(std::string(name.name));
      if (at == object_.end()) continue;
      const json value = *at;
      object_.erase(at);
      const std::string wrong = WhyNot(name, value);
      if (!wrong.empty()) Note(name.name, wrong);
      const auto* means = std::ranges::find_if(kMeanings, [&](const Meaning& meaning) {
        return meaning.name == name.name && json::parse(meaning.said) == value;
      });
      if (means == kMeanings.end()) continue;
      const json meant = json::parse(means->value);
      Put(means->field, std::string(name.name), meant,
          absl::StrCat(Text(value), meant == value ? "" : ", which is " + Text(meant)));
    }
  }

  // Transformers' way to say that epochs decide.
  void Steps() {
    if (json* steps = Find("max_steps"); steps != nullptr && *steps == -1) *steps = 0;
  }

  void Values() {
    if (section_ == "adapter") Targets();
    if (section_ == "training") Steps();
    json* schedule = Find("schedule");
    if (section_ != "training" || schedule == nullptr || !schedule->is_string()) return;
    const std::string given = schedule->get<std::string>();
    const auto warms_up = [&](const char* name) {
      const json* warmup = Find(name);
      return warmup != nullptr && *warmup != 0;
    };
    if (given == "constant" && (warms_up("warmup_steps") || warms_up("warmup_ratio"))) {
      Note(written_.contains("training.schedule") ? "lr_scheduler_type" : "schedule",
           "\"constant\" has no warm-up in transformers; say \"constant_with_warmup\", or leave "
           "the warm-up out");
    }
    if (given == "constant" || given == "linear" || given == "cosine") {
      *schedule = absl::AsciiStrToUpper(given);
    }
    if (given == "constant_with_warmup") *schedule = "CONSTANT";
  }

  const absl::string_view section_;
  json& object_;
  const NoteMistake& note_;
  std::map<std::string, std::string> written_;
};

}  // namespace

absl::Span<const JobName> JobNames() { return kNames; }

absl::Span<const JobName> LikelyNames() { return kLikelyNames; }

std::map<std::string, std::string> TakeNames(absl::string_view section, json& object,
                                             const NoteMistake& note) {
  return Taker(section, object, note).Take();
}

}  // namespace lorad::client
