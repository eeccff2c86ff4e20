// The data feed: checks rows, and turns the core's window plans into windows with tokens in them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "planner/window.h"
#include "server/core/plan.h"
#include "server/core/records.pb.h"
#include "server/feed/token_cache.h"
#include "storage/files.h"

namespace lorad::server::feed {

struct FeedOptions {
  std::string data_dir;   // dataset paths are below it
  std::string cache_dir;  // of token caches
  size_t caches_open_max = 64;
  uint64_t cache_bytes_max = uint64_t{32} << 30;  // on disk; beyond it all are made anew
};

struct FeedWindow {
  worker::v1::Window window;
  planner::WindowStatistics statistics;
  std::vector<planner::PackResult> packings;  // of what is trained on and of what is evaluated
};

// Thread-safe: solver threads call it side by side. A cache is built once even where several ask
// for it at once.
class Feed {
 public:
  Feed(const FeedOptions& options, storage::Files& files);
  ~Feed();

  // Tokenizes the rows of a source (or finds the cache) and sums them up. Bad rows are no error:
  // the summary says the first one. An error: dataset or model cannot be read.
  absl::StatusOr<records::RowsSummary> CheckRows(const RowSource& source);

  // Packs, orders and verifies the units, and fills their tokens in. INVALID_ARGUMENT where a unit
  // names a row that is not there or one longer than the capacity.
  // Packing is given up for its quick part once `hurry` says true.
  absl::StatusOr<FeedWindow> Plan(const PlanInput& input,
                                  const std::function<bool()>& hurry = nullptr);

  // Tokenization, under way or to come, ends within a MiB of rows (CANCELLED). Any thread.
  void Cancel() { cancelled_ = true; }

  // Tokens over all steps of a job, prompts included: what its total_tokens says.
  absl::StatusOr<int64_t> TotalTokens(const RowSource& source, bool shuffle, uint64_t seed,
                                      int32_t batch_size, int64_t total_steps);

 private:
  struct Entry;
  struct Rows;
  absl::StatusOr<std::shared_ptr<Entry>> Open(const RowSource& source);
  absl::Status MakeRoom();
  absl::StatusOr<Rows> OpenRows(const RowSource& source);
  absl::StatusOr<Rows> OfUnit(const TrainUnit& unit);
  absl::StatusOr<Rows> OfUnit(const EvaluateUnit& unit);
  static worker::v1::Window Fill(const PlanInput& input, const planner::Window& planned,
                                 const std::map<std::string, Rows>& rows);

  const FeedOptions options_;
  storage::Files& files_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  // Guarded by mutex_. shared_ptr: an entry is used outside of the lock while it may be dropped.
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  uint64_t uses_ = 0;
};

}  // namespace lorad::server::feed
