#ifndef LORAD_WORKER_REPORTS_H_
#define LORAD_WORKER_REPORTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// What the worker has to tell, numbered per epoch from 1 and kept until the coordinator
// acknowledges it, so that a broken stream loses nothing: the next stream starts with
// Unacknowledged(). Threads: any.
class ReportLog {
 public:
  // Called for every new report, in order, with the log locked: it must only hand the report on
  // (to the stream's queue). May be empty: reports then wait in the log.
  using Listener = std::function<void(const v1::Report&)>;

  void SetListener(Listener listener);

  // Numbers start again at 1 and what was kept of another epoch is dropped: nobody wants it.
  void BeginEpoch(int64_t epoch);

  // Fills in epoch and number. A report of an epoch that is over is dropped.
  void Add(int64_t epoch, v1::Report report);

  // Forgets all up to `number`.
  void Acknowledge(int64_t epoch, int64_t number);

  // Sets the listener and returns what it has to be told first, with nothing added between.
  std::vector<v1::Report> Resume(Listener listener);

  int64_t epoch() const;
  int64_t last_number() const;
  int64_t kept() const;

 private:
  mutable std::mutex mutex_;
  // GUARDED_BY(mutex_)
  Listener listener_;
  int64_t epoch_ = 0;
  int64_t last_number_ = 0;
  std::deque<v1::Report> kept_;
};

}  // namespace lorad::worker

#endif  // LORAD_WORKER_REPORTS_H_
