// lora ls | show | events | rm

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iostream>
#include <iterator>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/calls/error.h"
#include "client/calls/find_job.h"
#include "client/calls/range.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/text/adapter.h"
#include "client/text/forecast.h"
#include "client/text/json.h"
#include "client/text/labels.h"
#include "client/text/plot.h"
#include "client/text/table.h"
#include "client/text/training.h"
#include "client/text/width.h"
#include "lorad/v1/checkpoints.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Job;
using lorad::v1::Jobs;

constexpr std::int64_t kPageMax = 1000;  // of ListJobs
constexpr int kLossesMax = 10'000;       // of GetMetrics; so many of the newest are drawn
constexpr int kSparklineColumns = 48;
constexpr int kFieldColumns = 25;  // of the table's first column, and what is before the next

struct Options {
  std::string filter;
  std::optional<std::int64_t> limit;
  std::string name;
  std::vector<std::string> names;
};

std::string LossOrDash(bool known, double loss) { return known ? LossText(loss) : "-"; }

// Before training and now; one alone until it is evaluated again.
std::string ValidationText(const Job& job) {
  const std::string initial =
      LossOrDash(job.has_initial_validation_loss(), job.initial_validation_loss());
  if (!job.has_validation_loss()) return initial;
  const std::string now = LossText(job.validation_loss());
  return job.has_initial_validation_loss() && job.validation_loss() == job.initial_validation_loss()
             ? absl::StrCat(now, " before training")
             : absl::StrCat(initial, " -> ", now);
}

std::string StateText(const Job& job) {
  return absl::StrCat(Job::State_Name(job.state()), job.stalled().empty() ? "" : ", stalled",
                      job.unsaved().empty() ? "" : ", not saved");
}

std::string StepsText(const Job& job) { return absl::StrCat(job.step(), "/", job.total_steps()); }

std::vector<std::string> RowOf(const Job& job) {
  std::array cells{job.name(),
                   job.display_name().empty() ? "-" : job.display_name(),
                   StateText(job),
                   job.base_model(),
                   absl::StrCat(job.adapter().rank()),
                   StepsText(job),
                   LossOrDash(job.has_loss(), job.loss()),
                   LossOrDash(job.has_validation_loss(), job.validation_loss()),
                   PaceText(job.tokens_per_second()),
                   job.has_seconds_left() ? DurationText(job.seconds_left()) : "-",
                   TimeText(job.create_time())};
  // A list of initializers would copy each of ten thousand jobs' cells.
  return {std::make_move_iterator(cells.begin()), std::make_move_iterator(cells.end())};
}

// On a terminal the columns fit it; the last one goes first, and of the others those that are asked
// for the least.
absl::Status List(Session& session, const Options& options) {
  Table table({"JOB", "NAME", "STATE", "MODEL", "RANK", "STEP", "LOSS", "VALIDATION", "TOKENS/S",
               "LEFT", "CREATED"});
  lorad::v1::ListJobsRequest request;
  request.set_filter(options.filter);
  if (!session.json) request.set_view(lorad::v1::ListJobsRequest::SUMMARY);
  std::int64_t left = options.limit.value_or(std::numeric_limits<std::int64_t>::max());
  const auto take = [&](const lorad::v1::ListJobsResponse& page) {
    for (const Job& job : page.jobs()) {
      if (left-- <= 0) return;
      if (session.json) {
        std::cout << ToJson(job) << "\n";
      } else {
        table.Add(RowOf(job));
      }
    }
  };
  absl::Status status;
  if (left <= kPageMax) {
    request.set_page_size(static_cast<std::int32_t>(left));
    lorad::v1::ListJobsResponse page;
    status = Call(session, &Jobs::Stub::ListJobs, request, page);
    if (status.ok()) take(page);
  } else {
    status = ForEachPage(session, &Jobs::Stub::ListJobs, request, take);
  }
  if (!status.ok() || session.json) return status;
  table.PrintFit(std::cout, TerminalColumns(), {0, 3, 1, 6, 9, 2, 4, 7, 5, 8});
  return status;
}

// The newest that is there: the job knows the last that was saved, which may be deleted.
absl::StatusOr<std::string> NewestCheckpoint(Session& session, const Job& job) {
  if (job.last_checkpoint_step() == 0) return "-";
  lorad::v1::GetCheckpointRequest request;
  request.set_job(job.name());
  lorad::v1::Checkpoint newest;
  const auto status = Call(session, &lorad::v1::Checkpoints::Stub::GetCheckpoint, request, newest);
  if (status.ok()) return absl::StrCat("step ", newest.step());
  if (ReasonOf(status) == "CHECKPOINT_NOT_FOUND") return "none: all were deleted";
  return status;
}

void AddProgress(const Job& job, const std::string& newest_checkpoint, Table& table) {
  table.Add({"step", StepsText(job)});
  if (job.finish_step() > 0) {
    table.Add({"finish", absl::StrCat("its user asked it to end at step ", job.finish_step(),
                                      " of ", job.total_steps())});
  }
  table.Add({"epoch", absl::StrFormat("%.2f", job.epoch())});
  if (job.sequences() > 0) table.Add({"sequences", absl::StrCat(job.sequences())});
  if (job.truncated_rows() > 0) {
    table.Add({"truncated rows", absl::StrFormat("%d, cut at %d tokens", job.truncated_rows(),
                                                 job.training().max_length())});
  }
  if (job.skipped_rows() > 0) table.Add({"skipped rows", absl::StrCat(job.skipped_rows())});
  table.Add({"tokens", absl::StrCat(job.tokens(), " of ", job.total_tokens())});
  table.Add({"tokens/s", PaceText(job.tokens_per_second())});
  table.Add({"loss", LossOrDash(job.has_loss(), job.loss())});
  table.Add({"validation loss", ValidationText(job)});
  table.Add({"learning rate", job.has_learning_rate() ? RateText(job.learning_rate()) : "-"});
  table.Add({"gradient norm", LossOrDash(job.has_grad_norm(), job.grad_norm())});
  table.Add({"time left", job.has_seconds_left() ? DurationText(job.seconds_left()) : "-"});
  table.Add({"last checkpoint", newest_checkpoint});
  if (!job.group().empty()) {
    table.Add({"group", absl::StrCat(job.group(), ", with ", job.packed_with(),
                                     job.packed_with() == 1 ? " other" : " others")});
  }
  table.Add({"adapters per microbatch", absl::StrFormat("%.2f", job.adapters_per_microbatch())});
}

// On a terminal alone: elsewhere `lora metrics` has the numbers.
absl::Status AddLosses(Session& session, const Job& job, Table& table) {
  const int columns = std::min(TerminalColumns() - kFieldColumns, kSparklineColumns);
  if (columns < 8 || job.step() == 0) return absl::OkStatus();
  lorad::v1::GetMetricsRequest request;
  request.set_job(job.name());
  request.set_after_step(std::max<std::int64_t>(job.step() - kLossesMax, 0));
  request.set_page_size(kLossesMax);
  lorad::v1::GetMetricsResponse response;
  const auto status = Call(session, &Jobs::Stub::GetMetrics, request, response);
  if (!status.ok()) return status;
  std::vector<std::pair<std::int64_t, double>> points;
  for (const auto& step : response.steps()) {
    if (step.step() <= job.step()) points.emplace_back(step.step(), step.loss());
  }
  const std::string line = Sparkline(points, columns, WritesUtf8());
  if (!line.empty()) table.Add({"losses", line});
  return status;
}

// When it started and ended, and what was foretold of that at first.
void AddMoments(const Job& job, Table& table) {
  table.Add({"started", TimeText(job.start_time())});
  const lorad::v1::Forecast& foretold = job.first_forecast();
  const bool again = job.has_foretold_start_time() && job.has_start_time() &&
                     TimeText(job.foretold_start_time()) != TimeText(job.start_time());
  if (again) table.Add({"went on", TimeText(job.foretold_start_time())});
  if (foretold.has_start_time()) table.Add({"start foretold", ForetoldStartText(foretold)});
  table.Add({"ended", TimeText(job.end_time())});
  if (foretold.has_end_time()) table.Add({"end foretold", ForetoldEndText(foretold)});
  if (job.has_first_forecast()) table.Add({"foretold at", TimeText(foretold.make_time())});
}

absl::Status Show(Session& session, Options& options) {
  if (auto status = FindJob(session, options.name); !status.ok()) return status;
  lorad::v1::GetJobRequest request;
  request.set_name(options.name);
  Job job;
  const auto status = Call(session, &Jobs::Stub::GetJob, request, job);
  if (!status.ok()) return status;
  if (session.json) {
    std::cout << ToJson(job) << "\n";
    return status;
  }
  const absl::StatusOr<std::string> newest_checkpoint = NewestCheckpoint(session, job);
  if (!newest_checkpoint.ok()) return newest_checkpoint.status();
  Table table = Table::OfFields();
  table.Add({"job", job.name()});
  if (!job.display_name().empty()) table.Add({"name", job.display_name()});
  table.Add({"state", Job::State_Name(job.state())});
  if (job.has_error()) {
    table.Add({"error", absl::StrCat(job.error().reason(), ": ", job.error().message())});
    if (!job.error().field().empty()) table.Add({"field", job.error().field()});
    if (job.error().line() > 0) table.Add({"line", absl::StrCat(job.error().line())});
  }
  if (!job.stalled().empty()) table.Add({"stalled", job.stalled()});
  if (!job.unsaved().empty()) table.Add({"not saved", job.unsaved()});
  for (const std::string& warning : job.warnings()) table.Add({"warning", warning});
  if (job.has_queue()) {
    const int place = job.queue().place();
    table.Add({"queue", absl::StrCat(place > 0 ? absl::StrCat("place ", place, ": ") : "",
                                     job.queue().why())});
  }
  if (job.queue().has_forecast()) AddForecast(job.queue().forecast(), table);
  table.Add({"priority", absl::StrCat(job.priority())});
  if (!job.labels().empty()) table.Add({"labels", LabelsText(job)});
  table.Add({"base model", job.base_model()});
  table.Add({"training dataset", job.training_dataset()});
  table.Add(
      {"validation dataset", job.validation_dataset().empty() ? "-" : job.validation_dataset()});
  AddAdapter(job.adapter(), table);
  AddTraining(job.training(), table);
  if (!job.validation_dataset().empty()) AddEvaluations(job.training(), table);
  AddProgress(job, *newest_checkpoint, table);
  if (auto added = AddLosses(session, job, table); !added.ok()) return added;
  table.Add({"created", TimeText(job.create_time())});
  AddMoments(job, table);
  table.PrintFields(std::cout, TerminalColumns());
  return status;
}

absl::Status Events(Session& session, Options& options) {
  if (auto status = FindJob(session, options.name); !status.ok()) return status;
  lorad::v1::ListEventsRequest request;
  request.set_job(options.name);
  Table table({"TIME", "REASON", "MESSAGE"});
  const auto status = ForEachPage(
      session, &Jobs::Stub::ListEvents, request, [&](const lorad::v1::ListEventsResponse& page) {
        for (const lorad::v1::Event& event : page.events()) {
          if (session.json) std::cout << ToJson(event) << "\n";
          const std::string times =
              event.count() > 1 ? absl::StrCat(" (", event.count(), " times)") : "";
          table.Add({TimeText(event.time()), event.reason() + times, event.message()});
        }
      });
  if (status.ok() && !session.json) table.Print(std::cout);
  return status;
}

absl::Status Remove(Session& session, Options& options) {
  return OnEachJob(session, options.names, [&](const std::string& name) {
    lorad::v1::DeleteJobRequest request;
    request.set_name(name);
    google::protobuf::Empty empty;
    return Call(session, &Jobs::Stub::DeleteJob, request, empty);
  });
}

}  // namespace

void AddJobCommands(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();

  CLI::App& list = *app.add_subcommand("ls", "List jobs, newest first");
  list.add_option("--filter", options->filter,
                  "Terms joined by AND: state = RUNNING, base_model = X, labels.KEY != X");
  list.add_option("--limit", options->limit, "The newest so many alone")
      ->check(From(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  list.callback([&session, options] {
    session.action = [&session, options] { return List(session, *options); };
  });

  CLI::App& show = *app.add_subcommand("show", "Show a job");
  show.add_option("job", options->name, "The job's id, or its name")->required();
  show.callback([&session, options] {
    session.action = [&session, options] { return Show(session, *options); };
  });

  CLI::App& events = *app.add_subcommand("events", "What happened to a job");
  events.add_option("job", options->name, "The job's id, or its name")->required();
  events.callback([&session, options] {
    session.action = [&session, options] { return Events(session, *options); };
  });

  CLI::App& remove = *app.add_subcommand("rm", "Delete finished jobs with all they saved");
  remove.add_option("jobs", options->names, "Ids or names")->required();
  remove.callback([&session, options] {
    session.action = [&session, options] { return Remove(session, *options); };
  });
}

}  // namespace lorad::client
