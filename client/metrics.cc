// lora metrics

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <limits>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/calls/find_job.h"
#include "client/calls/range.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/text/json.h"
#include "client/text/plot.h"
#include "client/text/table.h"
#include "client/text/width.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::GetMetricsRequest;
using lorad::v1::GetMetricsResponse;
using lorad::v1::Jobs;

struct Options {
  std::string job;
  bool evaluation = false;
  bool csv = false;
  bool plot = false;
  std::int64_t after_step = 0;
};

constexpr int kPlotRows = 16;
constexpr int kPlotColumnsMin = 40, kPlotColumnsMax = 120,
              kPlotColumns = 80;  // where there is no terminal

// Calls `each` with every page of a series.
absl::Status EachPage(Session& session, const Options& options, bool evaluation,
                      absl::FunctionRef<void(const GetMetricsResponse&)> each) {
  GetMetricsRequest request;
  request.set_job(options.job);
  request.set_series(evaluation ? GetMetricsRequest::EVALUATION : GetMetricsRequest::TRAINING);
  // Evaluations begin at step 0, training at step 1.
  request.set_after_step(evaluation && options.after_step == 0 ? -1 : options.after_step);
  request.set_page_size(10000);
  for (bool more = true; more;) {
    GetMetricsResponse response;
    const auto status = Call(session, &Jobs::Stub::GetMetrics, request, response);
    if (!status.ok()) return status;
    each(response);
    more = response.more() && (response.steps_size() > 0 || response.evaluations_size() > 0);
    if (response.steps_size() > 0) request.set_after_step(response.steps().rbegin()->step());
    if (response.evaluations_size() > 0) {
      request.set_after_step(response.evaluations().rbegin()->step());
    }
  }
  return absl::OkStatus();
}

absl::Status PrintTable(Session& session, const Options& options) {
  Table table(options.evaluation
                  ? std::vector<std::string>{"STEP", "VALIDATION LOSS", "TOKENS"}
                  : std::vector<std::string>{"STEP", "LOSS", "GRADIENT NORM", "LEARNING RATE",
                                             "TRAINED", "TOKENS", "MS"});
  const auto status =
      EachPage(session, options, options.evaluation, [&](const GetMetricsResponse& page) {
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
      });
  if (status.ok() && !session.json) table.Print(std::cout);
  return status;
}

// Every value as it is: 17 digits give the same double again.
absl::Status PrintCsv(Session& session, const Options& options) {
  std::cout << (options.evaluation
                    ? "step,validation_loss,trained_tokens\n"
                    : "step,loss,grad_norm,learning_rate,trained_tokens,tokens,step_time_ms\n");
  return EachPage(session, options, options.evaluation, [&](const GetMetricsResponse& page) {
    for (const auto& step : page.steps()) {
      std::cout << absl::StrFormat("%d,%.17g,%.17g,%.17g,%d,%d,%.17g\n", step.step(), step.loss(),
                                   step.grad_norm(), step.learning_rate(), step.trained_tokens(),
                                   step.tokens(), step.step_time_ms());
    }
    for (const auto& evaluation : page.evaluations()) {
      std::cout << absl::StrFormat("%d,%.17g,%d\n", evaluation.step(), evaluation.validation_loss(),
                                   evaluation.trained_tokens());
    }
  });
}

absl::Status Plot(Session& session, const Options& options) {
  std::vector<Curve> curves = {{.mark = '*'}, {.mark = 'o'}};
  for (const bool evaluation : {false, true}) {
    if (options.evaluation && !evaluation) continue;
    const auto status = EachPage(session, options, evaluation, [&](const GetMetricsResponse& page) {
      for (const auto& step : page.steps()) {
        curves[0].points.emplace_back(step.step(), step.loss());
      }
      for (const auto& one : page.evaluations()) {
        curves[1].points.emplace_back(one.step(), one.validation_loss());
      }
    });
    if (!status.ok()) return status;
  }
  const int terminal = TerminalColumns();
  const int columns =
      terminal == 0 ? kPlotColumns : std::clamp(terminal, kPlotColumnsMin, kPlotColumnsMax);
  const std::vector<std::string> lines = PlotLines(curves, columns, kPlotRows);
  if (lines.empty()) {
    std::cerr << options.job << " has no losses yet\n";
    return absl::OkStatus();
  }
  if (!curves[0].points.empty()) std::cout << "* loss" << (curves[1].points.empty() ? "\n" : "   ");
  if (!curves[1].points.empty()) std::cout << "o validation loss\n";
  for (const std::string& line : lines) std::cout << line << "\n";
  return absl::OkStatus();
}

absl::Status Metrics(Session& session, Options& options) {
  if (auto status = FindJob(session, options.job); !status.ok()) return status;
  if (options.csv) return PrintCsv(session, options);
  if (options.plot) return Plot(session, options);
  return PrintTable(session, options);
}

}  // namespace

void AddMetricsCommand(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();
  CLI::App& metrics = *app.add_subcommand("metrics", "Loss and more of every step of a job");
  metrics.add_option("job", options->job, "The job's id, or its name")->required();
  metrics.add_flag("--evaluation", options->evaluation, "Validation losses instead");
  metrics.add_option("--after-step", options->after_step, "Only later steps")
      ->check(From(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  CLI::Option* csv = metrics.add_flag("--csv", options->csv, "As CSV, with all digits");
  metrics.add_flag("--plot", options->plot, "Losses over steps as a picture of letters")
      ->excludes(csv);
  metrics.callback([&session, options] {
    if (session.json && (options->csv || options->plot)) {
      throw CLI::ExcludesError("--json", options->csv ? "--csv" : "--plot");
    }
    session.action = [&session, options] { return Metrics(session, *options); };
  });
}

}  // namespace lorad::client
