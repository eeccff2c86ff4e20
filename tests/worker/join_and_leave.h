// A scenario of three jobs that any number of stages, on any device, must give the same bits.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/worker/harness.h"

namespace lorad::worker {

// All targets of the Llama models.
extern const std::vector<std::string> kAllTargets;

// Of ranks 4 to 64, with dropout and sequences of up to 100 tokens; "mlp" has no matrix in a stage
// that is one attention block.
std::vector<TestJob> Jobs();

// What has come of each job.
struct Outcome {
  std::map<std::string, std::vector<double>> losses, norms;
  std::map<std::string, std::string> shards;
  std::vector<double> evaluated;
};

// "small" trains alone, is joined by both others, which leave one after the other, each when
// nothing of it but its last step is saved.
Outcome JoinAndLeave(Harness* harness);
Outcome JoinAndLeave(const Harness::Options& options);

// CHECKs it.
void CheckEqual(const Outcome& got, const Outcome& want);

}  // namespace lorad::worker
