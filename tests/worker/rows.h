#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/worker/harness.h"

namespace lorad::worker {

// Rows {"input_ids": [...], "labels": [...]} of a JSONL file.
std::vector<TestRow> ReadTokenRows(const std::string& path);

// A file as a string.
std::string ReadFile(const std::string& path);

// A PEFT directory as the shard that a slot starts from.
std::string AdapterContent(const std::string& directory, const std::string& job);

// Relative Frobenius distance of the worst matrix between the masters of a shard and the adapter of
// a PEFT directory.
double WorstDistance(const std::string& shard, const std::string& peft_directory);

// The shard with a value of a matrix B infinite; throws std::runtime_error where there is none.
std::string Spoiled(std::string shard);

// Makes `folder` a model directory of the golden Llama's shape (3 layers, hidden 64, vocabulary
// 384) but with 1024 positions and weights from a seed; returns it.
std::string MakeRandomModel(const std::string& folder);
// The same with a tied head.
std::string MakeTiedRandomModel(const std::string& folder);
// The same with SmolLM2's widths (hidden 576, feed-forward 1536), 1 layer and vocabulary 2048, so
// that products take the library's paths for real sizes.
std::string MakeWideRandomModel(const std::string& folder);
// SmolLM2-135M's shape in full, weights from a seed.
std::string MakeSmolLm2Model(const std::string& folder);

// Rows of random ids below `words` with lengths between `shortest` and `longest`; about half the
// tokens train.
std::vector<TestRow> RandomRows(int64_t count, int64_t shortest, int64_t longest, uint64_t seed,
                                int32_t words = 384);

// A job with dropout on and weight decay, learning rate constant.
TestJob MakeJob(const std::string& name, int rank, const std::vector<std::string>& targets,
                std::vector<TestRow> rows, int64_t batch);
// Trains a projection in these layers (none: all) with this rank and a scale of its own; all that
// the job trains is to be named so.
void AddModules(TestJob* job, const std::string& target, const std::vector<int32_t>& layers,
                int rank);

}  // namespace lorad::worker
