// A feed of the datasets and the model of a house.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "server/feed/feed.h"
#include "storage/files/sha256.h"
#include "storage/models/model_directory.h"
#include "tests/server/feed/house.h"

namespace lorad::server::feed {

struct FeedHouse : House {
  FeedOptions options{.data_dir = directory.path(), .cache_dir = directory / "cache"};
  std::atomic<int64_t> now_us = 0;
  const std::function<int64_t()> clock = [this] { return now_us.load(); };
  Feed feed{options, storage::RealFiles(), clock};

  // Of the file as it is now, as its record would say.
  RowSource Source(const std::string& path, int32_t max_length = 64) const {
    const auto bytes = storage::RealFiles().ReadAll(directory / path, 1 << 20);
    return {.dataset = "d",
            .dataset_path = path,
            .dataset_sha256 = storage::Sha256::Of(bytes.value_or("")),
            .model_path = model(),
            .model_fingerprint = storage::ModelDirectory::Open(model())->fingerprint(),
            .max_length = max_length};
  }
  // Plans windows of rows that were checked before, as the core does.
  static absl::StatusOr<FeedWindow> Plan(Feed& feed, const PlanInput& input,
                                         const std::function<bool()>& hurry = nullptr) {
    for (const TrainUnit& unit : input.trains) feed.CheckRows(unit.source).IgnoreError();
    for (const EvaluateUnit& unit : input.evaluates) feed.CheckRows(unit.source).IgnoreError();
    return feed.Plan(input, hurry);
  }
  absl::StatusOr<FeedWindow> Plan(const PlanInput& input,
                                  const std::function<bool()>& hurry = nullptr) {
    return Plan(feed, input, hurry);
  }
  TrainUnit Train(const std::string& job, int64_t step, const std::string& path,
                  int32_t batch_size) const {
    return {.job = job,
            .step = step,
            .source = Source(path),
            .batch_size = batch_size,
            .shuffle = false,
            .seed = 0,
            .learning_rate = 0.5,
            .save = false};
  }
};

inline std::string Reason(const absl::Status& status) {
  const auto reason = status.GetPayload("lorad/reason");
  return reason ? std::string(*reason) : "";
}

inline PlanInput Input(int32_t capacity_tokens) {
  PlanInput input;
  input.capacity_tokens = capacity_tokens;
  return input;
}

}  // namespace lorad::server::feed
