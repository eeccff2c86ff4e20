// The data feed: checks rows, and turns the core's window plans into windows with tokens in them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "planner/window/window.h"
#include "server/core/events/plan.h"
#include "server/core/events/records.pb.h"
#include "server/feed/fill.h"
#include "server/feed/kept_by_use.h"
#include "server/feed/token_cache.h"
#include "storage/files/files.h"

namespace lorad::server::feed {

struct FeedOptions {
  std::string data_dir;                           // dataset paths are below it
  std::string cache_dir;                          // of token caches
  uint64_t cache_bytes_max = uint64_t{32} << 30;  // on disk; beyond it all are made again
  // Caches that are open, and orders of rows that are drawn, are kept as long as they are used:
  // what nothing has used for `unused_us` is let go when the feed is asked for something, and what
  // was used longest ago while there is more. An open cache takes 8 bytes for each row, and counts
  // for open_bytes_max / open_files_max more since it is an open file.
  int64_t open_bytes_max = int64_t{4} << 30;
  int64_t open_files_max = 4096;
  int64_t orders_bytes_max = int64_t{256} << 20;
  int64_t unused_us = 600'000'000;
};

struct FeedWindow {
  StageWindows window;
  planner::WindowStatistics statistics;
  std::vector<planner::PackResult> packings;  // of what is trained on and of what is evaluated
  std::vector<UnitFailure> failures;          // units that the window is without
  std::vector<BatchLines> lines;              // of what is trained on
};

// Thread-safe: solver threads call it side by side. A cache is built, opened and checked once even
// where several ask for it at once.
class Feed {
 public:
  // `now_us`: a monotonic clock. Any thread.
  Feed(const FeedOptions& options, storage::Files& files, std::function<int64_t()> now_us);
  ~Feed();

  // Tokenizes the rows of a source (or finds the cache) and sums them up. Bad rows are no error:
  // the summary says the first one. An error: dataset or model cannot be read (or are not those of
  // the source: DATASET_CHANGED, MODEL_CHANGED), or the cache cannot be written. Once `cancelled`
  // is set it ends within a MiB of rows (CANCELLED).
  absl::StatusOr<records::RowsSummary> CheckRows(const RowSource& source,
                                                 const std::atomic<bool>* cancelled = nullptr);

  // Packs, sorts and verifies the units, and fills their tokens in. It tokenizes nothing, so that
  // no job waits for the rows of another: a unit whose cache is not there, cannot be read or is not
  // what it was is left out and reported (ROWS_NOT_READY: CheckRows makes it), and so is one that
  // names a row that is not there or that is longer than the capacity (WINDOW_NOT_PLANNED). An
  // error: our own.
  // Packing is given up for its quick part once `hurry` says true.
  absl::StatusOr<FeedWindow> Plan(const PlanInput& input,
                                  const std::function<bool()>& hurry = nullptr);

  // The caches of the dataset of that path (RowSource::dataset_path) are closed once nobody reads
  // them; those who ask for its rows open them again.
  void Close(const std::string& dataset_path);
  // How many caches it keeps. For tests.
  size_t kept_caches() const;

 private:
  struct Entry;
  struct Order;
  // A source's cache, open and, as long as this lives, in use.
  struct OpenRows {
    std::shared_ptr<Entry> entry;
    std::shared_ptr<const TokenCache> cache;
  };
  // (rows, shuffle, seed, epoch)
  using OrderKey = std::tuple<int64_t, bool, uint64_t, int64_t>;

  // A source's rows, checked: its cache, or null and what is bad about them.
  struct CheckedRows {
    std::shared_ptr<const TokenCache> cache;
    storage::DatasetReport bad = {};
  };

  std::shared_ptr<Entry> EntryOf(const RowSource& source);
  // The entry's cache, opened unless it is open. It stays the caller's, whoever finds it damaged
  // meanwhile.
  absl::StatusOr<std::shared_ptr<const TokenCache>> Open(const RowSource& source, Entry& entry);
  std::shared_ptr<const std::vector<int64_t>> OrderOf(const OrderKey& key);
  // The cache is made where it is not there, or is damaged.
  absl::StatusOr<CheckedRows> Make(const RowSource& source, const std::atomic<bool>* cancelled);
  absl::StatusOr<storage::DatasetReport> Tokenize(const RowSource& source,
                                                  const std::atomic<bool>* cancelled);
  absl::Status MakeRoom();
  absl::StatusOr<OpenRows> Rows(const RowSource& source);
  // Reads a row into the unit's.
  absl::Status Add(const RowSource& source, const OpenRows& open, int64_t sequence, int64_t row,
                   int64_t capacity_tokens, UnitRows* rows);
  absl::StatusOr<UnitRows> OfUnit(const TrainUnit& unit, int64_t capacity_tokens);
  absl::StatusOr<UnitRows> OfUnit(const EvaluateUnit& unit, int64_t capacity_tokens);

  const FeedOptions options_;
  storage::Files& files_;
  const std::function<int64_t()> now_us_;
  mutable std::mutex mutex_;
  KeptByUse<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by EntryName
  KeptByUse<OrderKey, Order> orders_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lorad::server::feed
