#include "server/calls/patience.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace lorad::server {
namespace {

constexpr int64_t kStopped = std::numeric_limits<int64_t>::max();
constexpr int64_t kDue = -1;

}  // namespace

// Shared with the thread that looks: either may be the last.
struct Patience::Entry {
  std::atomic<int64_t> at_us{kStopped};
  std::mutex mutex;
  std::function<void()> on_due ABSL_GUARDED_BY(mutex);  // null once the timer is gone
};

Patience::Patience(absl::Duration tick)
    : tick_(tick), look_from_us_(kStopped), thread_([this] { Run(); }) {}

Patience::~Patience() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

int64_t Patience::NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Patience::LookFrom(int64_t at_us) {
  int64_t from_us = look_from_us_.load();
  while (at_us < from_us && !look_from_us_.compare_exchange_weak(from_us, at_us)) {
  }
}

std::vector<std::shared_ptr<Patience::Entry>> Patience::Due(int64_t now_us) {
  std::vector<std::shared_ptr<Entry>> due;
  if (now_us < look_from_us_.load()) return due;
  // A timer that starts from here on says so itself: it is in time, seen below or not.
  look_from_us_ = kStopped;
  for (const std::shared_ptr<Entry>& entry : entries_) {
    int64_t at_us = entry->at_us.load();
    if (at_us == kDue) continue;
    if (at_us <= now_us && entry->at_us.compare_exchange_strong(at_us, kDue)) {
      due.push_back(entry);
    } else {
      LookFrom(at_us);  // as it is, or as it was started meanwhile
    }
  }
  return due;
}

void Patience::Run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, absl::ToChronoMicroseconds(tick_),
                         [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; })) {
    std::vector<std::shared_ptr<Entry>> due = Due(NowUs());
    if (due.empty()) continue;
    lock.unlock();
    for (const std::shared_ptr<Entry>& entry : due) {
      std::lock_guard held(entry->mutex);
      if (entry->on_due) entry->on_due();
    }
    due.clear();
    lock.lock();
  }
}

Patience::Timer::Timer(Patience& patience, std::function<void()> on_due)
    : patience_(patience), entry_(std::make_shared<Entry>()) {
  entry_->on_due = std::move(on_due);
  std::lock_guard lock(patience_.mutex_);
  patience_.entries_.insert(entry_);
}

Patience::Timer::~Timer() {
  {
    std::lock_guard lock(patience_.mutex_);
    patience_.entries_.erase(entry_);
  }
  Close();
}

void Patience::Timer::Close() {
  std::lock_guard held(entry_->mutex);
  entry_->on_due = nullptr;
}

void Patience::Timer::Start(absl::Duration wait) {
  const int64_t at_us = NowUs() + absl::ToInt64Microseconds(wait);
  entry_->at_us = at_us;
  patience_.LookFrom(at_us);
}

void Patience::Timer::Stop() { entry_->at_us = kStopped; }

bool Patience::Timer::due() const { return entry_->at_us.load() == kDue; }

}  // namespace lorad::server
