// Work that the coordinator's loop has done elsewhere: on files, on windows, on rows. Each ends in
// mail. The real one has threads (task_pool.h), the simulator its agenda.
#pragma once

#include <cstdint>
#include <functional>

namespace lorad::server {

class Tasks {
 public:
  virtual ~Tasks() = default;
  enum class Queue {
    kFiles,    // one after the other, in their order
    kPlanner,  // side by side, in any order: one group's window holds up no other's
    kRows,     // several at once, in any order
    kReads,    // of the store, as kFiles
  };
  // Must not block, nor run the task before it returns.
  virtual void Add(Queue queue, std::function<void()> task) = 0;
};

}  // namespace lorad::server
