#include "server/driver/check_queue.h"

#include <algorithm>
#include <utility>

namespace lorad::server {
namespace {

constexpr int64_t kOldestEvery = 4;

}  // namespace

void CheckQueue::Add(CheckRows order) {
  std::lock_guard lock(mutex_);
  waiting_.push_back({std::move(order), std::make_shared<std::atomic<bool>>(false)});
}

void CheckQueue::Cancel(const std::string& key) {
  std::lock_guard lock(mutex_);
  if (const auto taken = taken_.find(key); taken != taken_.end()) *taken->second = true;
  for (Check& check : waiting_) {
    if (check.order.key == key) *check.cancelled = true;
  }
}

void CheckQueue::CancelAll() {
  std::lock_guard lock(mutex_);
  for (auto& [key, cancelled] : taken_) *cancelled = true;
  for (Check& check : waiting_) *check.cancelled = true;
}

// One that is cancelled takes no time.
bool CheckQueue::IsLarge(const Check& check) {
  return check.order.source.bytes > kLargeBytes && !*check.cancelled;
}

CheckQueue::Place CheckQueue::Best() {
  const bool large_too = large_taken_ < large_max_;
  Place best = waiting_.end();
  for (Place next = waiting_.begin(); next != waiting_.end(); ++next) {
    if (*next->cancelled) return next;
    if (IsLarge(*next) && !large_too) continue;
    if (best == waiting_.end() || next->order.source.bytes < best->order.source.bytes) best = next;
    if (takes_ % kOldestEvery == 0) break;  // the oldest that may go
  }
  return best;
}

std::optional<CheckQueue::Check> CheckQueue::Take() {
  std::lock_guard lock(mutex_);
  const Place best = Best();
  if (best == waiting_.end()) return std::nullopt;
  Check check = std::move(*best);
  waiting_.erase(best);
  takes_++;
  large_taken_ += check.order.source.bytes > kLargeBytes;
  taken_[check.order.key] = check.cancelled;
  return check;
}

void CheckQueue::Done(const Check& check) {
  std::lock_guard lock(mutex_);
  large_taken_ -= check.order.source.bytes > kLargeBytes;
  taken_.erase(check.order.key);
}

}  // namespace lorad::server
