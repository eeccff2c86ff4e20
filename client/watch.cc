// lora watch

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/calls/error.h"
#include "client/calls/find_job.h"
#include "client/calls/follow.h"
#include "client/calls/session.h"
#include "client/live_table.h"
#include "client/text/json.h"
#include "client/text/progress.h"
#include "client/text/width.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Job;
using lorad::v1::WatchJobsResponse;

struct Options {
  std::vector<std::string> jobs;
  bool until_done = false;

  // Of named jobs nothing follows once all are done; of all that are live more may come.
  bool ends() const { return until_done || !jobs.empty(); }
};

constexpr std::chrono::milliseconds kLookEvery(100);  // at what is to be drawn

std::int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// One run of `lora watch` in lines, or in bars where jobs are named.
class Watch {
 public:
  Watch(Session& session, const Options& options)
      : session_(session),
        options_(options),
        bars_(!options.jobs.empty() && !session.json && CanDrawOver()),
        view_(std::cout, std::cerr, bars_, SizeOfTerminal) {}

  absl::Status Run() {
    Following following;
    following.jobs = options_.jobs;
    following.live_only = options_.jobs.empty();
    following.told = [this](const WatchJobsResponse& news) { return Take(news); };
    following.lost = [this] {
      std::lock_guard lock(mutex_);
      view_.Say(absl::StrCat("lora: lost ", session_.server, "; trying again"));
    };
    session_.channel();  // made before there are threads
    std::thread looks([this] { Look(); });
    absl::Status status = Follower(session_, following).Run();
    ended_ = true;
    looks.join();
    {
      std::lock_guard lock(mutex_);
      view_.End();
    }
    return status.ok() ? Verdict() : status;
  }

 private:
  // Bars are drawn once more after the last change, and where the terminal has changed.
  void Look() {
    while (bars_ && !ended_) {
      std::this_thread::sleep_for(kLookEvery);
      std::lock_guard lock(mutex_);
      view_.Look(NowMs());
    }
  }

  bool Take(const WatchJobsResponse& news) {
    std::lock_guard lock(mutex_);
    if (news.deleted()) {
      ShowDeleted(news.job());
    } else if (news.has_job()) {
      Show(news.job());
    } else {
      present_told_ = true;
    }
    return !options_.ends() || !AllDone();
  }

  void Show(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SayPaused(job);
    states_[job.name()] = job.state();
    errors_[job.name()] = job.error().message();
    if (session_.json) {
      std::cout << ToJson(job) << std::endl;
    } else {
      view_.Update(job, NowMs());
    }
  }

  void ShowDeleted(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (session_.json) {
      std::cout << "{\"name\": \"" << job.name() << "\", \"deleted\": true}" << std::endl;
    } else {
      view_.Delete(job);
    }
  }

  // A paused job is not done: the watch goes on, perhaps for days, so it says what it waits for.
  void SayPaused(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!options_.ends() || job.state() != Job::PAUSED) return;
    const auto before = states_.find(job.name());
    if (before != states_.end() && before->second == Job::PAUSED) return;
    view_.Say(absl::StrCat("lora: ", job.name(),
                           " is PAUSED; waiting until it is resumed (`lora resume ", job.name(),
                           "`) or cancelled"));
  }

  bool AllDone() const {
    for (const auto& [name, state] : states_) {
      if (!IsDone(state)) return false;
    }
    // The present state comes one by one.
    for (const std::string& name : options_.jobs) {
      if (states_.find(name) == states_.end()) return false;
    }
    return !options_.jobs.empty() || present_told_;
  }

  absl::Status Verdict() const {
    std::vector<std::string> lines;
    for (const auto& [name, state] : states_) {
      if (state == Job::SUCCEEDED) continue;
      lines.push_back(absl::StrCat(name, ": ", Job::State_Name(state),
                                   errors_.at(name).empty() ? "" : ": ", errors_.at(name)));
    }
    if (lines.empty()) return absl::OkStatus();
    return Error("NOT_SUCCEEDED",
                 absl::StrCat(lines.size(), " of ", states_.size(),
                              " jobs did not succeed; `lora events ID` says what happened"),
                 absl::StrJoin(lines, "\n"));
  }

  Session& session_;
  const Options& options_;
  const bool bars_;
  std::atomic<bool> ended_ = false;
  std::mutex mutex_;
  ProgressView view_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Job::State> states_;
  std::map<std::string, std::string> errors_;
  bool present_told_ = false;
};

absl::Status Run(Session& session, Options& options) {
  if (auto status = FindJobs(session, options.jobs); !status.ok()) return status;
  const bool table = !options.ends() && !session.json;
  return table && CanDrawOver() ? ShowLiveTable(session) : Watch(session, options).Run();
}

}  // namespace

void AddWatchCommand(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();
  CLI::App& watch = *app.add_subcommand("watch", "Follow jobs while they change, to their end");
  watch.add_option(
      "jobs", options->jobs,
      "Ids or names: ends when all are done, with 0 only if all succeeded; none: all that "
      "are live, and those that come");
  watch.add_flag("--until-done", options->until_done,
                 "Without ids: end likewise, when none is live");
  watch.callback([&session, options] {
    session.action = [&session, options] { return Run(session, *options); };
  });
}

}  // namespace lorad::client
