#include "client/calls/find_job.h"

#include <algorithm>

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

absl::Status FindJob(Session& session, std::string& job) {
  if (job.empty() || IsId(job)) return absl::OkStatus();
  lorad::v1::ListJobsRequest request;
  request.set_filter(absl::StrCat(
      "display_name = \"", absl::StrReplaceAll(job, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\""));
  request.set_view(lorad::v1::ListJobsRequest::SUMMARY);
  std::vector<std::string> ids;
  std::vector<std::string> lines;
  const auto status = ForEachPage(
      session, &Jobs::Stub::ListJobs, request, [&](const lorad::v1::ListJobsResponse& page) {
        for (const Job& found : page.jobs()) {
          ids.push_back(found.name());
          lines.push_back(absl::StrCat(found.name(), ": ", Job::State_Name(found.state()), ", of ",
                                       found.base_model()));
        }
      });
  if (!status.ok()) return status;
  if (ids.size() > 1) {
    return Error("AMBIGUOUS_NAME",
                 absl::StrCat(ids.size(), " jobs have the name '", job, "'; say which by its id"),
                 absl::StrJoin(lines, "\n"));
  }
  if (!ids.empty()) job = ids[0];
  return absl::OkStatus();
}

absl::Status FindJobs(Session& session, std::vector<std::string>& jobs) {
  for (std::string& job : jobs) {
    if (absl::Status status = FindJob(session, job); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace lorad::client
