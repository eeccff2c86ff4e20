// lorad-mpi where Open MPI was not installed when lorad was built.
#include <cstdio>

#include "worker/mpi/exit_codes.h"

int main() {
  std::fprintf(stderr, "built without Open MPI\n");
  return lorad::worker::kNotInstalled;
}
