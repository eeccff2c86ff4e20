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

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "planner/window/window.h"
#include "server/core/events/plan.h"
#include "server/core/events/records.pb.h"
#include "server/feed/token_cache.h"
#include "storage/files/files.h"

namespace lorad::server::feed {

struct FeedOptions {
  std::string data_dir;   // dataset paths are below it
  std::string cache_dir;  // of token caches
  size_t caches_open_max = 64;
  uint64_t cache_bytes_max = uint64_t{32} << 30;  // on disk; beyond it all are made again
};

struct FeedWindow {
  worker::v1::Window window;
  planner::WindowStatistics statistics;
  std::vector<planner::PackResult> packings;  // of what is trained on and of what is evaluated
  std::vector<UnitFailure> failures;          // units that the window is without
};

// Thread-safe: solver threads call it side by side. A cache is built once even where several ask
// for it at once.
class Feed {
 public:
  Feed(const FeedOptions& options, storage::Files& files);
  ~Feed();

  // Tokenizes the rows of a source (or finds the cache) and sums them up. Bad rows are no error:
  // the summary says the first one. An error: dataset or model cannot be read (or are not those of
  // the source: DATASET_CHANGED, MODEL_CHANGED), or the cache cannot be written. Once `cancelled`
  // is set it ends within a MiB of rows (CANCELLED).
  absl::StatusOr<records::RowsSummary> CheckRows(const RowSource& source,
                                                 const std::atomic<bool>* cancelled = nullptr);

  // Packs, sorts and verifies the units, and fills their tokens in. It tokenizes nothing, so that
  // no job waits for the rows of another: a unit whose cache is not there is left out and reported
  // (ROWS_NOT_READY: CheckRows makes it), and so is one that names a row that is not there or that
  // is longer than the capacity (WINDOW_NOT_PLANNED). An error: our own.
  // Packing is given up for its quick part once `hurry` says true.
  absl::StatusOr<FeedWindow> Plan(const PlanInput& input,
                                  const std::function<bool()>& hurry = nullptr);

  // Tokens over all steps of a job, prompts included: what its total_tokens says.
  absl::StatusOr<int64_t> TotalTokens(const RowSource& source, bool shuffle, uint64_t seed,
                                      int32_t batch_size, int64_t total_steps);

 private:
  struct Entry;
  struct Rows;
  std::shared_ptr<Entry> EntryOf(const RowSource& source);
  // The entry with its cache, made where it is not there (or with what is bad about its rows).
  absl::StatusOr<std::shared_ptr<Entry>> Make(const RowSource& source,
                                              const std::atomic<bool>* cancelled);
  absl::StatusOr<storage::DatasetReport> Tokenize(const RowSource& source,
                                                  const std::string& cache_path,
                                                  const TokenCacheKey& key,
                                                  const std::atomic<bool>* cancelled);
  absl::Status MakeRoom();
  absl::StatusOr<Rows> OpenRows(const RowSource& source);
  absl::StatusOr<Rows> OfUnit(const TrainUnit& unit, int64_t capacity_tokens);
  absl::StatusOr<Rows> OfUnit(const EvaluateUnit& unit, int64_t capacity_tokens);
  static worker::v1::Window Fill(const PlanInput& input, const planner::Window& planned,
                                 const std::map<std::string, Rows>& rows);

  const FeedOptions options_;
  storage::Files& files_;
  std::mutex mutex_;
  // Guarded by mutex_. shared_ptr: an entry is used outside of the lock while it may be dropped.
  std::map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lorad::server::feed
