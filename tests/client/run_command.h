// Commands of `lora` as its user gives them, against services that a test plays.
#pragma once

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/calls/error.h"
#include "client/calls/session.h"
#include "client/calls/usage.h"

namespace lorad::client {

struct Ran {
  std::string reason;  // "OK", "USAGE" or that of the error
  std::string out, err;
  std::string error;  // as it is printed; of wrong usage what the parser says
};

// As `lora ARGUMENTS`, where EMPTY stands for '', of a client whose service listens there, on
// loopback.
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
  AddGenerateCommand(app, session);
  AddEvaluateCommand(app, session);
  AddClusterCommands(app, session);
  AddQuotaCommands(app, session);
  RefuseWrongNumbers(app);
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
  } catch (const CLI::ParseError& wrong) {
    ran.reason = "USAGE";
    ran.error = wrong.what();
  }
  std::cout.rdbuf(real_out);
  std::cerr.rdbuf(real_err);
  ran.out = out.str();
  ran.err = err.str();
  return ran;
}

// A server of services that a test plays, on a port of loopback, as long as it lives.
class Served {
 public:
  explicit Served(std::initializer_list<grpc::Service*> services) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    for (grpc::Service* service : services) builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    REQUIRE(server_);
  }
  ~Served() { server_->Shutdown(std::chrono::system_clock::now()); }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  Ran Run(const std::string& arguments, bool json = false) const {
    return RunCommand(port_, arguments, json);
  }

 private:
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace lorad::client
