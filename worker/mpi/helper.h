// The process that carries a stage's connections over MPI, as its worker sees it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/transport/socket.h"

namespace lorad::worker {

struct HelperCommand {
  std::vector<std::string> arguments;          // the binary's path first
  std::vector<std::string> environment;        // "NAME=value"; TMPDIR comes on top
  std::vector<FileDescriptor> inherited = {};  // 3, 4, ... there
};

// `environment` as the helper gets it. What mpirun and srun told this process is left out (OMPI_*,
// PMIX_*, PMI_*, SLURM_*): they launched it, and know nothing of the group. `server_uri`: of the
// site's ompi-server.
std::vector<std::string> HelperEnvironment(const std::vector<std::string>& environment,
                                           const std::string& server_uri);
// Of this process's.
std::vector<std::string> HelperEnvironment(const std::string& server_uri);

// Where `lorad-mpi` is: beside one of `directories`, or in mpi/ from it. FAILED_PRECONDITION: it is
// at none of these places, which are named, or as of CheckHelper.
absl::StatusOr<std::string> FindHelper(const std::vector<std::string>& directories);
// Whether it starts, so that stages can be joined over MPI here. FAILED_PRECONDITION: MPI is not
// installed, and how to mend that.
absl::Status CheckHelper(const std::string& helper);

// One lorad-mpi. It has a temporary folder of its own, where Open MPI keeps its session; that, the
// process and the daemon that Open MPI starts beside it are gone when the Helper is. Should the
// worker's process be killed, the kernel ends the helper, and the folder goes with the next one's
// start on the machine (folder.h).
//
// Forked and watched by one thread, which lives as long as the process: a child's PDEATHSIG is
// bound to the thread that forked it. Lines on stderr go to the log.
// Threads: any.
class Helper {
 public:
  // `at_end` is called once, on the helper's thread, when the process has ended.
  static absl::StatusOr<std::unique_ptr<Helper>> Start(HelperCommand command,
                                                       std::function<void()> at_end = nullptr);
  // End(0 ms) where it has not ended.
  ~Helper();
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  // OK while it runs, and where it ended with exit code 0. FAILED_PRECONDITION: MPI is not
  // installed; DEADLINE_EXCEEDED: the site's ompi-server is silent; UNAVAILABLE: it has ended
  // otherwise, and how, with its last words.
  absl::Status status() const;
  bool ended() const;
  // Gives it `grace` to end by itself, then kills it. Returns when it is gone; false: was killed.
  bool End(std::chrono::milliseconds grace);

 private:
  class Process;
  explicit Helper(std::unique_ptr<Process> process);
  const std::unique_ptr<Process> process_;
};

}  // namespace lorad::worker
