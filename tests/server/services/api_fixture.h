// An API server on a free port of loopback over a FakeDriver, and what a client needs to talk to
// it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/services/api_server.h"
#include "tests/server/services/fake_driver.h"
#include "tests/storage/temp_directory.h"

namespace lorad::server {

struct ApiFixture {
  static constexpr char kStore[] = "0123456789abcdef";  // the identity of the driver's

  explicit ApiFixture(storage::Files& files = storage::RealFiles(), ApiServerOptions options = {})
      : driver(directory / "data", files) {
    driver.revisions().Start({.store = kStore});
    options.listen = {"127.0.0.1", 0};
    options.model_roots = {directory.path()};
    server = *ApiServer::Start(options, driver);
    channel = NewChannel();
  }

  // With a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(server->address().ToText(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  // What lies in the directory of uploads.
  std::vector<std::string> Uploads() {
    return *storage::RealFiles().List(directory / "data/uploads");
  }

  storage::TempDirectory directory;
  FakeDriver driver;
  std::unique_ptr<ApiServer> server;
  std::shared_ptr<grpc::Channel> channel;
};

// A context that gives up after half a minute, so that a hanging test fails.
struct Context : grpc::ClientContext {
  Context() { set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30)); }
};

inline google::rpc::ErrorInfo ErrorInfoOf(const grpc::Status& status) {
  google::rpc::Status wire;
  wire.ParseFromString(status.error_details());
  google::rpc::ErrorInfo info;
  if (wire.details_size() > 0) wire.details(0).UnpackTo(&info);
  return info;
}

// "REASON", and " field: description;" for each violation: an error on one line.
inline std::string Summary(const grpc::Status& status) {
  google::rpc::Status wire;
  wire.ParseFromString(status.error_details());
  std::string summary = ErrorInfoOf(status).reason();
  for (const google::protobuf::Any& any : wire.details()) {
    google::rpc::BadRequest detail;
    if (!any.UnpackTo(&detail)) continue;
    for (const auto& violation : detail.field_violations()) {
      summary += " " + violation.field() + ": " + violation.description() + ";";
    }
  }
  return summary;
}

inline bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 3000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace lorad::server
