#include "worker/mpi/links.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

namespace lorad::worker {
namespace {

constexpr std::chrono::milliseconds kBetweenLookups{20};

// Publishes with the site's ompi-server, not with the server of one process alone.
class GlobalScope {
 public:
  GlobalScope() {
    RequireMpi(MPI_Info_create(&info_), "MPI_Info_create");
    RequireMpi(MPI_Info_set(info_, "ompi_global_scope", "true"), "MPI_Info_set");
  }
  ~GlobalScope() { MPI_Info_free(&info_); }
  GlobalScope(const GlobalScope&) = delete;
  GlobalScope& operator=(const GlobalScope&) = delete;

  MPI_Info info() const { return info_; }

 private:
  MPI_Info info_ = MPI_INFO_NULL;
};

void Shows(Progress* progress, Progress::Stage stage) {
  progress->stage = stage;
  ++progress->calls;
}

MPI_Comm AcceptStage(const std::string& name, Progress* progress) {
  const GlobalScope scope;
  char port[MPI_MAX_PORT_NAME];
  MPI_Comm link = MPI_COMM_NULL;
  RequireMpi(MPI_Open_port(MPI_INFO_NULL, port), "MPI_Open_port");
  RequireMpi(MPI_Publish_name(name.c_str(), scope.info(), port), "MPI_Publish_name");
  Shows(progress, Progress::Stage::kAwaitsOther);
  RequireMpi(MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &link), "MPI_Comm_accept");
  Shows(progress, Progress::Stage::kAsksServer);
  MPI_Unpublish_name(name.c_str(), scope.info(), port);  // gone with a server that is gone
  RequireMpi(MPI_Close_port(port), "MPI_Close_port");
  return link;
}

MPI_Comm ConnectStage(const std::string& name, Progress* progress) {
  const GlobalScope scope;
  char port[MPI_MAX_PORT_NAME];
  while (MPI_Lookup_name(name.c_str(), scope.info(), port) != MPI_SUCCESS) {
    std::this_thread::sleep_for(kBetweenLookups);
    ++progress->calls;
  }
  MPI_Comm link = MPI_COMM_NULL;
  Shows(progress, Progress::Stage::kAwaitsOther);
  RequireMpi(MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &link), "MPI_Comm_connect");
  Shows(progress, Progress::Stage::kAsksServer);
  return link;
}

}  // namespace

void RequireMpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char why[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, why, &length);
  std::fprintf(stderr, "%s: %s\n", what, why);
  _exit(1);  // MPI_Finalize may wait for ever, and destructors of the library with it
}

Links ConnectStages(int stage, const std::vector<std::string>& names, Progress* progress) {
  Links links;
  const int stages = static_cast<int>(names.size());
  for (int earlier = 0; earlier < stages; ++earlier) {
    for (int later = earlier + 1; later < stages; ++later) {
      const bool speak = earlier == 0 || later == earlier + 1;
      if (!speak || (stage != earlier && stage != later)) continue;
      const std::string name = names[static_cast<size_t>(earlier)] + "/" + std::to_string(later);
      const MPI_Comm link =
          stage == earlier ? AcceptStage(name, progress) : ConnectStage(name, progress);
      RequireMpi(MPI_Comm_set_errhandler(link, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
      links[stage == earlier ? later : earlier] = link;
    }
  }
  return links;
}

}  // namespace lorad::worker
