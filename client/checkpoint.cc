// lora checkpoint ls | get | rm

#include <google/protobuf/empty.pb.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/calls/download.h"
#include "client/calls/error.h"
#include "client/calls/find_job.h"
#include "client/calls/range.h"
#include "client/calls/read_ahead.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/calls/sha256.h"
#include "client/calls/transfer.h"
#include "client/text/json.h"
#include "client/text/table.h"
#include "lorad/v1/checkpoints.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Checkpoint;
using lorad::v1::CheckpointFile;
using lorad::v1::Checkpoints;
using lorad::v1::Merged;

struct Options {
  std::string job;
  std::int64_t step = 0;
  std::vector<std::int64_t> steps;
  std::string directory;
  bool all = false;
  bool merged = false;
  bool best = false;
};

absl::Status List(Session& session, Options& options) {
  if (auto status = FindJob(session, options.job); !status.ok()) return status;
  lorad::v1::ListCheckpointsRequest request;
  request.set_job(options.job);
  Table table({"JOB", "STEP", "FILES", "SIZE", "VALIDATION", "BEST", "CREATED"});
  const auto status = ForEachPage(
      session, &Checkpoints::Stub::ListCheckpoints, request,
      [&](const lorad::v1::ListCheckpointsResponse& page) {
        for (const Checkpoint& checkpoint : page.checkpoints()) {
          if (session.json) std::cout << ToJson(checkpoint) << "\n";
          std::int64_t bytes = 0;
          for (const CheckpointFile& file : checkpoint.files()) bytes += file.size_bytes();
          table.Add(
              {checkpoint.job(), absl::StrCat(checkpoint.step()),
               absl::StrCat(checkpoint.files_size()), BytesText(bytes),
               checkpoint.has_validation_loss() ? LossText(checkpoint.validation_loss()) : "-",
               checkpoint.best() ? "best" : "-", TimeText(checkpoint.create_time())});
        }
      });
  if (status.ok() && !session.json) table.Print(std::cout);
  return status;
}

absl::Status FetchFile(Session& session, const Checkpoint& checkpoint, const RemoteFile& file,
                       std::int64_t offset, const Sink& sink) {
  lorad::v1::DownloadCheckpointRequest request;
  request.set_job(checkpoint.job());
  request.set_step(checkpoint.step());
  request.set_file(file.name);
  request.set_offset(offset);
  Checkpoints::Stub stub(session.channel());
  grpc::ClientContext context;
  SetDeadline(context, kWorkSeconds);
  const auto stream = stub.DownloadCheckpoint(&context, request);
  lorad::v1::DownloadCheckpointResponse response;
  while (stream->Read(&response)) {
    if (!sink(response.chunk())) context.TryCancel();
  }
  return session.FromRpc(stream->Finish());
}

absl::Status FetchMergedFile(Session& session, const Merged& merged, const RemoteFile& file,
                             std::int64_t offset, const Sink& sink) {
  lorad::v1::DownloadMergedRequest request;
  request.set_job(merged.job());
  request.set_step(merged.step());
  request.set_file(file.name);
  request.set_offset(offset);
  request.set_etag(merged.etag());
  Checkpoints::Stub stub(session.channel());
  grpc::ClientContext context;  // without a deadline: a large model takes as long as it takes
  const auto stream = stub.DownloadMerged(&context, request);
  Sha256 hash;
  std::string expected;
  {
    ReadAhead<lorad::v1::DownloadMergedResponse,
              grpc::ClientReader<lorad::v1::DownloadMergedResponse>>
        ahead(*stream);
    lorad::v1::DownloadMergedResponse response;
    while (ahead.Next(&response)) {
      hash.Update(response.chunk());
      expected = response.sha256();
      if (!sink(response.chunk())) context.TryCancel();
    }
  }
  const absl::Status status = session.FromRpc(stream->Finish());
  if (!status.ok() || hash.HexDigest() == expected) return status;
  return absl::DataLossError(absl::StrCat(file.name, ": what came is not what was sent"));
}

std::int64_t BytesOf(const std::vector<RemoteFile>& files) {
  std::int64_t bytes = 0;
  for (const RemoteFile& file : files) bytes += file.size_bytes;
  return bytes;
}

// The step of the checkpoint that is marked as best.
absl::Status FindBest(Session& session, Options& options) {
  lorad::v1::ListCheckpointsRequest request;
  request.set_job(options.job);
  const auto status = ForEachPage(session, &Checkpoints::Stub::ListCheckpoints, request,
                                  [&](const lorad::v1::ListCheckpointsResponse& page) {
                                    for (const Checkpoint& checkpoint : page.checkpoints()) {
                                      if (checkpoint.best()) options.step = checkpoint.step();
                                    }
                                  });
  if (!status.ok() || options.step > 0) return status;
  return Error("NO_BEST", absl::StrCat("no checkpoint of ", options.job,
                                       " was evaluated: give jobs a validation_dataset and "
                                       "eval_every_steps, or name a --step"));
}

absl::Status GetMerged(Session& session, const Options& options) {
  lorad::v1::GetMergedRequest request;
  request.set_job(options.job);
  request.set_step(options.step);
  Merged merged;
  const auto found = Call(session, &Checkpoints::Stub::GetMerged, request, merged, kWorkSeconds);
  if (!found.ok()) return found;
  std::vector<RemoteFile> files;
  for (const lorad::v1::MergedFile& file : merged.files()) {
    if (absl::StrContains(file.name(), '/') || absl::StartsWith(file.name(), ".")) {
      return Error("BAD_FILE_NAME", absl::StrCat("the service named a file ", file.name()));
    }
    files.push_back({file.name(), file.size_bytes(), ""});
  }
  TransferBar bar(!session.json, options.directory, BytesOf(files));
  const auto status = DownloadDirectory(
      options.directory, files,
      [&](const RemoteFile& file, std::int64_t offset, const Sink& sink) {
        return FetchMergedFile(session, merged, file, offset, sink);
      },
      merged.etag().substr(0, 8), &bar);
  bar.End();
  if (!status.ok()) return status;
  if (session.json) {
    std::cout << ToJson(merged) << "\n";
  } else {
    std::cerr << options.directory << ": a model of " << files.size()
              << " files, with the adapter of "
              << "step " << merged.step() << " in its weights\n";
  }
  return absl::OkStatus();
}

absl::Status Get(Session& session, Options& options) {
  if (auto status = FindJob(session, options.job); !status.ok()) return status;
  if (options.best) {
    if (auto status = FindBest(session, options); !status.ok()) return status;
  }
  if (options.merged) return GetMerged(session, options);
  lorad::v1::GetCheckpointRequest request;
  request.set_job(options.job);
  request.set_step(options.step);
  Checkpoint checkpoint;
  const auto found = Call(session, &Checkpoints::Stub::GetCheckpoint, request, checkpoint);
  if (!found.ok()) return found;
  std::vector<RemoteFile> files;
  for (const CheckpointFile& file : checkpoint.files()) {
    if (absl::StrContains(file.name(), '/') || absl::StartsWith(file.name(), ".")) {
      return Error("BAD_FILE_NAME", absl::StrCat("the service named a file ", file.name()));
    }
    // The files that PEFT reads; the rest is the state to go on training from.
    if (!options.all && !absl::StartsWith(file.name(), "adapter_")) continue;
    files.push_back({file.name(), file.size_bytes(), file.sha256()});
  }
  TransferBar bar(!session.json, options.directory, BytesOf(files));
  const auto status = DownloadDirectory(
      options.directory, files,
      [&](const RemoteFile& file, std::int64_t offset, const Sink& sink) {
        return FetchFile(session, checkpoint, file, offset, sink);
      },
      "", &bar);
  bar.End();
  if (!status.ok()) return status;
  if (session.json) {
    std::cout << ToJson(checkpoint) << "\n";
  } else {
    std::cerr << options.directory << ": " << files.size() << " files of step " << checkpoint.step()
              << "\n";
  }
  return absl::OkStatus();
}

// Each by itself; what cannot be deleted holds up no other.
absl::Status Remove(Session& session, Options& options) {
  if (auto status = FindJob(session, options.job); !status.ok()) return status;
  absl::Status first;
  std::vector<std::string> lines;
  for (const std::int64_t step : std::set(options.steps.begin(), options.steps.end())) {
    lorad::v1::DeleteCheckpointRequest request;
    request.set_job(options.job);
    request.set_step(step);
    google::protobuf::Empty empty;
    const auto status = Call(session, &Checkpoints::Stub::DeleteCheckpoint, request, empty);
    if (status.ok()) continue;
    first.Update(status);
    lines.push_back(absl::StrCat("step ", step, ": ", status.message()));
  }
  if (lines.size() < 2) return first;
  return Error(ReasonOf(first), absl::StrCat(lines.size(), " checkpoints are as they were"),
               absl::StrJoin(lines, "\n"));
}

}  // namespace

void AddCheckpointCommands(CLI::App& app, Session& session) {
  CLI::App& group = *app.add_subcommand("checkpoint", "What jobs have saved");
  group.require_subcommand(0, 1);
  const auto options = std::make_shared<Options>();

  CLI::App& list = *group.add_subcommand("ls", "List a job's checkpoints, oldest first");
  list.add_option("job", options->job, "The job's id, or its name")->required();
  list.callback([&session, options] {
    session.action = [&session, options] { return List(session, *options); };
  });

  CLI::App& get = *group.add_subcommand("get", "Fetch one as a PEFT adapter directory");
  get.add_option("job", options->job, "The job's id, or its name")->required();
  CLI::Option* step =
      get.add_option("--step", options->step, "Of which step; the newest if not given")
          ->check(From(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  get.add_flag("--best", options->best, "The one of the lowest validation loss")->excludes(step);
  get.add_option("-o,--output", options->directory, "The directory to make")->required();
  CLI::Option* all = get.add_flag("--all", options->all, "With the optimizer's state too");
  get.add_flag("--merged", options->merged,
               "As a model directory: the base model with the adapter in its weights")
      ->excludes(all);
  get.callback([&session, options] {
    session.action = [&session, options] { return Get(session, *options); };
  });

  CLI::App& remove = *group.add_subcommand("rm", "Delete some of a job's checkpoints");
  remove.add_option("job", options->job, "The job's id, or its name")->required();
  remove.add_option("--step", options->steps, "Of which step; may be given again")
      ->required()
      ->allow_extra_args(false)
      ->check(From(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  remove.callback([&session, options] {
    session.action = [&session, options] { return Remove(session, *options); };
  });
}

}  // namespace lorad::client
