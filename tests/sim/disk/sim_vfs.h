// SQLite on a simulated disk: a sqlite3_vfs that does what SQLite's own for Unix does (which errors
// it tells and which it keeps to itself, and when it syncs a directory), on a SimDisk. For one
// connection that holds its file exclusively: locks and shared memory are not there.
#pragma once

#include <memory>
#include <string>

#include "tests/sim/disk/sim_disk.h"

struct sqlite3_vfs;

namespace lorad::sim {

class SimVfs {
 public:
  // Registered under name() until it is destroyed. `disk` must outlive it.
  explicit SimVfs(SimDisk& disk);
  SimVfs(const SimVfs&) = delete;
  SimVfs& operator=(const SimVfs&) = delete;
  ~SimVfs();

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::unique_ptr<sqlite3_vfs> vfs_;
};

}  // namespace lorad::sim
