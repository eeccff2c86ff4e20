// Somebody who watches jobs, as the daemon's watch stream does it: a snapshot in pages, then what
// the log tells. After each cut it resumes behind the last revision that it was told; half of them
// are told of all that was read for them (bookmarks).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/site.h"

namespace lorad::sim {

class Watcher {
 public:
  // Of the jobs of these names (empty: all), every `pause_us`.
  Watcher(Site& site, std::set<std::string> names, int64_t pause_us);

  void Begin() { Look(); }
  // It comes back after so long.
  void Cut(int64_t away_us = 0);
  // It follows the coordinator that is there, or what it watches is gone.
  bool settled() const;
  // Reads to the end, and holds what it saw against what there was: each revision once, in order,
  // none left out. REQUIRES: it has settled, and the coordinator serves.
  void Check();

 private:
  enum class Phase { kSnapshot, kFollow };

  void Look();
  void AskForPage();
  void TakePage(const server::JobSnapshot& page);
  void BeginToFollow(int64_t after);
  // Whether there may be more.
  bool Follow(int64_t limit);
  void BeginAnew();
  void See(int64_t revision);
  void CheckPresent();

  Site& site_;
  const std::set<std::string> names_;
  const int64_t pause_us_;
  const bool bookmarks_;
  std::string store_;       // of which it has seen revisions
  int64_t deaths_ = 0;      // of the coordinator, when it connected
  int64_t connection_ = 0;  // answers to those before do not count
  Phase phase_ = Phase::kSnapshot;
  bool asks_ = false;  // for a page
  int64_t away_until_us_ = 0;
  bool gone_ = false;    // so are its jobs
  int64_t at_ = 0;       // the log, or the snapshot, is read from behind here
  int64_t last_ = 0;     // the newest that it was told; 0: none
  int64_t present_ = 0;  // the snapshot is of what stood up to here; 0: it has not begun
  // Jobs that its snapshot left out; once it was told of them, it says that all was told.
  std::optional<std::set<std::string>> changed_;
  std::set<std::string> told_of_;  // jobs, since its snapshot began
  std::optional<int64_t> followed_from_;
  std::vector<int64_t> seen_;  // since then
};

}  // namespace lorad::sim
