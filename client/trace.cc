// lora trace

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/calls/find_job.h"
#include "client/calls/range.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/text/chrome_trace.h"
#include "client/text/json.h"
#include "client/text/stages.h"
#include "client/whole_file.h"
#include "lorad/v1/cluster.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Cluster;
using lorad::v1::Trace;

struct Options {
  std::string file;
  v1::GetTraceRequest request;
};

double EndOf(const google::protobuf::RepeatedPtrField<Trace::Bar>& bars) {
  double end_ms = 0;
  for (const Trace::Bar& bar : bars) end_ms = std::max(end_ms, bar.end_ms());
  return end_ms;
}

void Print(const Trace& trace) {
  std::cout << trace.group() << ", epoch " << trace.epoch() << ", " << trace.base_model() << ": "
            << trace.microbatches_size() << " microbatches in "
            << absl::StrFormat("%.1f ms", EndOf(trace.bars()));
  if (trace.simulated_bars_size() > 0) {
    std::cout << absl::StrFormat(
        ", bubble %.1f %%; without waits but for one another %.1f ms, %.1f %%",
        100 * trace.bubble_ratio(), EndOf(trace.simulated_bars()),
        100 * trace.simulated_bubble_ratio());
  }
  std::cout << "\n\n";
  StageTable table;
  for (int stage = 0; stage < trace.stages_size(); ++stage) {
    table.Add(trace.group(), stage, trace.stages(stage));
  }
  table.Print(std::cout);
}

absl::Status Show(Session& session, Options& options) {
  if (auto status = FindJob(session, *options.request.mutable_job()); !status.ok()) return status;
  Trace trace;
  auto status = Call(session, &Cluster::Stub::GetTrace, options.request, trace);
  if (!status.ok()) return status;
  if (!options.file.empty()) {
    status = WriteWhole(options.file, ToChromeTrace(trace));
    if (!status.ok()) return status;
  }
  if (session.json) {
    std::cout << ToJson(trace) << "\n";
  } else {
    Print(trace);
  }
  if (!options.file.empty()) {
    std::cerr << "lora: " << options.file
              << " is written: open it in ui.perfetto.dev or chrome://tracing\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddTraceCommand(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();
  CLI::App& trace = *app.add_subcommand(
      "trace",
      "What the workers of a job's group did of late, moment by moment, and what their "
      "order would have allowed");
  trace
      .add_option_function<std::string>(
          "job", [options](const std::string& job) { options->request.set_job(job); },
          "Its id or name")
      ->required();
  trace.add_option("-o,--output", options->file, "Write a Chrome trace into this file")
      ->check(CheckFile);
  trace
      .add_option_function<int>(
          "--microbatches", [options](int count) { options->request.set_microbatches(count); },
          "Of the newest so many (256)")
      ->check(From(1, 1024));
  trace.callback([&session, options] {
    session.action = [&session, options] { return Show(session, *options); };
  });
}

}  // namespace lorad::client
