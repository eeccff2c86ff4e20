// The connections between lorad-mpi processes: one between each two stages that speak, found by a
// name in the site's ompi-server.
#pragma once

#include <mpi.h>

#include <map>
#include <string>
#include <vector>

#include "worker/mpi/progress.h"

namespace lorad::worker {

// By the stage on the other side, each an intercommunicator with one process.
using Links = std::map<int, MPI_Comm>;

// Opens this stage's links. For each the earlier stage opens a port and publishes it under
// "NAME/LATER STAGE", NAME being its own of `names` (by stage); the later one looks that up until
// it is there, and connects. All stages take the links in one order, so none waits in a circle.
//
// Calls of MPI wait as long as they like: `progress` shows in which, for who ends the process.
// Threads: the one that called MPI_Init_thread. Ends the process with a message where MPI fails.
Links ConnectStages(int stage, const std::vector<std::string>& names, Progress* progress);

// Ends the process, saying what failed, unless `code` is MPI_SUCCESS.
void RequireMpi(int code, const char* what);

}  // namespace lorad::worker
