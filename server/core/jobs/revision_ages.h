// How old revisions are: marks of the newest revision at some times. Pure; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

namespace lorad::server {

class RevisionAges {
 public:
  // Keeps each revision for `keep_us` at least, and for an eighth more at most while Note is
  // called.
  explicit RevisionAges(int64_t keep_us) : keep_us_(keep_us), every_us_(keep_us / kMarks + 1) {}

  // `newest` is the newest revision at that time. Neither ever falls.
  void Note(int64_t now_us, int64_t newest) {
    if (!marks_.empty() && now_us - marks_.back().first < every_us_) return;
    if (!marks_.empty() && marks_.back().second == newest) return;
    marks_.emplace_back(now_us, newest);
  }

  // All revisions up to this one have been there for longer than they are kept.
  int64_t OldAt(int64_t now_us) {
    while (!marks_.empty() && now_us - marks_.front().first > keep_us_) {
      old_ = marks_.front().second;
      marks_.pop_front();
    }
    return old_;
  }

 private:
  static constexpr int64_t kMarks = 16;

  const int64_t keep_us_;
  const int64_t every_us_;                         // a mark
  std::deque<std::pair<int64_t, int64_t>> marks_;  // (time, newest revision then), both ascending
  int64_t old_ = 0;
};

}  // namespace lorad::server
