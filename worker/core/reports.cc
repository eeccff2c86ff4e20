#include "worker/core/reports.h"

#include <utility>

namespace lorad::worker {

void ReportLog::BeginEpoch(int64_t epoch) {
  epoch_ = epoch;
  last_number_ = 0;
  kept_.clear();
}

const v1::Report* ReportLog::Add(int64_t epoch, v1::Report report) {
  if (epoch != epoch_) return nullptr;
  report.set_epoch(epoch);
  report.set_number(++last_number_);
  kept_.push_back(std::move(report));
  return &kept_.back();
}

void ReportLog::Acknowledge(int64_t epoch, int64_t number) {
  if (epoch != epoch_) return;
  while (!kept_.empty() && kept_.front().number() <= number) kept_.pop_front();
}

}  // namespace lorad::worker
