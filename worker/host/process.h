#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace lorad::worker {

// The memory of this process, in bytes, as the kernel counts it; 0 where it does not say.
int64_t ResidentBytes();
int64_t PeakResidentBytes();

// The name of this machine; empty where it has none.
std::string HostName();

// `name`, or the first of name-2, name-3, .. that no other living process of this machine holds: it
// is this process's until it ends.
std::string ClaimName(const std::string& name);

// What its processors call themselves ("AMD EPYC 9B14"); empty where they do not say.
std::string ProcessorName();

// All of the machine's memory.
int64_t MachineMemoryBytes();

// 16 hexadecimal digits over everything that decides bits here: the backend's own id (device type,
// library versions, kernel in use) and the version of the engine's arithmetic. Checkpoints carry
// it.
std::string NumericsId(const kernels::Backend& backend);

// The kernel sends SIGKILL when the process that started this one ends. FAILED_PRECONDITION if that
// has already happened.
absl::Status DieWithParent();

// The process ends after so long as it is: a model's disk that hangs may hold a thread for ever,
// and nothing here is durable.
void EndProcessAfter(std::chrono::seconds patience);

}  // namespace lorad::worker
