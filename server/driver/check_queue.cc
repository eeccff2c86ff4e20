#include "server/driver/check_queue.h"

#include <algorithm>
#include <utility>

namespace lorad::server {
namespace {

constexpr int64_t kOldestEvery = 4;
// What a check costs beside its rows: it reads the model's tokenizer.
constexpr int64_t kCheckBytes = 64 << 10;

bool IsLarge(const CheckQueue::Check& check) {
  return check.order.source.bytes > CheckQueue::kLargeBytes;
}

}  // namespace

void CheckQueue::Add(CheckRows order) {
  std::lock_guard lock(mutex_);
  Share& share = shares_[order.share];
  // One that comes, or comes back, has no claim from the time when it asked for nothing.
  if (share.waiting.empty()) share.begin_bytes = std::max(share.begin_bytes, clock_bytes_);
  share.waiting.push_back({std::move(order), std::make_shared<std::atomic<bool>>(false)});
}

void CheckQueue::Cancel(const std::string& key) {
  std::lock_guard lock(mutex_);
  if (const auto taken = taken_.find(key); taken != taken_.end()) *taken->second = true;
  for (auto& [name, share] : shares_) {
    for (Check& check : share.waiting) {
      if (check.order.key == key) *check.cancelled = true;
    }
  }
}

void CheckQueue::CancelAll() {
  std::lock_guard lock(mutex_);
  for (auto& [key, cancelled] : taken_) *cancelled = true;
  for (auto& [name, share] : shares_) {
    for (Check& check : share.waiting) *check.cancelled = true;
  }
}

CheckQueue::Place CheckQueue::Best(Share& share) {
  const bool large_too =
      large_taken_ < large_max_ && share.large_taken < std::max(1, large_max_ - 1);
  Place best =
      std::ranges::find_if(share.waiting, [](const Check& c) { return c.cancelled->load(); });
  if (best != share.waiting.end()) return best;
  for (Place next = share.waiting.begin(); next != share.waiting.end(); ++next) {
    if (IsLarge(*next) && !large_too) continue;
    if (best == share.waiting.end() || next->order.source.bytes < best->order.source.bytes) {
      best = next;
    }
    if (share.takes % kOldestEvery == 0) break;  // the oldest that may go
  }
  return best;
}

std::optional<CheckQueue::Check> CheckQueue::Take() {
  std::lock_guard lock(mutex_);
  Shares::iterator from = shares_.end();
  Place best;
  int64_t end_bytes = 0;
  for (auto share = shares_.begin(); share != shares_.end(); ++share) {
    const Place of_share = Best(share->second);
    if (of_share == share->second.waiting.end()) continue;
    // One that is cancelled takes no time.
    const int64_t end = *of_share->cancelled ? -1
                                             : share->second.begin_bytes + kCheckBytes +
                                                   of_share->order.source.bytes;
    if (from != shares_.end() && end >= end_bytes) continue;
    from = share;
    best = of_share;
    end_bytes = end;
  }
  if (from == shares_.end()) return std::nullopt;
  Check check = std::move(*best);
  Share& share = from->second;
  share.waiting.erase(best);
  if (end_bytes >= 0) {
    share.takes++;
    share.begin_bytes = end_bytes;
    clock_bytes_ = std::max(clock_bytes_, end_bytes);
  }
  share.large_taken += IsLarge(check);
  large_taken_ += IsLarge(check);
  taken_[check.order.key] = check.cancelled;
  Leave(from);
  return check;
}

void CheckQueue::Done(const Check& check) {
  std::lock_guard lock(mutex_);
  taken_.erase(check.order.key);
  if (!IsLarge(check)) return;
  large_taken_--;
  const auto share = shares_.find(check.order.share);
  share->second.large_taken--;
  Leave(share);
}

void CheckQueue::Leave(Shares::iterator share) {
  if (share->second.waiting.empty() && share->second.large_taken == 0) shares_.erase(share);
}

}  // namespace lorad::server
