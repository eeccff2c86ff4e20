// lora: the command line of lorad.

#include <google/protobuf/stubs/logging.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/calls/address.h"
#include "client/calls/error.h"
#include "client/calls/session.h"
#include "client/calls/usage.h"

namespace {

constexpr char kVersion[] = "0.1.0";

std::string Quoted(const std::string& text, nlohmann::json::error_handler_t otherwise) {
  return nlohmann::json(text).dump(-1, ' ', false, otherwise);
}

// A call with text that is not UTF-8 is refused by gRPC itself, which does not say why.
absl::Status SayWhatIsNoText(absl::Status status, int argc, char** argv) {
  using Otherwise = nlohmann::json::error_handler_t;
  if (!absl::IsUnimplemented(status) && !absl::IsInvalidArgument(status)) return status;
  for (int i = 1; i < argc; ++i) {
    const std::string quoted = Quoted(argv[i], Otherwise::replace);
    if (quoted == Quoted(argv[i], Otherwise::ignore)) continue;
    return lorad::client::Error("INVALID_ARGUMENT",
                                "all text must be UTF-8, and this argument is not: " + quoted);
  }
  return status;
}

// Says what is wrong, if anything is, and leaves: connections and memory are not taken apart first,
// which would take as long as many a command.
[[noreturn]] void End(const lorad::client::Session& session, absl::Status status) {
  std::cout.flush();
  if (status.ok() && !std::cout.good()) {
    status = lorad::client::Error("OUTPUT_LOST", "stdout cannot be written; is its disk full?");
  }
  if (!status.ok() && session.json) {
    lorad::client::PrintErrorJson(status, std::cerr);
  } else if (!status.ok()) {
    lorad::client::PrintError(status, std::cerr);
  }
  std::cerr.flush();
  std::_Exit(lorad::client::ExitStatus(status));
}

}  // namespace

int main(int argc, char** argv) {
  namespace client = lorad::client;
  google::protobuf::SetLogHandler(nullptr);  // what is wrong is said by us
  client::Session session;
  CLI::App app(
      "lora: fine-tunes LoRA adapters by a lorad daemon.\n"
      "stdout is data, stderr is talk. Exit status: 0 done, 1 failed, 2 wrong usage.",
      "lora");
  app.add_option("--server", session.server, "HOST:PORT of the daemon")
      ->envname("LORAD_SERVER")
      ->check(client::CheckAddress)
      ->capture_default_str();
  app.add_flag("--json", session.json, "Print proto3 JSON, one object a line");
  app.set_version_flag("--version", kVersion, "Print the version and exit");
  app.require_subcommand(0, 1);  // an unknown word is then named as such
  app.fallthrough();
  client::AddSubmitCommands(app, session);
  client::AddJobCommands(app, session);
  client::AddChangeCommands(app, session);
  client::AddWatchCommand(app, session);
  client::AddTopCommand(app, session);
  client::AddTraceCommand(app, session);
  client::AddCompareCommand(app, session);
  client::AddMetricsCommand(app, session);
  client::AddCheckpointCommands(app, session);
  client::AddModelCommands(app, session);
  client::AddDatasetCommands(app, session);
  client::AddAdapterCommands(app, session);
  client::AddGenerateCommand(app, session);
  client::AddEvaluateCommand(app, session);
  client::AddClusterCommands(app, session);
  client::AddQuotaCommands(app, session);
  client::RefuseWrongNumbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    app.exit(help);
    End(session, absl::OkStatus());
  } catch (const CLI::ParseError& wrong) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    // What stands behind the mistake is not parsed.
    session.json = std::ranges::count(arguments, "--json") > 0;
    End(session, client::UsageError(app, wrong, arguments));
  }
  if (session.action == nullptr) {
    const auto chosen = app.get_subcommands();
    const std::string group = chosen.empty() ? "" : absl::StrCat(" ", chosen[0]->get_name());
    End(session,
        client::Error("USAGE", absl::StrCat("a command is missing; see `lora", group, " --help`")));
  }
  End(session, SayWhatIsNoText(session.action(), argc, argv));
}
