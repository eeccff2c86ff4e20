// A line on a terminal about bytes that are on their way: how many, how fast, how long still.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"

namespace lorad::client {

// What is known of a transfer.
struct Transferred {
  std::int64_t bytes = 0;   // there, those of an earlier attempt as well
  std::int64_t before = 0;  // of them, those of an earlier attempt: they count in no speed
  std::int64_t total = 0;   // 0: nobody knows
  double seconds = 0;       // since it began
};

// "rows.jsonl  [####    ]  45%  12.3 of 94.1 MiB  11.2 MiB/s  8s left" in at most `columns`
// characters: where they are few the share, the time left and the speed stay longest. Empty under
// 20 columns.
std::string TransferLine(const std::string& what, const Transferred& so_far, int columns);

// The line, drawn again and again on standard error while bytes move: from the second second on,
// where that is a terminal and it is wanted. Threads: Add and Skip any.
class TransferBar {
 public:
  // `total` as in Transferred.
  TransferBar(bool wanted, std::string what, std::int64_t total);
  ~TransferBar() { End(); }
  TransferBar(const TransferBar&) = delete;
  TransferBar& operator=(const TransferBar&) = delete;

  // Known only now, as in Transferred.
  void SetTotal(std::int64_t total);
  void Add(std::int64_t bytes);
  // So many are there already; less than 0: they turned out to be wrong, and come again.
  void Skip(std::int64_t bytes);
  // The line goes, and others may be printed.
  void End();

 private:
  void Draw() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool shown_;
  const std::string what_;
  const std::int64_t begin_ms_;
  std::mutex mutex_;
  Transferred so_far_ ABSL_GUARDED_BY(mutex_);
  std::int64_t drawn_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: never
};

}  // namespace lorad::client
