// lora: the command line of lorad.

#include <CLI/CLI.hpp>
#include <iostream>

#include "client/error.h"
#include "client/session.h"

namespace {

constexpr char kVersion[] = "0.1.0";

}  // namespace

int main(int argc, char** argv) {
  namespace client = lorad::client;
  client::Session session;
  CLI::App app(
      "lora: fine-tunes LoRA adapters by a lorad daemon.\n"
      "stdout is data, stderr is talk. Exit status: 0 done, 1 failed, 2 wrong usage.",
      "lora");
  app.add_option("--server", session.server, "HOST:PORT of the daemon")
      ->envname("LORAD_SERVER")
      ->capture_default_str();
  app.add_flag("--json", session.json, "Print proto3 JSON, one object a line");
  app.set_version_flag("--version", kVersion, "Print the version and exit");
  app.require_subcommand(0, 1);  // an unknown word is then named as such
  app.fallthrough();
  client::AddSubmitCommands(app, session);
  client::AddJobCommands(app, session);
  client::AddWatchCommand(app, session);
  client::AddMetricsCommand(app, session);
  client::AddCheckpointCommands(app, session);
  client::AddModelCommands(app, session);
  client::AddDatasetCommands(app, session);
  client::AddAdapterCommands(app, session);
  client::AddClusterCommands(app, session);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& wrong) {
    std::cerr << "error: USAGE: " << wrong.what() << "; see `lora --help`\n";
    return 2;
  }
  if (session.action == nullptr) {
    std::cerr << "error: USAGE: a command is missing; see `lora --help`\n";
    return 2;
  }
  const absl::Status status = session.action();
  std::cout.flush();
  if (status.ok() && std::cout.good()) return 0;
  client::PrintError(
      status.ok() ? client::Error("OUTPUT_LOST", "stdout cannot be written; is its disk full?")
                  : status,
      std::cerr);
  return 1;
}
