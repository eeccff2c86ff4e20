#include "worker/reports.h"

#include <utility>

namespace lorad::worker {

void ReportLog::SetListener(Listener listener) {
  std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

void ReportLog::BeginEpoch(int64_t epoch) {
  std::lock_guard lock(mutex_);
  epoch_ = epoch;
  last_number_ = 0;
  kept_.clear();
}

void ReportLog::Add(int64_t epoch, v1::Report report) {
  std::lock_guard lock(mutex_);
  if (epoch != epoch_) return;
  report.set_epoch(epoch);
  report.set_number(++last_number_);
  kept_.push_back(std::move(report));
  if (listener_) listener_(kept_.back());
}

void ReportLog::Acknowledge(int64_t epoch, int64_t number) {
  std::lock_guard lock(mutex_);
  if (epoch != epoch_) return;
  while (!kept_.empty() && kept_.front().number() <= number) kept_.pop_front();
}

std::vector<v1::Report> ReportLog::Resume(Listener listener) {
  std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
  return {kept_.begin(), kept_.end()};
}

int64_t ReportLog::epoch() const {
  std::lock_guard lock(mutex_);
  return epoch_;
}

int64_t ReportLog::last_number() const {
  std::lock_guard lock(mutex_);
  return last_number_;
}

int64_t ReportLog::kept() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(kept_.size());
}

}  // namespace lorad::worker
