#include "client/live_table.h"

#include <signal.h>

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

std::atomic<bool> interrupted = false;  // the end is asked for
std::atomic<bool> suspended = false;    // by Ctrl-Z
std::atomic<bool> continued = false;    // whoever had the terminal may have written on it

// What a signal says, as long as it lives.
class Heard {
 public:
  Heard(int signal, void (*says)(int)) : signal_(signal) {
    struct sigaction action = {};
    action.sa_handler = says;
    sigaction(signal_, &action, &before_);
  }
  ~Heard() { sigaction(signal_, &before_, nullptr); }
  Heard(const Heard&) = delete;
  Heard& operator=(const Heard&) = delete;

 private:
  const int signal_;
  struct sigaction before_ = {};
};

void Interrupt(int) { interrupted = true; }
void Suspend(int) { suspended = true; }
void Continue(int) { continued = true; }

// The terminal's other screen, without a cursor; what was there before comes back at its end.
class Screen {
 public:
  Screen() { std::cout << "\x1b[?1049h\x1b[?25l" << std::flush; }
  ~Screen() { std::cout << "\x1b[?25h\x1b[?1049l" << std::flush; }

  static TerminalSize size() {
    TerminalSize size = SizeOfTerminal();
    if (size.rows == 0) size.rows = 24;
    if (size.columns == 0) size.columns = 80;
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
    const Heard ctrl_c(SIGINT, Interrupt), ctrl_backslash(SIGQUIT, Interrupt);
    const Heard term(SIGTERM, Interrupt), cont(SIGCONT, Continue);
    std::optional<Heard> ctrl_z(std::in_place, SIGTSTP, Suspend);
    std::thread jobs([this] {
      const absl::Status status = follower_.Run();
      std::lock_guard lock(mutex_);
      ended_ = true;
      status_ = status;
    });
    std::thread workers([this] { LookAtWorkers(); });
    while (!interrupted && !ended()) {
      if (suspended.exchange(false)) {
        screen_.reset();
        ctrl_z.reset();
        raise(SIGTSTP);  // stands still here
        ctrl_z.emplace(SIGTSTP, Suspend);
        continued = true;
      }
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
    const TerminalSize size = Screen::size();
    std::vector<std::string> lines;
    {
      std::lock_guard lock(mutex_);
      if (!(jobs_told_ && workers_told_) && !lost_) return;
      changed_ = continued.exchange(false) || changed_;
      if (!std::exchange(changed_, false) && size == drawn_) return;
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
  TerminalSize drawn_;

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
