// lora quota ls | set | rm

#include <CLI/CLI.hpp>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/calls/range.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/text/json.h"
#include "client/text/table.h"
#include "lorad/v1/cluster.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Cluster;
using lorad::v1::Quota;

struct Options {
  std::string label;
  std::optional<std::int64_t> running;
  std::optional<std::int64_t> queued;
  std::optional<std::int64_t> stored;
};

std::string OfJobs(std::int64_t use, bool limited, std::int64_t limit) {
  return limited ? absl::StrCat(use, "/", limit) : absl::StrCat(use);
}

std::string OfBytes(std::int64_t use, bool limited, std::int64_t limit) {
  return limited ? absl::StrCat(BytesText(use), "/", BytesText(limit)) : BytesText(use);
}

// A line for each value that has any use, and one for a quota of each value that none has.
void AddTo(Table& table, const Quota& quota) {
  const auto add = [&](const Quota::Use& use) {
    table.Add({quota.label(), use.label().empty() ? "-" : use.label(),
               OfJobs(use.running_jobs(), quota.has_running_jobs(), quota.running_jobs()),
               OfJobs(use.queued_jobs(), quota.has_queued_jobs(), quota.queued_jobs()),
               OfBytes(use.stored_bytes(), quota.has_stored_bytes(), quota.stored_bytes())});
  };
  for (const Quota::Use& use : quota.use()) add(use);
  if (quota.use().empty()) add(Quota::Use());
}

std::string NotNegative(const std::string& bytes) {
  return bytes.starts_with("-") ? absl::StrCat("must not be negative, got '", bytes, "'") : "";
}

absl::Status List(Session& session) {
  lorad::v1::ListQuotasResponse response;
  const auto status =
      Call(session, &Cluster::Stub::ListQuotas, lorad::v1::ListQuotasRequest(), response);
  if (!status.ok()) return status;
  Table table({"QUOTA", "OF", "RUNNING", "QUEUED", "STORED"});
  for (const Quota& quota : response.quotas()) {
    if (session.json) std::cout << ToJson(quota) << "\n";
    AddTo(table, quota);
  }
  if (!session.json) table.Print(std::cout);
  return status;
}

absl::Status Set(Session& session, const Options& options) {
  lorad::v1::SetQuotaRequest request;
  Quota& asked = *request.mutable_quota();
  asked.set_label(options.label);
  if (options.running) asked.set_running_jobs(*options.running);
  if (options.queued) asked.set_queued_jobs(*options.queued);
  if (options.stored) asked.set_stored_bytes(*options.stored);
  Quota quota;
  const auto status = Call(session, &Cluster::Stub::SetQuota, request, quota);
  if (!status.ok()) return status;
  if (session.json) {
    std::cout << ToJson(quota) << "\n";
    return status;
  }
  Table table({"QUOTA", "OF", "RUNNING", "QUEUED", "STORED"});
  AddTo(table, quota);
  table.Print(std::cerr);
  return status;
}

absl::Status Remove(Session& session, const Options& options) {
  lorad::v1::DeleteQuotaRequest request;
  request.set_label(options.label);
  google::protobuf::Empty empty;
  return Call(session, &Cluster::Stub::DeleteQuota, request, empty);
}

}  // namespace

void AddQuotaCommands(CLI::App& app, Session& session) {
  const auto options = std::make_shared<Options>();
  CLI::App& group = *app.add_subcommand("quota", "How much the jobs of a label may have at once");
  group.require_subcommand(0, 1);
  group.add_subcommand("ls", "List them with their use")->callback([&session] {
    session.action = [&session] { return List(session); };
  });

  constexpr char kLabel[] = "KEY=VALUE, or KEY=* for each value by itself";
  CLI::App& set =
      *group.add_subcommand("set", "Make or replace one; what is not named has no limit");
  set.add_option("label", options->label, kLabel)->required();
  const CLI::Validator limit = From(std::int64_t{0}, std::numeric_limits<std::int64_t>::max(),
                                    "; without the option there is no limit");
  set.add_option("--running", options->running, "Jobs that run; others wait in the queue")
      ->check(limit);
  set.add_option("--queued", options->queued, "Jobs that wait; more are refused")->check(limit);
  set.add_option("--stored", options->stored, "Bytes of checkpoints, e.g. 10GiB; then no more jobs")
      ->check(limit)
      ->transform(CLI::AsSizeValue(false))
      ->transform(CLI::Validator(NotNegative, ""));  // before that, to which -1 is a large number
  set.callback([&session, options] {
    session.action = [&session, options] { return Set(session, *options); };
  });

  CLI::App& remove = *group.add_subcommand("rm", "Delete one");
  remove.add_option("label", options->label, kLabel)->required();
  remove.callback([&session, options] {
    session.action = [&session, options] { return Remove(session, *options); };
  });
}

}  // namespace lorad::client
