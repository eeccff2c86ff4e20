// A base model with an adapter in its weights: the files of a Hugging Face directory, made piece by
// piece as they are read. Page: docs/formats/model_directory.md, "Merged".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/adapters/peft.h"
#include "storage/files/files.h"
#include "storage/models/model_directory.h"
#include "storage/tensors/safetensors_file.h"

namespace lorad::storage {

// One file of the merged directory.
struct MergedFile {
  std::string name;
  uint64_t size_bytes = 0;
};

// The base model's files as they are, but for the matrices that the adapter changes:
//   W' = W + s B A,   W {out, in}, A {rank, in}, B {out, rank}, s the adapter's scale,
// in float32, rounded once to W's own type. A file keeps its size and its header. A read holds the
// bytes that it gives, and A and B of one module. Movable; one thread at a time; `files` must
// outlive it.
class MergedModel {
 public:
  // `chat_template`: in the place of the directory's, if not empty. FAILED_PRECONDITION (reason
  // MODEL_CHANGED) where the directory's fingerprint is not `fingerprint`; INVALID_ARGUMENT (reason
  // MODEL_UNSUPPORTED) where it has no weight files; errors of both directories.
  static absl::StatusOr<MergedModel> Open(const std::string& model_directory,
                                          std::string_view fingerprint,
                                          const std::string& adapter_directory,
                                          std::string_view chat_template,
                                          Files& files = RealFiles());

  const std::vector<MergedFile>& files() const { return listed_; }

  // `length` bytes of a file from `offset` on. REQUIRES: it has them. An error where a file has
  // become shorter.
  absl::StatusOr<std::string> Read(std::string_view file, uint64_t offset, uint64_t length);

  // Whether the base model's files are those that were opened (ModelDirectory::CheckUnchanged).
  absl::Status CheckUnchanged() const { return model_.CheckUnchanged(); }

 private:
  // A matrix of a weight file that the adapter changes.
  struct Patch {
    std::string module;  // its path, as PEFT has it
    TensorType type = TensorType::kF32;
    uint64_t begin = 0, end = 0;  // in the file
    int64_t in_features = 0;
    float scale = 0;
  };
  struct WeightFile {
    std::string name;
    std::vector<Patch> patches;  // by begin
  };
  struct Factors {
    std::string module;
    std::vector<float> a, b;  // {rank, in}, {out, rank}
    int64_t rank = 0;
  };

  MergedModel(ModelDirectory model, PeftAdapter adapter, Files& files);
  absl::Status ListFiles(std::string_view chat_template);
  void FindPatches();
  absl::Status LoadFactors(const Patch& patch);
  absl::StatusOr<std::string> ReadExactly(const std::string& name, uint64_t offset,
                                          uint64_t length) const;
  absl::StatusOr<std::string> ReadWeights(const WeightFile& file, uint64_t offset, uint64_t length);
  void Apply(const Patch& patch, uint64_t offset, std::string* bytes) const;

  ModelDirectory model_;
  PeftAdapter adapter_;
  Files* files_;  // not owned
  std::string chat_template_;
  std::vector<MergedFile> listed_;
  std::vector<WeightFile> weights_;
  Factors factors_;  // of the module that was read last
};

}  // namespace lorad::storage
