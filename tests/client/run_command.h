// Commands of `lora` as its user gives them, against services that a test plays.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/calls/error.h"
#include "client/calls/session.h"

namespace lorad::client {

struct Ran {
  std::string reason;  // "OK", "USAGE" or that of the error
  std::string out, err;
  std::string error;  // as it is printed
};

// As `lora ARGUMENTS`, where EMPTY stands for '', of a client whose service listens there, on loopback.
inline Ran RunCommand(int port, const std::string& arguments, bool json = false) {
  Session session;
  session.server = "127.0.0.1:" + std::to_string(port);
  session.json = json;
  CLI::App app("", "lora");
  app.fallthrough();
  AddSubmitCommands(app, session);
  AddJobCommands(app, session);
  AddChangeCommands(app, session);
  AddCompareCommand(app, session);
  AddMetricsCommand(app, session);
  AddCheckpointCommands(app, session);
  AddWatchCommand(app, session);
  AddTopCommand(app, session);
  AddTraceCommand(app, session);
  AddClusterCommands(app, session);
  AddQuotaCommands(app, session);
  std::ostringstream out, err;
  std::streambuf* const real_out = std::cout.rdbuf(out.rdbuf());
  std::streambuf* const real_err = std::cerr.rdbuf(err.rdbuf());
  Ran ran;
  try {
    std::vector<std::string> words = CLI::detail::split_up(arguments);
    for (std::string& word : words) {
      if (word == "EMPTY") word.clear();
    }
    std::ranges::reverse(words);  // as it wants them
    app.parse(std::move(words));
    const absl::Status status = session.action();
    ran.reason = status.ok() ? "OK" : ReasonOf(status);
    std::ostringstream printed;
    if (!status.ok()) PrintError(status, printed);
    ran.error = printed.str();
  } catch (const CLI::ParseError&) {
    ran.reason = "USAGE";
  }
  std::cout.rdbuf(real_out);
  std::cerr.rdbuf(real_err);
  ran.out = out.str();
  ran.err = err.str();
  return ran;
}

}  // namespace lorad::client
