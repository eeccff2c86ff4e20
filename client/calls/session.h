#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace grpc {
class Channel;
class ClientContext;
class Status;
}  // namespace grpc

namespace CLI {
class App;
}

namespace lorad::client {

// One run of `lora`: the options that every command has, and the connection, made at its first use.
struct Session {
  std::string server = "127.0.0.1:7070";
  bool json = false;

  // The action that the command line asked for; the commands set it while the line is parsed.
  std::function<absl::Status()> action;

  const std::shared_ptr<grpc::Channel>& channel();
  absl::Status FromRpc(const grpc::Status& status) const;

 private:
  std::shared_ptr<grpc::Channel> channel_;
};

// Limits of a call. A plain answer is there at once; work is what reads files or checks rows.
inline constexpr int kAnswerSeconds = 60;
inline constexpr int kWorkSeconds = 3600;
void SetDeadline(grpc::ClientContext& context, int seconds);

// One function for each group of commands (a file each): adds them to the application.
void AddModelCommands(CLI::App& app, Session& session);
void AddDatasetCommands(CLI::App& app, Session& session);
void AddAdapterCommands(CLI::App& app, Session& session);
void AddSubmitCommands(CLI::App& app, Session& session);  // submit, clone, estimate
void AddJobCommands(CLI::App& app, Session& session);     // ls, show, events, rm
void AddChangeCommands(CLI::App& app, Session& session);  // pause, .., update
void AddMetricsCommand(CLI::App& app, Session& session);
void AddCompareCommand(CLI::App& app, Session& session);
void AddWatchCommand(CLI::App& app, Session& session);
void AddTopCommand(CLI::App& app, Session& session);
void AddCheckpointCommands(CLI::App& app, Session& session);
void AddClusterCommands(CLI::App& app, Session& session);  // cluster, worker ls, ..
void AddTraceCommand(CLI::App& app, Session& session);
void AddQuotaCommands(CLI::App& app, Session& session);
void AddGenerateCommand(CLI::App& app, Session& session);
void AddEvaluateCommand(CLI::App& app, Session& session);

}  // namespace lorad::client
