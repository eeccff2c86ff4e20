// lora pause | resume | finish | cancel | update

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/calls/find_job.h"
#include "client/calls/range.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/text/json.h"
#include "client/text/labels.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Job;
using lorad::v1::Jobs;

// Others may change the job in between: so long labels are read and written again, after pauses
// that grow and are drawn by lot, so that many who come at once do not go on in step.
constexpr std::chrono::seconds kTriesMax(5);
constexpr std::chrono::duration<double> kPause(0.01), kPauseMax(0.25);

struct Options {
  std::vector<std::string> names;
  std::string name;
  std::optional<int> priority;
  std::vector<std::string> labels;
  std::vector<std::string> removed_labels;
  std::string etag;
};

template <typename Request>
absl::Status ChangeEach(Session& session, Method<Jobs::Stub, Request, Job> method,
                        std::vector<std::string>& names) {
  return OnEachJob(session, names, [&](const std::string& name) {
    Request request;
    request.set_name(name);
    Job job;
    const auto status = Call(session, method, request, job);
    if (!status.ok()) return status;
    if (session.json) std::cout << ToJson(job) << "\n";
    constexpr bool kCancels = std::is_same_v<Request, lorad::v1::CancelJobRequest>;
    const bool ended = job.state() == Job::SUCCEEDED || job.state() == Job::FAILED;
    if (!session.json) {
      std::cerr << name << ": " << Job::State_Name(job.state())
                << (kCancels && ended ? ": it had ended already, so nothing is cancelled" : "")
                << (job.finish_step() > 0 && !kCancels
                        ? absl::StrCat(", ends at step ", job.finish_step(), " of ",
                                       job.total_steps())
                        : "")
                << "\n";
    }
    return status;
  });
}

// The job's labels as they are, changed as asked, and the etag that they had.
absl::Status FillLabels(Session& session, const Options& options, Job& values) {
  lorad::v1::GetJobRequest request;
  request.set_name(options.name);
  Job job;
  if (auto status = Call(session, &Jobs::Stub::GetJob, request, job); !status.ok()) return status;
  auto& labels = *values.mutable_labels();
  labels = job.labels();
  for (const std::string& key : options.removed_labels) labels.erase(key);
  for (const std::string& label : options.labels) {
    const auto [key, value] = SplitLabel(label);
    labels[key] = value;
  }
  values.set_etag(options.etag.empty() ? job.etag() : options.etag);
  return absl::OkStatus();
}

absl::Status Update(Session& session, Options& options) {
  if (auto status = FindJob(session, options.name); !status.ok()) return status;
  const bool changes_labels = !options.labels.empty() || !options.removed_labels.empty();
  lorad::v1::UpdateJobRequest request;
  Job& values = *request.mutable_job();
  values.set_name(options.name);
  values.set_etag(options.etag);
  if (options.priority) {
    values.set_priority(*options.priority);
    request.mutable_update_mask()->add_paths("priority");
  }
  if (changes_labels) request.mutable_update_mask()->add_paths("labels");
  Job job;
  const auto end = std::chrono::steady_clock::now() + kTriesMax;
  std::mt19937 lots(std::random_device{}());
  for (auto pause = kPause;; pause = std::min(2 * pause, kPauseMax)) {
    if (changes_labels) {
      if (auto status = FillLabels(session, options, values); !status.ok()) return status;
    }
    const auto status = Call(session, &Jobs::Stub::UpdateJob, request, job);
    if (status.ok()) break;
    if (ReasonOf(status) != "ETAG_MISMATCH" || !options.etag.empty()) return status;
    if (std::chrono::steady_clock::now() >= end) {
      return Error("CHANGED_MEANWHILE",
                   absl::StrCat("others change ", options.name,
                                " all the time, so its labels are as they left them: try again"));
    }
    std::this_thread::sleep_for(pause * std::uniform_real_distribution<>(0.5, 1)(lots));
  }
  if (session.json) {
    std::cout << ToJson(job) << "\n";
  } else {
    std::cerr << job.name() << ": priority " << job.priority() << ", labels " << LabelsText(job)
              << "\n";
  }
  return absl::OkStatus();
}

void AddUpdate(CLI::App& app, Session& session, const std::shared_ptr<Options>& options) {
  CLI::App& update = *app.add_subcommand("update", "Change a job's priority and labels");
  update.add_option("job", options->name, "The job's id, or its name")->required();
  update.add_option("--priority", options->priority, "Higher ones are placed first")
      ->check(From(-100, 100));
  update.add_option("--label", options->labels, "KEY=VALUE, to be added or changed")
      ->check(CheckLabel);
  update.add_option("--remove-label", options->removed_labels, "KEY, to be taken away");
  CLI::Option* etag =
      update.add_option("--etag", options->etag, "Change it only if the job still has this etag");
  update.callback([&session, options, etag] {
    if (etag->count() > 0 && options->etag.empty()) {
      throw CLI::ValidationError("--etag",
                                 "is empty: give the etag of the job as it was read "
                                 "(`lora show JOB --json`), or leave --etag out");
    }
    if (!options->priority && options->labels.empty() && options->removed_labels.empty()) {
      throw CLI::RequiredError("what is to change (--priority, --label or --remove-label)");
    }
    for (const std::string& label : options->labels) {
      const std::string key = SplitLabel(label).first;
      if (std::ranges::count(options->removed_labels, key) > 0) {
        throw CLI::ValidationError(
            "--remove-label", absl::StrCat("'", key, "' is also given by --label: choose one"));
      }
    }
    session.action = [&session, options] { return Update(session, *options); };
  });
}

}  // namespace

void AddChangeCommands(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();

  CLI::App& pause =
      *app.add_subcommand("pause", "Save jobs and take them off their workers, until resumed");
  pause.add_option("jobs", options->names, "Ids or names")->required();
  pause.callback([&session, options] {
    session.action = [&session, options] {
      return ChangeEach(session, &Jobs::Stub::PauseJob, options->names);
    };
  });

  CLI::App& resume =
      *app.add_subcommand("resume", "Let paused jobs go on from where they were saved");
  resume.add_option("jobs", options->names, "Ids or names")->required();
  resume.callback([&session, options] {
    session.action = [&session, options] {
      return ChangeEach(session, &Jobs::Stub::ResumeJob, options->names);
    };
  });

  CLI::App& finish = *app.add_subcommand(
      "finish", "End jobs with what they have: their last step is saved, and they SUCCEED");
  finish.add_option("jobs", options->names, "Ids or names")->required();
  finish.callback([&session, options] {
    session.action = [&session, options] {
      return ChangeEach(session, &Jobs::Stub::FinishJob, options->names);
    };
  });

  CLI::App& cancel = *app.add_subcommand(
      "cancel", "Stop jobs; their last step is saved where that is quick, their checkpoints stay");
  cancel.add_option("jobs", options->names, "Ids or names")->required();
  cancel.callback([&session, options] {
    session.action = [&session, options] {
      return ChangeEach(session, &Jobs::Stub::CancelJob, options->names);
    };
  });

  AddUpdate(app, session, options);
}

}  // namespace lorad::client
