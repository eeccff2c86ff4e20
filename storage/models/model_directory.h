#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/models/model_description.h"
#include "storage/tensors/safetensors_file.h"

namespace lorad::storage {

// A Hugging Face directory: config.json, model.safetensors or model.safetensors.index.json with its
// shards, and the tokenizer's files. Page: docs/formats/model_directory.md. Weights stay on disk
// until they are read. Movable; const methods are thread-safe.
class ModelDirectory {
 public:
  // Reads config and headers, no weights. Refused with the tensor's name: missing, surplus, wrong
  // shape, wrong type. Reasons: MODEL_NOT_FOUND, MODEL_UNSUPPORTED, MODEL_INVALID,
  // SAFETENSORS_INVALID.
  static absl::StatusOr<ModelDirectory> Open(const std::string& path);
  // Likewise, and FAILED_PRECONDITION (MODEL_CHANGED) where its fingerprint is not that with which
  // it was registered.
  static absl::StatusOr<ModelDirectory> OpenRegistered(const std::string& path,
                                                       std::string_view fingerprint);

  // These files read as another model. REQUIRES: they have its tensors, in its shapes; others are
  // not read.
  ModelDirectory As(ModelDescription description) &&;

  const std::string& path() const { return path_; }
  const ModelDescription& description() const { return description_; }
  uint64_t weight_bytes() const { return weight_bytes_; }  // of the weight files
  // None where the weights are random ones.
  const std::vector<SafetensorsFile>& weight_files() const { return files_; }
  // Where a tensor of description() lies: its file's index in weight_files(), and the tensor there,
  // which may have an older name. REQUIRES: it is one of them, and weights are no random ones.
  std::pair<size_t, const TensorInfo*> Find(std::string_view name) const;
  // Changes when a file that matters does (names, sizes, modification times, safetensors headers,
  // config and tokenizer files by content). 64 hexadecimal digits.
  const std::string& fingerprint() const { return fingerprint_; }
  // Changes whenever anything is done to a weight file on this host, also where its size and its
  // time stay (a copy that keeps times, one file moved over another): by inodes and change times,
  // which nobody sets. For who has read them a while ago.
  const std::string& version() const { return version_; }
  // Whether the files are those that were opened: what was read since may be of others too.
  // FAILED_PRECONDITION (MODEL_CHANGED): they have another fingerprint now; errors of Open.
  absl::Status CheckUnchanged() const;
  bool has_tokenizer() const { return has_tokenizer_; }

  // The parts that a worker loads, in a fixed order: "config.json", then the tensors of
  // description(), or "random_weights.json" in their place. Two directories whose parts are equal
  // train the same bits, whatever their files' names and times are.
  std::vector<std::string> Parts() const;
  // SHA-256 of a part: of the file's bytes; of a tensor's type, shape and bytes as they lie there.
  // Reads them all. REQUIRES: it is one of Parts().
  absl::StatusOr<std::string> PartSha256(const std::string& part) const;

  // Text of "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", ...; NOT_FOUND if it
  // is not there; at most 64 MiB.
  absl::StatusOr<std::string> ReadText(std::string_view file) const;

  // A tensor of description() as float32 (from F32, F16 or BF16, exactly). `out` holds its
  // elements.
  absl::Status ReadTensor(std::string_view name, float* out) const;

 private:
  ModelDirectory() = default;
  absl::Status OpenWeights();
  absl::Status CheckTensors() const;

  std::string path_;
  ModelDescription description_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, const TensorInfo*>, std::less<>>
      tensors_;  // file, tensor
  std::optional<uint64_t>
      random_seed_;  // weights from a seed instead of files (random_weights.json)
  uint64_t weight_bytes_ = 0;
  std::string fingerprint_;
  std::string version_;
  bool has_tokenizer_ = false;
};

}  // namespace lorad::storage
