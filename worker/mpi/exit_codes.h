// How lorad-mpi says to its worker, by its exit code, what a worker goes by.
#pragma once

namespace lorad::worker {

// The site's ompi-server has not answered in time.
inline constexpr int kServerSilent = 3;
// Cannot be executed, lacks its libraries, or was built without: as of a shell.
inline constexpr int kNotInstalled = 127;

}  // namespace lorad::worker
