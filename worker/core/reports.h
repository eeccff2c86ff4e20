#pragma once

#include <cstdint>
#include <deque>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// The worker's reports, numbered per epoch from 1 and kept until the coordinator acknowledges them,
// so that a broken stream loses nothing: the next stream starts with kept(). Threads: one.
class ReportLog {
 public:
  // Numbers start again at 1 and what was kept of another epoch is dropped: nobody wants it.
  void BeginEpoch(int64_t epoch);

  // Fills in epoch and number. Good until the log is changed; null: of an epoch that is over, and
  // dropped.
  const v1::Report* Add(int64_t epoch, v1::Report report);

  // Forgets all up to `number`.
  void Acknowledge(int64_t epoch, int64_t number);

  int64_t epoch() const { return epoch_; }
  int64_t last_number() const { return last_number_; }
  const std::deque<v1::Report>& kept() const { return kept_; }

 private:
  int64_t epoch_ = 0;
  int64_t last_number_ = 0;
  std::deque<v1::Report> kept_;
};

}  // namespace lorad::worker
