#include "server/core/rules/failures.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "server/errors/errors.h"

namespace lorad::server {
namespace {

struct Entry {
  std::string_view reason;
  FailureKind kind;
};

constexpr std::array kFailures = {
    // The job's own, or of what it names.
    Entry{"INVALID_ROWS", FailureKind::kUser},
    Entry{"DATASET_INVALID", FailureKind::kUser},
    Entry{"DATASET_LIMIT", FailureKind::kUser},
    Entry{"MEMORY_NEVER_FITS", FailureKind::kUser},
    Entry{"NOT_FINITE", FailureKind::kUser},
    Entry{"MODEL_UNSUPPORTED", FailureKind::kUser},

    // Failures that pass, or are mended while the job waits.
    Entry{"DISK_FULL", FailureKind::kPassing},
    Entry{"DATASET_UNREADABLE", FailureKind::kPassing},
    Entry{kModelNotFound, FailureKind::kPassing},  // its share is not mounted yet
    Entry{kModelDiffers, FailureKind::kPassing},   // on one worker's host
    Entry{"MODEL_UNREADABLE", FailureKind::kPassing},
    Entry{"MODEL_INVALID", FailureKind::kPassing},  // it was good once: its files are being copied
    Entry{"MODEL_CHANGED", FailureKind::kPassing},  // likewise, or put back in a moment; so is
    Entry{"DATASET_CHANGED", FailureKind::kPassing},  // a dataset from its backup
    Entry{"SAFETENSORS_INVALID", FailureKind::kPassing},
    Entry{kRowsNotRead, FailureKind::kPassing},
    Entry{kRowsNotReady, FailureKind::kPassing},
    Entry{kMemory, FailureKind::kPassing},       // but where two workers agree
    Entry{"GROUP_FORM", FailureKind::kPassing},  // what a worker met while it formed a group,
    Entry{"SLOT_LOAD", FailureKind::kPassing},   // or loaded a slot,
    Entry{"BAD_WINDOW", FailureKind::kPassing},  // or was told to do
    Entry{kMemoryTaken, FailureKind::kPassing},
    Entry{kStageLost, FailureKind::kPassing},
    Entry{"WORKER_LOST", FailureKind::kPassing},

    // Ours.
    Entry{"WINDOW_NOT_PLANNED", FailureKind::kServer},
    Entry{"ADAPTER_INVALID", FailureKind::kServer},     // it was checked when it was imported
    Entry{"CHECKPOINT_INVALID", FailureKind::kServer},  // it was written by us
    Entry{kCheckpointCorrupt, FailureKind::kServer},    // of init_from: its own has one before it
    Entry{kContentInvalid, FailureKind::kServer},
};

// What the coordinator alone finds out, and what a worker has a report of its own for.
constexpr std::array<std::string_view, 6> kNoWorkers = {
    "INVALID_ROWS",      "DATASET_INVALID", "DATASET_LIMIT",
    "MEMORY_NEVER_FITS", "NOT_FINITE",      "WINDOW_NOT_PLANNED",
};

}  // namespace

bool IsWorkers(std::string_view reason) {
  return std::ranges::find(kNoWorkers, reason) == kNoWorkers.end();
}

FailureKind KindOf(std::string_view reason) {
  for (const Entry& entry : kFailures) {
    if (entry.reason == reason) return entry.kind;
  }
  return FailureKind::kPassing;
}

v1::JobError::Category CategoryOf(FailureKind kind) {
  assert(kind != FailureKind::kPassing);
  return kind == FailureKind::kUser ? v1::JobError::USER : v1::JobError::SERVER;
}

std::string ReasonOf(const absl::Status& status, const std::string& otherwise) {
  return Reason(WithReason(status, absl::IsResourceExhausted(status) ? "DISK_FULL" : otherwise));
}

}  // namespace lorad::server
