// The core's request to the data feed: one window as a list of units, before any row is looked at.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lorad/v1/jobs.pb.h"
#include "lorad/worker/v1/worker.pb.h"
#include "planner/window/turns.h"
#include "planner/window/types.h"

namespace lorad::server {

// Where a job's rows come from: all that decides their tokens. The hash and the fingerprint are
// those of the records: files that are others now are not what was acknowledged.
struct RowSource {
  std::string dataset;       // name
  std::string dataset_path;  // below the data directory
  std::string dataset_sha256;
  std::string model_path;  // of the base model's directory (tokenizer, template)
  std::string model_fingerprint;
  std::string chat_template_sha256 = "";  // "": the directory's template
  // Its text; shared with the model's record, for every unit has a source. Null: the directory's.
  std::shared_ptr<const std::string> chat_template = nullptr;
  int32_t max_length = 1024;
  v1::TrainingConfig::Overflow overflow = v1::TrainingConfig::TRUNCATE;
  v1::TrainingConfig::TrainOn train_on = v1::TrainingConfig::ASSISTANT;
  int64_t rows = 0;
  int64_t bytes = 0;

  bool operator==(const RowSource&) const = default;
};

// One optimizer step of one job: its batch's forwards and backwards, Step, and Save where it is
// due. The batches of a job are consecutive cuts of its order of rows; an epoch ends with a short
// batch where rows do not divide evenly, and the next starts over (also where max_steps wraps
// around).
struct TrainUnit {
  std::string job;
  int64_t step = 0;  // counted from 1
  RowSource source;
  int32_t batch_size = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  double learning_rate = 0;
  bool save = false;
};

// Part of an evaluation: rows [first_sequence, first_sequence + sequences) of the validation set,
// in file order.
struct EvaluateUnit {
  std::string job;
  int64_t step = 0;  // steps done
  RowSource source;
  int64_t first_sequence = 0;
  int64_t sequences = 0;
};

struct LoadUnit {
  int64_t step = 0;  // the state it starts from: steps done
  worker::v1::SlotSpec slot;
  std::string content;  // FetchSlotContentRequest.content
};

// A Save without a Step before it: of a job that leaves where its last Step is not saved yet.
struct SaveUnit {
  std::string job;
  int64_t step = 0;
};

// The next tokens of answers of one guest (server/core/generations), at most one of each answer.
// The segments are whole: ids, and how the token is chosen.
struct GenerateUnit {
  std::string job;  // the guest
  std::vector<worker::v1::Segment> segments;
};

// Order of operations in the window: frees, loads, saves, then the units packed together. At least
// one of all lists is not empty, or something is in flight; a job has at most one train or evaluate
// unit, a guest one generate unit. Of several stages the order runs on over windows; one without
// units drains the pipeline.
struct PlanInput {
  int64_t epoch = 0;
  int64_t window = 0;
  int64_t first_microbatch = 0;  // number of the first microbatch; numbers count up within an epoch
  int32_t capacity_tokens = 0;
  int stages = 1;
  int in_flight = 1;                    // microbatches on a stage, at most
  planner::PlacesInFlight before = {};  // what the windows before have left
  int64_t microbatch_cost_tokens = planner::kMicrobatchCostTokens;  // planner::TurnOptions'
  std::vector<std::string> frees;
  std::vector<LoadUnit> loads;
  std::vector<SaveUnit> saves;
  std::vector<TrainUnit> trains;
  std::vector<EvaluateUnit> evaluates;
  std::vector<GenerateUnit> generates = {};
};

// One window as its stages get it: each has its own operations, and the data of rows that it needs.
// Without operations where no unit is left.
struct StageWindows {
  std::vector<worker::v1::Window> stages;
  planner::PlacesInFlight left = {};  // for the window behind it
  int64_t next_microbatch = 0;        // the first number that nothing has
};

// A job whose rows were not to be had: its unit is left out of the window. The status carries a
// reason (failures.h).
struct UnitFailure {
  std::string job;
  absl::Status status;
};

// The lines of a dataset's file that a batch is of, from 1, by sequence.
struct BatchLines {
  std::string job;
  int64_t step = 0;
  std::vector<int64_t> lines;
};

// How a window was packed, for the metrics.
struct PackingReport {
  int64_t microbatches = 0;
  int64_t bound_microbatches = 0;  // no packing has fewer
  // The packing of the sequences to train on and of those to evaluate: planner::Name(PackPath).
  std::vector<std::string> paths;
};

}  // namespace lorad::server
