#include "server/supervisor/ompi_server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr int64_t kStartsRetryMs = 200;

void Empty(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    std::filesystem::remove_all(entry.path(), ignored);
  }
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return absl::StrCat(name, "=", value == nullptr ? "" : value);
}

// Without what an mpirun or srun told the coordinator: the server is no part of that. It says its
// URI on stderr.
WorkerCommand Command(const OmpiServerOptions& options) {
  return {.name = "ompi-server",
          .arguments = {"/usr/bin/env", "-i", Variable("PATH"), Variable("HOME"),
                        "TMPDIR=" + options.folder, options.binary, "--no-daemonize",
                        "--report-uri", "+"}};
}

// "335806464.0;tcp://192.0.2.2:54973": a process's number among its like, and its addresses.
bool IsUri(const std::string& line) {
  return absl::StrContains(line, ";tcp") && !absl::StrContains(line, " ");
}

}  // namespace

OmpiServer::OmpiServer(std::string folder, Note note)
    : folder_(std::move(folder)), note_(std::move(note)) {}

absl::StatusOr<std::unique_ptr<OmpiServer>> OmpiServer::Start(const OmpiServerOptions& options,
                                                              Note note) {
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) {
    return absl::InternalError(
        absl::StrCat("cannot make ", options.folder, " for ompi-server: ", error.message()));
  }
  Empty(options.folder);
  std::unique_ptr<OmpiServer> server(new OmpiServer(options.folder, std::move(note)));
  const SupervisorSinks sinks = {
      .line = [to = server.get()](const std::string&,
                                  const std::string& line) { to->OnLine(line); },
      .note = [to = server.get()](const std::string&, const std::string& what,
                                  bool wanted) { to->OnChange(what, wanted); },
  };
  server->supervisor_ = std::make_unique<Supervisor>(std::vector<WorkerCommand>{Command(options)},
                                                     options.supervision, sinks);
  return server;
}

OmpiServer::~OmpiServer() {
  supervisor_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void OmpiServer::OnLine(const std::string& line) {
  if (!IsUri(line)) return note_(line, false);
  {
    std::lock_guard lock(mutex_);
    uri_ = line;
  }
  note_("is at " + line, true);
}

void OmpiServer::OnChange(const std::string& what, bool wanted) {
  if (!absl::StartsWith(what, "started")) {
    std::lock_guard lock(mutex_);
    uri_.clear();
    Empty(folder_);
  }
  note_(what, wanted);
}

absl::StatusOr<std::string> OmpiServer::Find(const std::string& silent) {
  std::lock_guard lock(mutex_);
  if (!uri_.empty() && uri_ == silent) {
    uri_.clear();
    supervisor_->KillAll();
  }
  if (!uri_.empty()) return uri_;
  return Unavailable("MPI_SERVER_STARTS", "ompi-server is being started", kStartsRetryMs);
}

int64_t OmpiServer::pid() const { return supervisor_->pids().front(); }

absl::StatusOr<std::string> FindOmpiServer(const std::vector<std::string>& directories) {
  for (const std::string& directory : directories) {
    const std::string place = absl::StrCat(directory, "/ompi-server");
    struct stat status;
    if (stat(place.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        access(place.c_str(), X_OK) == 0) {
      return place;
    }
  }
  return Error(absl::StatusCode::kNotFound, "MPI_MISSING",
               absl::StrCat("MPI is not installed on this machine: no ompi-server in ",
                            absl::StrJoin(directories, ", "),
                            "; apt install openmpi-bin, or use --transport sockets"));
}

}  // namespace lorad::server
