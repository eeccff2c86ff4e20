#include "storage/models/model_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/files/config_reader.h"
#include "storage/files/errors.h"
#include "storage/files/files.h"
#include "storage/files/json.h"
#include "storage/files/sha256.h"
#include "storage/models/random_weights.h"

namespace lorad::storage {
namespace {

constexpr char kInvalid[] = "MODEL_INVALID";
constexpr char kConfigFile[] = "config.json";
constexpr char kWeightFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr char kRandomFile[] = "random_weights.json";
constexpr uint64_t kConfigLimit = uint64_t{1} << 20;
constexpr size_t kShardLimit = 1000;

absl::Status NotFound(std::string_view message) {
  absl::Status status = absl::NotFoundError(Absl(message));
  status.SetPayload(Absl(kReasonPayload), absl::Cord("MODEL_NOT_FOUND"));
  return status;
}

// Buffers that old checkpoints carry and everyone computes, an output head beside a tied one, which
// transformers ignores too, and the weights of a tower for images.
bool IsHarmlessSurplus(std::string_view name, const ModelDescription& description) {
  if (description.in_tower) {
    for (const char* part : {"model.vision_tower.", "model.multi_modal_projector."}) {
      if (absl::StartsWith(Absl(name), part)) return true;
    }
  }
  return absl::EndsWith(Absl(name), ".rotary_emb.inv_freq") ||
         (description.tied_head && name == "lm_head.weight");
}

// A tensor's name in a file as transformers 5 has it in memory: files with a tower have an older
// order of its parts.
std::string NameInModel(const std::string& name, const ModelDescription& description) {
  if (!description.in_tower) return name;
  constexpr std::pair<const char*, const char*> kRenamed[] = {
      {"language_model.model.", "model.language_model."},
      {"language_model.lm_head.", "lm_head."},
      {"vision_tower.", "model.vision_tower."},
      {"multi_modal_projector.", "model.multi_modal_projector."}};
  for (const auto& [older, newer] : kRenamed) {
    if (absl::StartsWith(name, older)) return newer + name.substr(std::string_view(older).size());
  }
  return name;
}

// File names of the shards that an index names, sorted.
absl::StatusOr<std::vector<std::string>> ReadIndex(std::string_view text,
                                                   std::map<std::string, std::string>* weight_map) {
  const absl::StatusOr<nlohmann::json> index = ParseJson(text, kInvalid);
  if (!index.ok()) return index.status();
  const auto map = index->is_object() ? index->find("weight_map") : index->end();
  if (map == index->end() || !map->is_object() || map->empty()) {
    return Refuse(kInvalid, "no weight_map {tensor: file} in it");
  }
  std::set<std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      return Refuse(kInvalid, absl::StrCat("tensor ", Quoted(tensor), " has no file name"));
    }
    const std::string name = file.get<std::string>();
    if (name.empty() || name[0] == '.' || absl::StrContains(name, "/") ||
        !absl::EndsWith(name, ".safetensors")) {
      return Refuse(kInvalid,
                    absl::StrCat("tensor ", Quoted(tensor), " is said to be in ", Quoted(name),
                                 ", which is no safetensors file of this directory"));
    }
    files.insert(name);
    (*weight_map)[tensor] = name;
  }
  if (files.size() > kShardLimit) {
    return Refuse(kInvalid, absl::StrCat("more than ", kShardLimit, " files"));
  }
  return std::vector<std::string>(files.begin(), files.end());
}

absl::StatusOr<uint64_t> ReadSeed(std::string_view text) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(text, kInvalid);
  if (!json.ok()) return json.status();
  if (!json->is_object() || json->size() != 1 || !json->contains("seed") ||
      !(*json)["seed"].is_number_unsigned()) {
    return Refuse(kInvalid, "it must be {\"seed\": N}");
  }
  return (*json)["seed"].get<uint64_t>();
}

// Adds a file's identity to the fingerprint: cheap for weights (size, time, header), content
// elsewhere. Its version on this host.
std::string AddWeightFile(Sha256& sha, const SafetensorsFile& file) {
  struct stat status = {};
  stat(file.path().c_str(), &status);
  const std::string name = file.path().substr(file.path().rfind('/') + 1);
  sha.Update(absl::StrCat("weights ", name, " ", file.file_bytes(), " ", status.st_mtim.tv_sec, ".",
                          status.st_mtim.tv_nsec, "\n"));
  for (const TensorInfo& tensor : file.tensors()) {
    sha.Update(absl::StrCat(tensor.name, " ", Absl(TensorTypeName(tensor.type)), " ",
                            ShapeString(tensor.shape), " ", tensor.begin, "\n"));
  }
  return absl::StrCat(status.st_dev, ".", status.st_ino, ".", status.st_ctim.tv_sec, ".",
                      status.st_ctim.tv_nsec, " ");
}

}  // namespace

absl::StatusOr<ModelDirectory> ModelDirectory::Open(const std::string& path) {
  ModelDirectory directory;
  directory.path_ = path;
  if (!RealFiles().IsDirectory(path)) {
    return NotFound(absl::StrCat(path,
                                 ": no such directory (a model's path is that of its Hugging "
                                 "Face directory on the server)"));
  }
  absl::StatusOr<std::string> config =
      RealFiles().ReadAll(JoinPath(path, kConfigFile), kConfigLimit);
  if (absl::IsNotFound(config.status())) {
    return NotFound(
        absl::StrCat(path, ": no config.json in it; is it a Hugging Face model directory?"));
  }
  if (!config.ok()) return Refuse(kInvalid, std::string(config.status().message()));
  absl::StatusOr<ModelDescription> description = DescribeModel(*config);
  if (!description.ok()) return At(JoinPath(path, kConfigFile), description.status());
  directory.description_ = *std::move(description);
  if (absl::Status status = directory.OpenWeights(); !status.ok()) return status;
  if (!directory.random_seed_) {
    if (absl::Status status = directory.CheckTensors(); !status.ok()) return status;
  }
  directory.has_tokenizer_ = RealFiles().Exists(JoinPath(path, "tokenizer.json"));

  Sha256 sha;
  for (const SafetensorsFile& file : directory.files_) {
    directory.version_ += AddWeightFile(sha, file);
  }
  for (const char* name : {kConfigFile, kRandomFile, "tokenizer.json", "tokenizer_config.json",
                           "chat_template.jinja"}) {
    const absl::StatusOr<std::string> text = directory.ReadText(name);
    if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
    if (text.ok()) sha.Update(absl::StrCat("text ", name, " ", text->size(), "\n", *text));
  }
  directory.fingerprint_ = sha.HexDigest();
  return directory;
}

ModelDirectory ModelDirectory::As(ModelDescription description) && {
  description_ = std::move(description);
  return std::move(*this);
}

absl::StatusOr<ModelDirectory> ModelDirectory::OpenRegistered(const std::string& path,
                                                              std::string_view fingerprint) {
  absl::StatusOr<ModelDirectory> directory = Open(path);
  if (!directory.ok() || directory->fingerprint() == fingerprint) return directory;
  return WithReason(absl::StatusCode::kFailedPrecondition, "MODEL_CHANGED",
                    absl::StrCat("the files of ", path,
                                 " are not those that were registered; put them back, or register "
                                 "the model again"));
}

absl::Status ModelDirectory::CheckUnchanged() const {
  const absl::StatusOr<ModelDirectory> now = Open(path_);
  if (!now.ok()) return now.status();
  if (now->fingerprint() == fingerprint_) return absl::OkStatus();
  return WithReason(absl::StatusCode::kFailedPrecondition, "MODEL_CHANGED",
                    absl::StrCat("the files of ", path_,
                                 " were changed while they were read, so what came of them is of "
                                 "no use; put them back, or register the model again"));
}

absl::Status ModelDirectory::OpenWeights() {
  std::vector<std::string> names;
  std::map<std::string, std::string> weight_map;
  if (RealFiles().Exists(JoinPath(path_, kWeightFile))) {
    names = {kWeightFile};
  } else if (RealFiles().Exists(JoinPath(path_, kIndexFile))) {
    absl::StatusOr<std::string> index = ReadText(kIndexFile);
    if (!index.ok()) return index.status();
    absl::StatusOr<std::vector<std::string>> files = ReadIndex(*index, &weight_map);
    if (!files.ok()) return At(JoinPath(path_, kIndexFile), files.status());
    names = *std::move(files);
  } else if (RealFiles().Exists(JoinPath(path_, kRandomFile))) {
    absl::StatusOr<std::string> text = ReadText(kRandomFile);
    if (!text.ok()) return text.status();
    absl::StatusOr<uint64_t> seed = ReadSeed(*text);
    if (!seed.ok()) return At(JoinPath(path_, kRandomFile), seed.status());
    random_seed_ = *seed;
    return absl::OkStatus();
  } else {
    return NotFound(absl::StrCat(path_, ": neither ", kWeightFile, " nor ", kIndexFile,
                                 " in it (other formats of weights are not read: convert them)"));
  }

  files_.reserve(names.size());
  for (const std::string& name : names) {
    if (!weight_map.empty() && !RealFiles().Exists(JoinPath(path_, name))) {
      return Refuse(kInvalid, absl::StrCat(JoinPath(path_, kIndexFile), ": it names ", Quoted(name),
                                           ", which is not there: was all of the model fetched?"));
    }
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(JoinPath(path_, name));
    if (!file.ok()) return file.status();
    weight_bytes_ += file->file_bytes();
    files_.push_back(*std::move(file));
    const size_t number = files_.size() - 1;
    for (const TensorInfo& tensor : files_.back().tensors()) {
      const std::string name = NameInModel(tensor.name, description_);
      if (!tensors_.emplace(name, std::pair(number, &tensor)).second) {
        return Refuse(kInvalid, absl::StrCat(files_.back().path(), ": tensor ", Quoted(tensor.name),
                                             " is in another file of the model too"));
      }
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    const auto found = tensors_.find(NameInModel(tensor, description_));
    if (found == tensors_.end() || files_[found->second.first].path() != JoinPath(path_, file)) {
      return Refuse(kInvalid, absl::StrCat(JoinPath(path_, kIndexFile), ": tensor ", Quoted(tensor),
                                           " is not in ", Quoted(file)));
    }
  }
  return absl::OkStatus();
}

absl::Status ModelDirectory::CheckTensors() const {
  Problems problems;
  std::set<std::string_view> known;
  const std::vector<NamedShape> expected = AllTensors(description_);
  for (const NamedShape& tensor : expected) {
    known.insert(tensor.name);
    const auto found = tensors_.find(tensor.name);
    if (found == tensors_.end()) {
      problems.Add(absl::StrCat("missing tensor ", Quoted(tensor.name)));
      continue;
    }
    const TensorInfo& info = *found->second.second;
    if (info.shape != tensor.shape) {
      problems.Add(absl::StrCat("tensor ", Quoted(tensor.name), " has shape ",
                                ShapeString(info.shape), ", the config asks for ",
                                ShapeString(tensor.shape)));
    } else if (!IsFloatType(info.type)) {
      problems.Add(absl::StrCat("tensor ", Quoted(tensor.name), " has type ",
                                Absl(TensorTypeName(info.type)), "; F32, F16 and BF16 are read"));
    }
  }
  for (const auto& [name, place] : tensors_) {
    if (known.count(name) == 0 && !IsHarmlessSurplus(name, description_)) {
      problems.Add(absl::StrCat("surplus tensor ", Quoted(name),
                                ", which the config's architecture does not have"));
    }
  }
  return At(path_, problems.Result(kInvalid));
}

std::vector<std::string> ModelDirectory::Parts() const {
  std::vector<std::string> parts;
  parts.emplace_back(kConfigFile);
  if (random_seed_) {
    parts.emplace_back(kRandomFile);
    return parts;
  }
  for (const NamedShape& tensor : AllTensors(description_)) parts.push_back(tensor.name);
  return parts;
}

absl::StatusOr<std::string> ModelDirectory::PartSha256(const std::string& part) const {
  if (part == kConfigFile || part == kRandomFile) {
    const absl::StatusOr<std::string> text = ReadText(part);
    if (!text.ok()) return text.status();
    return Sha256::Of(*text);
  }
  const auto [file, tensor] = Find(part);
  Sha256 sha;
  sha.Update(
      absl::StrCat(Absl(TensorTypeName(tensor->type)), " ", ShapeString(tensor->shape), "\n"));
  const absl::Status status = files_[file].Stream(*tensor, [&](std::string_view piece) {
    sha.Update(piece);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return sha.HexDigest();
}

std::pair<size_t, const TensorInfo*> ModelDirectory::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  assert(found != tensors_.end());
  return found->second;
}

absl::StatusOr<std::string> ModelDirectory::ReadText(std::string_view file) const {
  return RealFiles().ReadAll(JoinPath(path_, file), kReadAllLimit);
}

absl::Status ModelDirectory::ReadTensor(std::string_view name, float* out) const {
  if (random_seed_) {
    FillRandomWeight(description_, name, *random_seed_, out);
    return absl::OkStatus();
  }
  const auto [file, tensor] = Find(name);
  return files_[file].ReadFloats(*tensor, out);
}

}  // namespace lorad::storage
