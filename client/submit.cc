// lora submit | clone | estimate

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/calls/find_job.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/inputs/job_text.h"
#include "client/inputs/text_file.h"
#include "client/job_file.h"
#include "client/text/forecast.h"
#include "client/text/json.h"
#include "client/text/stages.h"
#include "client/text/table.h"
#include "client/text/width.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Job;
using lorad::v1::Jobs;

struct Options {
  std::string file;
  std::string format;
  std::string peft;
  std::string name;
  std::string request_id;
  std::vector<std::string> settings;
  bool validate_only = false;
};

// The text of adapter_config.json where a PEFT directory is given.
absl::Status AddPeft(const Options& options, Job& job) {
  if (options.peft.empty()) return absl::OkStatus();
  std::error_code error;
  const bool directory = std::filesystem::is_directory(options.peft, error);
  const absl::StatusOr<std::string> config =
      ReadText(directory ? absl::StrCat(options.peft, "/adapter_config.json") : options.peft);
  if (!config.ok()) return config.status();
  if (config->empty()) {
    return Error("USAGE", absl::StrCat(options.peft, directory ? "/adapter_config.json" : "",
                                       " is empty; is it the file that PEFT wrote, whole?"));
  }
  job.mutable_adapter()->set_peft_config(*config);
  return absl::OkStatus();
}

// Sets the fields that are the steps of an epoch: the daemon reads the rows to count them.
absl::Status SetEpochs(Session& session, const EpochFields& fields, Job& job) {
  if (fields.empty()) return absl::OkStatus();
  lorad::v1::EstimateJobRequest request;
  *request.mutable_job() = job;
  v1::TrainingConfig& epoch = *request.mutable_job()->mutable_training();
  epoch.set_epochs(1);
  epoch.clear_max_steps();
  const auto set = [&](v1::TrainingConfig& training, std::int64_t steps) {
    for (const std::string& field : fields) {
      training.GetReflection()->SetInt32(&training,
                                         training.GetDescriptor()->FindFieldByName(field),
                                         static_cast<std::int32_t>(steps));
    }
  };
  set(epoch, 1);  // for what needs them
  lorad::v1::JobEstimate estimate;
  const auto status = Call(session, &Jobs::Stub::EstimateJob, request, estimate, kWorkSeconds);
  if (status.ok()) set(*job.mutable_training(), estimate.total_steps());
  return status;
}

// The job of the file, with what the options say.
absl::StatusOr<Job> ReadJob(Session& session, const Options& options) {
  const absl::StatusOr<JobFormat> format = JobFormatOf(options.file, options.format);
  if (!format.ok()) return format.status();
  const absl::StatusOr<std::string> text = ReadText(options.file);
  if (!text.ok()) return text.status();
  EpochFields by_epoch;
  absl::StatusOr<Job> job =
      ParseJob(*text, options.file == "-" ? "standard input" : options.file, *format, &by_epoch);
  if (!job.ok()) return job;
  if (auto status = SetFields(options.settings, *job, &by_epoch); !status.ok()) return status;
  if (auto status = AddPeft(options, *job); !status.ok()) return status;
  if (auto status = SetEpochs(session, by_epoch, *job); !status.ok()) return status;
  return job;
}

// Beside what is printed for scripts; JSON has them itself.
void PrintWarnings(const google::protobuf::RepeatedPtrField<std::string>& warnings) {
  for (const std::string& warning : warnings) std::cerr << "warning: " << warning << "\n";
}

// Others of its name: from now on commands want an id. What cannot be found out is not said.
void WarnOfName(Session& session, const Job& job) {
  constexpr int kItselfAndAnother = 2;
  if (job.display_name().empty()) return;
  const absl::StatusOr<std::vector<Job>> named =
      JobsNamed(session, job.display_name(), kItselfAndAnother);
  if (!named.ok()) return;
  const auto other =
      std::ranges::find_if(*named, [&](const Job& found) { return found.name() != job.name(); });
  if (other == named->end()) return;
  std::cerr << "warning: " << other->name() << " has the name '" << job.display_name()
            << "', too: commands find each by its id alone\n";
}

absl::Status Create(Session& session, const Options& options, Job job) {
  lorad::v1::CreateJobRequest request;
  *request.mutable_job() = std::move(job);
  request.set_request_id(options.request_id);
  request.set_validate_only(options.validate_only);
  Job created;
  const auto status = Call(session, &Jobs::Stub::CreateJob, request, created,
                           options.validate_only ? kWorkSeconds : kAnswerSeconds);
  if (!status.ok()) return status;
  if (session.json) {
    std::cout << ToJson(created) << "\n";
  } else if (options.validate_only) {
    std::cerr << "valid: " << created.total_steps() << " steps, " << created.total_tokens()
              << " tokens; nothing was stored\n";
  } else {
    std::cout << created.name() << "\n";
  }
  if (!session.json) PrintWarnings(created.warnings());
  if (!options.validate_only && !std::cout.flush()) {
    return Error("OUTPUT_LOST",
                 absl::StrCat("stdout cannot be written; the job was created: ", created.name()));
  }
  WarnOfName(session, created);
  return absl::OkStatus();
}

absl::Status Submit(Session& session, const Options& options) {
  absl::StatusOr<Job> job = ReadJob(session, options);
  if (!job.ok()) return job.status();
  return Create(session, options, *std::move(job));
}

// The same job again, but for what is set.
absl::Status Clone(Session& session, Options& options) {
  if (auto status = FindJob(session, options.name); !status.ok()) return status;
  lorad::v1::GetJobRequest request;
  request.set_name(options.name);
  Job job;
  auto status = Call(session, &Jobs::Stub::GetJob, request, job);
  if (status.ok()) {
    job = InputOf(std::move(job));
    job.clear_display_name();  // by which the other one is found
    EpochFields by_epoch;
    status = SetFields(options.settings, job, &by_epoch);
    if (status.ok()) status = SetEpochs(session, by_epoch, job);
  }
  return status.ok() ? Create(session, options, std::move(job)) : status;
}

constexpr char kSet[] =
    "FIELD=VALUE in the place of what the job says, as in training.learning_rate=1e-3; repeatable";

// The options of what creates a job.
void AddCreation(CLI::App& command, Options* options) {
  command.add_option("--set", options->settings, kSet)->allow_extra_args(false);
  command.add_flag("--validate-only", options->validate_only, "Check everything, store nothing");
  command.add_option("--request-id", options->request_id,
                     "A repeated call with the same content answers with the first one's job");
}

const char* RecomputationText(lorad::v1::Recomputation recomputation) {
  switch (recomputation) {
    case lorad::v1::RECOMPUTE_NOTHING:
      return "nothing";
    case lorad::v1::RECOMPUTE_PRODUCTS:
      return "norms and products";
    case lorad::v1::RECOMPUTE_BLOCKS:
      return "whole blocks: a third more time";
    default:
      return "";
  }
}

std::string FitsText(const lorad::v1::MemoryEstimate& memory, bool fits) {
  return absl::StrCat(BytesText(memory.total()), fits ? "" : ": does not fit");
}

// A job whose model is registered for several stages goes on no worker alone, whatever its room.
std::string AloneText(const lorad::v1::WorkerEstimate& worker) {
  const bool has_room = worker.alone().total() <= worker.budget_bytes();
  if (!worker.fits_alone() && has_room) {
    return absl::StrCat(BytesText(worker.alone().total()), ": not alone");
  }
  return FitsText(worker.alone(), worker.fits_alone());
}

// A job may fit by a worker that is known and away.
std::string FitsText(const lorad::v1::JobEstimate& estimate) {
  const auto is_here = [&](const lorad::v1::StageEstimate& stage) {
    return std::ranges::any_of(
        estimate.workers(), [&](const auto& worker) { return worker.worker() == stage.worker(); });
  };
  if (estimate.stages_size() == 0) {
    if (!estimate.fits()) return "no";
    const bool now =
        std::ranges::any_of(estimate.workers(), &lorad::v1::WorkerEstimate::fits_alone);
    return now ? "yes" : "yes, but on no worker that is connected";
  }
  const auto away = estimate.stages_size() - std::ranges::count_if(estimate.stages(), is_here);
  return absl::StrCat(
      estimate.fits() ? "yes, on " : "no, not even on ", estimate.stages_size(), " workers",
      away == 0 ? "" : absl::StrCat(", of which ", away, away == 1 ? " is" : " are", " away"));
}

void PrintWorkers(const lorad::v1::JobEstimate& estimate) {
  Table table({"WORKER", "ALONE", "BESIDE", "GROUP", "BUDGET"});
  for (const lorad::v1::WorkerEstimate& worker : estimate.workers()) {
    const bool group = !worker.group().empty();
    table.Add({worker.worker(), AloneText(worker),
               !group ? "-"
                      : absl::StrCat(FitsText(worker.beside(), worker.fits_beside()),
                                     worker.forms_again() ? ", formed again" : ""),
               group ? worker.group() : "-", BytesText(worker.budget_bytes())});
  }
  std::cout << "\n";
  table.PrintFit(std::cout, TerminalColumns(), {0, 1, 2, 3});
}

void PrintStages(const lorad::v1::JobEstimate& estimate) {
  Table table({"STAGE", "WORKER", "NEEDS", "BUDGET", "LAYERS"});
  for (int s = 0; s < estimate.stages_size(); ++s) {
    const lorad::v1::StageEstimate& stage = estimate.stages(s);
    table.Add({absl::StrCat(s), stage.worker(), BytesText(stage.bytes()),
               BytesText(stage.budget_bytes()),
               LayersText(stage.first_block(), stage.end_block())});
  }
  std::cout << "\n";
  table.PrintFit(std::cout, TerminalColumns(), {1, 0, 2, 3});
}

absl::Status Estimate(Session& session, Options& options) {
  lorad::v1::EstimateJobRequest request;
  if (options.file.empty()) {
    if (auto status = FindJob(session, options.name); !status.ok()) return status;
    request.set_name(options.name);
  } else {
    const absl::StatusOr<Job> job = ReadJob(session, options);
    if (!job.ok()) return job.status();
    *request.mutable_job() = *job;
  }
  lorad::v1::JobEstimate estimate;
  const auto status = Call(session, &Jobs::Stub::EstimateJob, request, estimate, kWorkSeconds);
  if (!status.ok()) return status;
  if (session.json) {
    std::cout << ToJson(estimate) << "\n";
    return absl::OkStatus();
  }
  const lorad::v1::MemoryEstimate& memory = estimate.peak_memory_bytes();
  Table table = Table::OfFields();
  table.Add({"steps", absl::StrCat(estimate.total_steps())});
  table.Add({"tokens", absl::StrCat(estimate.total_tokens())});
  table.Add({"truncated rows", absl::StrCat(estimate.truncated_rows())});
  table.Add({"skipped rows", absl::StrCat(estimate.skipped_rows())});
  table.Add({"time alone",
             absl::StrCat(DurationText(estimate.seconds()), " (", estimate.seconds_basis(), ")")});
  table.Add({"memory: weights", BytesText(memory.weights())});
  table.Add({"memory: adapters", BytesText(memory.adapters())});
  table.Add({"memory: optimizer", BytesText(memory.optimizer())});
  table.Add({"memory: activations", BytesText(memory.activations())});
  table.Add({"memory: workspace", BytesText(memory.workspace())});
  table.Add({"memory: total", BytesText(memory.total())});
  table.Add({"computed again", RecomputationText(estimate.recomputation())});
  table.Add({"worker's budget", estimate.budget_bytes() == 0 ? "none is connected"
                                                             : BytesText(estimate.budget_bytes())});
  table.Add({"fits", FitsText(estimate)});
  if (estimate.has_forecast()) AddForecast(estimate.forecast(), table);
  if (!estimate.no_forecast().empty()) table.Add({"no forecast", estimate.no_forecast()});
  table.PrintFields(std::cout, TerminalColumns());
  if (estimate.workers_size() > 0) PrintWorkers(estimate);
  if (estimate.stages_size() > 0) PrintStages(estimate);
  PrintWarnings(estimate.warnings());
  return absl::OkStatus();
}

}  // namespace

void AddSubmitCommands(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();

  CLI::App& submit = *app.add_subcommand("submit", "Create a job; prints its id");
  const char* const kFile = "The job, as JSON, YAML or TOML; - reads standard input";
  const char* const kFormat = "Of the file (default: by its name, else json)";
  const char* const kFormats = "TEXT:{json,yaml,toml}";
  submit.add_option("-f,--file", options->file, kFile)->required();
  submit.add_option("--format", options->format, kFormat)->type_name(kFormats);
  const char* const kPeft =
      "A PEFT directory, or its adapter_config.json: the adapter's fields that the job does not "
      "say";
  submit.add_option("--peft", options->peft, kPeft);
  AddCreation(submit, options.get());
  submit.callback([&session, options] {
    session.action = [&session, options] { return Submit(session, *options); };
  });

  CLI::App& clone =
      *app.add_subcommand("clone", "Create a job like another, but for what is set; prints its id");
  clone.add_option("job", options->name, "The job's id, or its name")->required();
  AddCreation(clone, options.get());
  clone.callback([&session, options] {
    session.action = [&session, options] { return Clone(session, *options); };
  });

  CLI::App& estimate = *app.add_subcommand(
      "estimate",
      "Memory and time of a job, and when it starts and ends: a live one, or one not "
      "yet created");
  auto* job = estimate.add_option("job", options->name, "The id or name of a live job");
  auto* file = estimate.add_option("-f,--file", options->file, kFile)->excludes(job);
  estimate.add_option("--format", options->format, kFormat)->needs(file)->type_name(kFormats);
  estimate.add_option("--peft", options->peft, kPeft)->needs(file);
  estimate.add_option("--set", options->settings, kSet)->needs(file)->allow_extra_args(false);
  estimate.callback([&session, options, job, file] {
    if (job->count() + file->count() == 0) {
      throw CLI::RequiredError("a job's id or name, or -f with a file");
    }
    session.action = [&session, options] { return Estimate(session, *options); };
  });
}

}  // namespace lorad::client
