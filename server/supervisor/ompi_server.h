// The site's `ompi-server`, by which stages that speak MPI find one another.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/supervisor/supervisor.h"

namespace lorad::server {

struct OmpiServerOptions {
  std::string binary;  // FindOmpiServer
  // A folder that is the server's alone, for its temporary files: emptied at the start, removed at
  // the end.
  std::string folder;
  SupervisorOptions supervision = {};
};

// One ompi-server (Open MPI 4.1), started again when it ends. It only introduces processes: those
// that are connected notice nothing of its end, those that connect meanwhile wait for ever, so what
// starts them bounds that. A new server has a new URI and knows none of the old one's names.
// Threads: any.
class OmpiServer {
 public:
  // `note`: what becomes of the server and what it says; `wanted`: as it should be. Called on a
  // thread of the server. INTERNAL where the folder cannot be made.
  using Note = std::function<void(const std::string& what, bool wanted)>;
  static absl::StatusOr<std::unique_ptr<OmpiServer>> Start(const OmpiServerOptions& options,
                                                           Note note);
  // Ends it.
  ~OmpiServer();
  OmpiServer(const OmpiServer&) = delete;
  OmpiServer& operator=(const OmpiServer&) = delete;

  // Its URI, for OMPI_MCA_pmix_server_uri of those that are to find one another. `silent`: a URI at
  // which nobody has answered; the server is killed if that is its. UNAVAILABLE
  // (MPI_SERVER_STARTS): it is being started.
  absl::StatusOr<std::string> Find(const std::string& silent);
  int64_t pid() const;  // 0: does not run

 private:
  OmpiServer(std::string folder, Note note);

  void OnLine(const std::string& line);
  void OnChange(const std::string& what, bool wanted);

  const std::string folder_;
  const Note note_;
  std::mutex mutex_;
  std::string uri_ ABSL_GUARDED_BY(mutex_);  // empty: it has not said
  std::unique_ptr<Supervisor> supervisor_;
};

// Where `ompi-server` is: in one of `directories` (those of PATH). NOT_FOUND (MPI_MISSING).
absl::StatusOr<std::string> FindOmpiServer(const std::vector<std::string>& directories);

}  // namespace lorad::server
