// lora metrics

#include <CLI/CLI.hpp>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "client/calls/find_job.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/text/json.h"
#include "client/text/table.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::GetMetricsRequest;
using lorad::v1::GetMetricsResponse;
using lorad::v1::Jobs;

struct Options {
  std::string job;
  bool evaluation = false;
  std::int64_t after_step = 0;
};

void Collect(const GetMetricsResponse& page, const Session& session, Table& table) {
  for (const auto& step : page.steps()) {
    if (session.json) std::cout << ToJson(step) << "\n";
    table.Add({absl::StrCat(step.step()), LossText(step.loss()), LossText(step.grad_norm()),
               RateText(step.learning_rate()), absl::StrCat(step.trained_tokens()),
               absl::StrCat(step.tokens()), CountText(step.step_time_ms())});
  }
  for (const auto& evaluation : page.evaluations()) {
    if (session.json) std::cout << ToJson(evaluation) << "\n";
    table.Add({absl::StrCat(evaluation.step()), LossText(evaluation.validation_loss()),
               absl::StrCat(evaluation.trained_tokens())});
  }
}

absl::Status Metrics(Session& session, Options& options) {
  if (auto status = FindJob(session, options.job); !status.ok()) return status;
  GetMetricsRequest request;
  request.set_job(options.job);
  request.set_series(options.evaluation ? GetMetricsRequest::EVALUATION
                                        : GetMetricsRequest::TRAINING);
  // Evaluations begin at step 0, training at step 1.
  request.set_after_step(options.evaluation && options.after_step == 0 ? -1 : options.after_step);
  request.set_page_size(10000);
  Table table(options.evaluation
                  ? std::vector<std::string>{"STEP", "VALIDATION LOSS", "TOKENS"}
                  : std::vector<std::string>{"STEP", "LOSS", "GRADIENT NORM", "LEARNING RATE",
                                             "TRAINED", "TOKENS", "MS"});
  for (bool more = true; more;) {
    GetMetricsResponse response;
    const auto status = Call(session, &Jobs::Stub::GetMetrics, request, response);
    if (!status.ok()) return status;
    Collect(response, session, table);
    more = response.more() && (response.steps_size() > 0 || response.evaluations_size() > 0);
    if (response.steps_size() > 0) request.set_after_step(response.steps().rbegin()->step());
    if (response.evaluations_size() > 0) {
      request.set_after_step(response.evaluations().rbegin()->step());
    }
  }
  if (!session.json) table.Print(std::cout);
  return absl::OkStatus();
}

}  // namespace

void AddMetricsCommand(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();
  CLI::App& metrics = *app.add_subcommand("metrics", "Loss and more of every step of a job");
  metrics.add_option("job", options->job, "The job's id, or its name")->required();
  metrics.add_flag("--evaluation", options->evaluation, "Validation losses instead");
  metrics.add_option("--after-step", options->after_step, "Only later steps");
  metrics.callback([&session, options] {
    session.action = [&session, options] { return Metrics(session, *options); };
  });
}

}  // namespace lorad::client
