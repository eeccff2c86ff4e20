// lora compare

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/calls/error.h"
#include "client/calls/find_job.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/job_file.h"
#include "client/text/json.h"
#include "client/text/table.h"
#include "client/text/width.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Job;
using lorad::v1::Jobs;
using nlohmann::json;

// A line of the table: what it is of, and the value of each job.
struct Row {
  std::string name;
  std::vector<std::string> values;
};

std::string ValueText(const json& value) {
  if (value.is_null()) return "-";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Every field that a client may set, by its path; lists as a whole.
void Flatten(const json& value, const std::string& path, std::map<std::string, json>& fields) {
  if (!value.is_object()) {
    fields[path] = value;
    return;
  }
  for (const auto& [key, part] : value.items()) {
    Flatten(part, path.empty() ? key : absl::StrCat(path, ".", key), fields);
  }
}

// The fields in which the jobs differ, by path. Their names and labels are not what makes them so.
std::map<std::string, std::vector<json>> Differences(const std::vector<Job>& jobs) {
  std::map<std::string, std::vector<json>> all;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    std::map<std::string, json> fields;
    Flatten(json::parse(ToJson(InputOf(jobs[i]))), "", fields);
    for (const auto& [path, value] : fields) {
      all.try_emplace(path, jobs.size()).first->second[i] = value;
    }
  }
  std::erase_if(all, [](const auto& field) {
    const auto& [path, values] = field;
    return path == "display_name" ||
           std::all_of(values.begin(), values.end(),
                       [&](const json& value) { return value == values[0]; });
  });
  return all;
}

double SecondsOf(const Job& job) {
  if (!job.has_start_time() || !job.has_end_time()) return 0;
  return static_cast<double>(job.end_time().seconds() - job.start_time().seconds());
}

std::vector<Row> ResultsOf(const std::vector<Job>& jobs) {
  std::vector<Row> rows = {{"state", {}},         {"steps", {}},           {"tokens", {}},
                           {"loss", {}},          {"validation loss", {}}, {"best validation", {}},
                           {"gradient norm", {}}, {"tokens/s", {}},        {"took", {}}};
  const auto loss = [](bool known, double value) { return known ? LossText(value) : "-"; };
  for (const Job& job : jobs) {
    const std::vector<std::string> values = {
        Job::State_Name(job.state()),
        absl::StrCat(job.step(), "/", job.total_steps()),
        absl::StrCat(job.tokens()),
        loss(job.has_loss(), job.loss()),
        loss(job.has_validation_loss(), job.validation_loss()),
        "",
        loss(job.has_grad_norm(), job.grad_norm()),
        PaceText(job.tokens_per_second()),
        SecondsOf(job) > 0 ? DurationText(SecondsOf(job)) : "-"};
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].values.push_back(values[i]);
  }
  return rows;
}

// The least validation loss of each, and its step, of equal ones the newest, as checkpoints are
// kept by; "-": it has none.
absl::Status FillBest(Session& session, const std::vector<Job>& jobs, Row& row) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    row.values[i] = "-";
    lorad::v1::GetMetricsRequest request;
    request.set_job(jobs[i].name());
    request.set_series(lorad::v1::GetMetricsRequest::EVALUATION);
    request.set_after_step(-1);
    request.set_page_size(10000);
    lorad::v1::GetMetricsResponse response;
    const auto status = Call(session, &Jobs::Stub::GetMetrics, request, response);
    if (!status.ok()) return status;
    const lorad::v1::EvaluationMetrics* best = nullptr;
    for (const auto& one : response.evaluations()) {
      if (!std::isfinite(one.validation_loss())) continue;
      if (best == nullptr || one.validation_loss() <= best->validation_loss()) best = &one;
    }
    if (best != nullptr) {
      row.values[i] = absl::StrFormat("%s at %d", LossText(best->validation_loss()), best->step());
    }
  }
  return absl::OkStatus();
}

absl::Status Compare(Session& session, std::vector<std::string>& names) {
  if (auto status = FindJobs(session, names); !status.ok()) return status;
  if (names.size() < 2) return Error("ONE_JOB", "all of these are one job: name another one");
  std::vector<Job> jobs;
  for (const std::string& name : names) {
    lorad::v1::GetJobRequest request;
    request.set_name(name);
    const auto status = Call(session, &Jobs::Stub::GetJob, request, jobs.emplace_back());
    if (!status.ok()) return status;
  }
  const std::map<std::string, std::vector<json>> differences = Differences(jobs);
  std::vector<Row> rows = ResultsOf(jobs);
  if (auto status = FillBest(session, jobs, rows[5]); !status.ok()) return status;
  if (session.json) {
    json out = {{"jobs", names}, {"different", json::object()}, {"results", json::array()}};
    for (const auto& [path, values] : differences) out["different"][path] = values;
    for (const Job& job : jobs) out["results"].push_back(json::parse(ToJson(job)));
    std::cout << out.dump() << "\n";
    return absl::OkStatus();
  }
  std::vector<std::string> heads = {""};
  for (const Job& job : jobs) {
    heads.push_back(job.display_name().empty() ? job.name() : job.display_name());
  }
  Table table(heads);
  for (const auto& [path, values] : differences) {
    std::vector<std::string> cells = {path};
    for (const json& value : values) cells.push_back(ValueText(value));
    table.Add(std::move(cells));
  }
  for (const Row& row : rows) {
    std::vector<std::string> cells = {row.name};
    cells.insert(cells.end(), row.values.begin(), row.values.end());
    table.Add(std::move(cells));
  }
  table.Print(std::cout);
  if (differences.empty()) std::cerr << "the jobs are configured alike\n";
  return absl::OkStatus();
}

}  // namespace

void AddCompareCommand(CLI::App& app, Session& session) {
  const auto names = std::make_shared<std::vector<std::string>>();
  CLI::App& compare =
      *app.add_subcommand("compare", "What differs between jobs, and what came of them");
  compare.add_option("jobs", *names, "Ids or names")->required()->expected(2, -1);
  compare.callback([&session, names] {
    session.action = [&session, names] { return Compare(session, *names); };
  });
}

}  // namespace lorad::client
