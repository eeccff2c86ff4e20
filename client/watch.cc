// lora watch

#include <grpcpp/grpcpp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/calls/error.h"
#include "client/calls/session.h"
#include "client/json.h"
#include "client/progress.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Job;
using lorad::v1::Jobs;

struct Options {
  std::vector<std::string> jobs;
  bool until_done = false;
};

// How long a watch waits for a daemon that went away, e.g. to be started again.
constexpr int kLostSecondsMax = 60;

std::int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int TerminalColumns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// One run of `lora watch`: follows the stream, and takes it up again where it broke.
class Watch {
 public:
  Watch(Session& session, const Options& options)
      : session_(session),
        options_(options),
        view_(std::cout, isatty(STDOUT_FILENO) != 0, TerminalColumns()) {}

  absl::Status Run() {
    std::int64_t lost_since_ms = 0;
    for (;;) {
      const std::int64_t revision_before = revision_;
      const grpc::Status status = Follow();
      if (finished_) return Verdict();
      if (revision_ != revision_before) lost_since_ms = 0;
      if (status.error_code() == grpc::StatusCode::OUT_OF_RANGE && revision_ > 0) {
        revision_ = 0;  // that far back nothing is kept: start with the present state
        continue;
      }
      const bool lost = status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                        status.error_code() == grpc::StatusCode::CANCELLED;
      if (!lost || !connected_) return session_.FromRpc(status);
      if (lost_since_ms == 0) {
        lost_since_ms = NowMs();
        std::cerr << "lora: lost " << session_.server << "; trying again\n";
      }
      if (NowMs() - lost_since_ms > kLostSecondsMax * 1000) {
        return status.ok() ? Error("STREAM_ENDED", "the daemon ended the watch")
                           : session_.FromRpc(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }

 private:
  // Reads one stream to its end, or until every job is done.
  grpc::Status Follow() {
    Jobs::Stub stub(session_.channel());
    grpc::ClientContext context;
    lorad::v1::WatchJobsRequest request;
    for (const std::string& name : options_.jobs) request.add_names(name);
    request.set_resume_from_revision(revision_);
    const auto stream = stub.WatchJobs(&context, request);
    lorad::v1::WatchJobsResponse response;
    while (stream->Read(&response)) {
      connected_ = true;
      revision_ = std::max(revision_, response.revision());
      Show(response.job());
      if (!options_.until_done || !AllDone()) continue;
      finished_ = true;
      context.TryCancel();
      break;
    }
    return stream->Finish();
  }

  void Show(const Job& job) {
    states_[job.name()] = job.state();
    errors_[job.name()] = job.error().message();
    if (session_.json) {
      std::cout << ToJson(job) << std::endl;
    } else {
      view_.Update(job, NowMs());
    }
  }

  bool AllDone() const {
    for (const auto& [name, state] : states_) {
      if (!IsDone(state)) return false;
    }
    // The present state of the named jobs comes one by one.
    for (const std::string& name : options_.jobs) {
      if (states_.find(name) == states_.end()) return false;
    }
    return true;
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
  ProgressView view_;
  std::map<std::string, Job::State> states_;
  std::map<std::string, std::string> errors_;
  std::int64_t revision_ = 0;
  bool connected_ = false;
  bool finished_ = false;
};

}  // namespace

void AddWatchCommand(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();
  CLI::App& watch = *app.add_subcommand("watch", "Follow jobs while they change");
  watch.add_option("jobs", options->jobs, "Ids")->required();
  watch.add_flag("--until-done", options->until_done,
                 "End when all are done, with 0 only if all succeeded");
  watch.callback([&session, options] {
    session.action = [&session, options] { return Watch(session, *options).Run(); };
  });
}

}  // namespace lorad::client
