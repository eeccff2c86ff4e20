// A reference run (README.md) as a job of the worker's harness.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/worker/harness.h"
#include "tests/worker/rows.h"

namespace lorad::worker {

inline constexpr double kLossTolerance = 1e-5;    // relative
inline constexpr double kNormTolerance = 1e-4;    // relative; PEFT's is a float32 sum
inline constexpr double kMatrixTolerance = 1e-4;  // relative Frobenius

inline const std::string kGoldenFolder = "tests/golden/";

struct GoldenJob {
  TestJob job;
  nlohmann::json expected;
  std::string folder;
};

// Of "MODEL/RUN".
GoldenJob ReadGoldenJob(const std::string& run);

}  // namespace lorad::worker
