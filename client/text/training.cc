#include "client/text/training.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/text/table.h"

namespace lorad::client {
namespace {

using lorad::v1::TrainingConfig;

std::string Every(int steps, const char* otherwise) {
  if (steps == 0) return otherwise;
  return steps == 1 ? "every step" : absl::StrCat("every ", steps, " steps");
}

std::string CheckpointsText(const TrainingConfig& training) {
  std::string text = Every(training.checkpoint_every_steps(), "after the last step");
  const int last = training.checkpoint_keep_last(), best = training.checkpoint_keep_best();
  if (last == 0 && best == 0) return absl::StrCat(text, ", all kept");
  absl::StrAppend(&text, ", kept are the newest ", last > 0 ? last : 1);
  if (best > 0) absl::StrAppend(&text, " and the best ", best);
  return text;
}

std::string WarmupText(const TrainingConfig& training) {
  if (training.warmup_ratio() > 0) {
    return absl::StrFormat(", warm-up over %g of the steps", training.warmup_ratio());
  }
  if (training.warmup_steps() == 0) return "";
  return absl::StrCat(", warm-up over ", training.warmup_steps(), " steps");
}

}  // namespace

void AddTraining(const TrainingConfig& training, Table& table) {
  table.Add({"length", training.max_steps() > 0 ? absl::StrCat(training.max_steps(), " steps")
                                                : absl::StrCat(training.epochs(), " epochs")});
  table.Add({"batch", absl::StrFormat("%d sequences of up to %d tokens, longer ones: %s",
                                      training.batch_size(), training.max_length(),
                                      TrainingConfig::Overflow_Name(training.overflow()))});
  table.Add(
      {"trained on",
       absl::StrFormat("%s, %s, seed %d", TrainingConfig::TrainOn_Name(training.train_on()),
                       training.shuffle() ? "shuffled" : "in the file's order", training.seed())});
  table.Add({"schedule", absl::StrCat(RateText(training.learning_rate()), " ",
                                      TrainingConfig::Schedule_Name(training.schedule()),
                                      WarmupText(training))});
  table.Add(
      {"optimizer",
       absl::StrFormat("AdamW, betas %g and %g, eps %g, weight decay %g, clipping %g, LoRA+ "
                       "ratio %g",
                       training.beta1(), training.beta2(), training.eps(), training.weight_decay(),
                       training.max_grad_norm(), training.loraplus_lr_ratio())});
  table.Add({"checkpoints", CheckpointsText(training)});
}

void AddEvaluations(const TrainingConfig& training, Table& table) {
  table.Add({"evaluations", Every(training.eval_every_steps(), "at the start and the end")});
}

}  // namespace lorad::client
