#include "client/live_table.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "client/calls/follow.h"
#include "client/calls/rpc.h"
#include "client/text/cluster_board.h"
#include "client/text/width.h"
#include "lorad/v1/cluster.grpc.pb.h"

namespace lorad::client {
namespace {

using Clock = std::chrono::steady_clock;
using lorad::v1::Cluster;
using lorad::v1::ClusterStatus;
using lorad::v1::ListWorkersResponse;
using lorad::v1::WatchJobsResponse;

constexpr std::chrono::milliseconds kDrawEvery(250);
constexpr std::chrono::milliseconds kLookEvery(1000);  // at the workers
constexpr int kLookSeconds = 5;                        // that a look may take

std::atomic<bool> interrupted = false;

// While it lives, Ctrl-C and SIGTERM ask for the end.
class Interrupts {
 public:
  Interrupts() {
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted = true; };
    sigaction(SIGINT, &action, &before_[0]);
    sigaction(SIGTERM, &action, &before_[1]);
  }
  ~Interrupts() {
    sigaction(SIGINT, &before_[0], nullptr);
    sigaction(SIGTERM, &before_[1], nullptr);
  }

 private:
  struct sigaction before_[2] = {};
};

// The terminal's other screen, without a cursor; what was there before comes back at its end.
class Screen {
 public:
  Screen() { std::cout << "\x1b[?1049h\x1b[?25l" << std::flush; }
  ~Screen() { std::cout << "\x1b[?25h\x1b[?1049l" << std::flush; }

  struct Size {
    int rows = 24;
    int columns = 80;
  };
  static Size size() {
    winsize window{};
    Size size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0) return size;
    if (window.ws_row > 0) size.rows = window.ws_row;
    if (window.ws_col > 0) size.columns = window.ws_col;
    return size;
  }

  // Over what is there, so that nothing flickers.
  void Draw(const std::vector<std::string>& lines) {
    std::string text = "\x1b[H";
    for (std::size_t i = 0; i < lines.size(); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : "\r\n", lines[i], "\x1b[K");
    }
    std::cout << text << "\x1b[J" << std::flush;
  }
};

class LiveTable {
 public:
  explicit LiveTable(Session& session) : session_(session), follower_(session, WhatToFollow()) {}

  absl::Status Run() {
    session_.channel();  // made before there are threads
    const Interrupts interrupts;
    std::thread jobs([this] {
      const absl::Status status = follower_.Run();
      std::lock_guard lock(mutex_);
      ended_ = true;
      status_ = status;
    });
    std::thread workers([this] { LookAtWorkers(); });
    while (!interrupted && !ended()) {
      DrawIfChanged();
      std::this_thread::sleep_for(kDrawEvery);
    }
    stop_ = true;
    follower_.Stop();
    jobs.join();
    workers.join();
    screen_.reset();
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  Following WhatToFollow() {
    Following following;
    following.live_only = true;
    following.told = [this](const WatchJobsResponse& news) {
      std::lock_guard lock(mutex_);
      board_.Take(news);
      jobs_told_ = jobs_told_ || !news.has_job();  // a bookmark
      lost_ = false;
      changed_ = true;
      return true;
    };
    following.anew = [this] {
      std::lock_guard lock(mutex_);
      board_.ClearJobs();
      jobs_told_ = false;
      changed_ = true;
    };
    following.lost = [this] {
      std::lock_guard lock(mutex_);
      lost_ = true;
      changed_ = true;
    };
    return following;
  }

  bool ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }

  // Where the daemon does not answer the board stays as it is.
  void LookAtWorkers() {
    for (auto next = Clock::now(); !stop_; std::this_thread::sleep_for(kDrawEvery)) {
      if (Clock::now() < next) continue;
      next = Clock::now() + kLookEvery;
      ListWorkersResponse workers;
      ClusterStatus cluster;
      if (!Call(session_, &Cluster::Stub::ListWorkers, v1::ListWorkersRequest(), workers,
                kLookSeconds)
               .ok() ||
          !Call(session_, &Cluster::Stub::GetCluster, v1::GetClusterRequest(), cluster,
                kLookSeconds)
               .ok()) {
        continue;
      }
      std::lock_guard lock(mutex_);
      board_.Take(std::move(workers), std::move(cluster));
      workers_told_ = true;
      changed_ = true;
    }
  }

  // Nothing before the first answers: a board without them would say that nobody is there.
  void DrawIfChanged() {
    const Screen::Size size = Screen::size();
    std::vector<std::string> lines;
    {
      std::lock_guard lock(mutex_);
      const bool same_size = size.rows == drawn_.rows && size.columns == drawn_.columns;
      if (!(jobs_told_ && workers_told_) && !lost_) return;
      if (!std::exchange(changed_, false) && same_size) return;
      lines = board_.Lines(size.rows, size.columns);
      if (lost_) lines[0] = absl::StrCat("lost ", session_.server, "; trying again");
    }
    drawn_ = size;
    lines[0] = CutToWidth(lines[0], static_cast<std::size_t>(size.columns));
    if (!screen_) screen_.emplace();
    screen_->Draw(lines);
  }

  Session& session_;
  Follower follower_;
  std::atomic<bool> stop_ = false;
  std::optional<Screen> screen_;  // once there is something to draw
  Screen::Size drawn_;

  std::mutex mutex_;
  ClusterBoard board_ ABSL_GUARDED_BY(mutex_);
  bool changed_ ABSL_GUARDED_BY(mutex_) = true;
  bool jobs_told_ ABSL_GUARDED_BY(mutex_) = false;
  bool workers_told_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status ShowLiveTable(Session& session) { return LiveTable(session).Run(); }

}  // namespace lorad::client
