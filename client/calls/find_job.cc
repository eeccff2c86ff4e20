#include "client/calls/find_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/calls/error.h"
#include "client/calls/rpc.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Job;
using lorad::v1::Jobs;

bool IsId(absl::string_view text) {
  constexpr absl::string_view kBegin = "job-";
  constexpr std::size_t kCharacters = 8;
  return absl::StartsWith(text, kBegin) && text.size() == kBegin.size() + kCharacters &&
         std::all_of(text.begin() + kBegin.size(), text.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); });
}

}  // namespace

absl::StatusOr<std::vector<Job>> JobsNamed(Session& session, const std::string& name, int most) {
  lorad::v1::ListJobsRequest request;
  request.set_filter(absl::StrCat(
      "display_name = \"", absl::StrReplaceAll(name, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\""));
  request.set_view(lorad::v1::ListJobsRequest::SUMMARY);
  if (most > 0) {
    request.set_page_size(most);
    lorad::v1::ListJobsResponse page;
    if (auto status = Call(session, &Jobs::Stub::ListJobs, request, page); !status.ok()) {
      return status;
    }
    return std::vector<Job>(page.jobs().begin(), page.jobs().end());
  }
  std::vector<Job> jobs;
  const auto status = ForEachPage(session, &Jobs::Stub::ListJobs, request,
                                  [&](const lorad::v1::ListJobsResponse& page) {
                                    jobs.insert(jobs.end(), page.jobs().begin(), page.jobs().end());
                                  });
  if (!status.ok()) return status;
  return jobs;
}

absl::Status FindJob(Session& session, std::string& job) {
  if (job.empty()) {
    return Error("NO_NAME", "the name of a job is empty: give an id or a name (`lora ls`)");
  }
  if (IsId(job)) return absl::OkStatus();
  const absl::StatusOr<std::vector<Job>> named = JobsNamed(session, job);
  if (!named.ok()) return named.status();
  if (named->size() > 1) {
    std::vector<std::string> lines;
    for (const Job& found : *named) {
      lines.push_back(absl::StrCat(found.name(), ": ", Job::State_Name(found.state()), ", of ",
                                   found.base_model()));
    }
    return Error(
        "AMBIGUOUS_NAME",
        absl::StrCat(named->size(), " jobs have the name '", job, "'; say which by its id"),
        absl::StrJoin(lines, "\n"));
  }
  if (!named->empty()) job = named->front().name();
  return absl::OkStatus();
}

absl::Status FindJobs(Session& session, std::vector<std::string>& jobs) {
  for (std::string& job : jobs) {
    if (absl::Status status = FindJob(session, job); !status.ok()) return status;
  }
  std::vector<std::string> once;
  for (std::string& job : jobs) {
    if (std::find(once.begin(), once.end(), job) == once.end()) once.push_back(std::move(job));
  }
  jobs = std::move(once);
  return absl::OkStatus();
}

absl::Status OnEachJob(Session& session, std::vector<std::string>& jobs,
                       absl::FunctionRef<absl::Status(const std::string& job)> act) {
  if (absl::Status status = FindJobs(session, jobs); !status.ok()) return status;
  if (jobs.size() == 1) return act(jobs[0]);
  for (const std::string& name : jobs) {
    lorad::v1::GetJobRequest request;
    request.set_name(name);
    Job job;
    const absl::Status status = Call(session, &Jobs::Stub::GetJob, request, job);
    if (!status.ok()) return status;
  }
  std::vector<std::string> lines;
  absl::Status first;
  for (const std::string& name : jobs) {
    const absl::Status status = act(name);
    if (status.ok()) continue;
    first.Update(status);
    lines.push_back(absl::StrCat(name, ": ", status.message()));
  }
  if (lines.size() < 2) return first;
  return Error(ReasonOf(first),
               absl::StrCat(lines.size(), " of ", jobs.size(), " jobs are as they were"),
               absl::StrJoin(lines, "\n"));
}

}  // namespace lorad::client
