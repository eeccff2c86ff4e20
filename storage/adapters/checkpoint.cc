#include "storage/adapters/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/files/sha256.h"
#include "storage/tensors/safetensors_file.h"

namespace lorad::storage {
namespace {

constexpr char kReason[] = "CHECKPOINT_INVALID";
constexpr int kFormatVersion = 1;
constexpr uint64_t kTextLimit = uint64_t{1} << 20;

absl::Status Invalid(std::string_view message) { return Refuse(kReason, message); }

bool IsMoment(std::string_view name) {
  const auto ends_with = [name](std::string_view suffix) {
    return name.size() >= suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
  };
  return ends_with(kFirstMomentSuffix) || ends_with(kSecondMomentSuffix);
}

// A file of a checkpoint being written: synced when done, and hashed on the way.
class HashedFile {
 public:
  static absl::StatusOr<HashedFile> Create(Files& files, const std::string& directory,
                                           const std::string& name) {
    absl::StatusOr<std::unique_ptr<WritableFile>> file = files.Create(JoinPath(directory, name));
    if (!file.ok()) return file.status();
    return HashedFile(name, *std::move(file));
  }

  absl::Status Append(std::string_view bytes) {
    result_.size_bytes += bytes.size();
    sha_.Update(bytes);
    return file_->Append(bytes);
  }

  absl::StatusOr<ListedFile> Finish() {
    if (absl::Status status = file_->Sync(); !status.ok()) return status;
    if (absl::Status status = file_->Close(); !status.ok()) return status;
    result_.sha256 = sha_.HexDigest();
    return result_;
  }

 private:
  HashedFile(const std::string& name, std::unique_ptr<WritableFile> file) : file_(std::move(file)) {
    result_.name = name;
  }
  std::unique_ptr<WritableFile> file_;
  Sha256 sha_;
  ListedFile result_;
};

absl::StatusOr<ListedFile> WriteText(Files& files, const std::string& directory,
                                     const std::string& name, std::string_view text) {
  absl::StatusOr<HashedFile> file = HashedFile::Create(files, directory, name);
  if (!file.ok()) return file.status();
  if (absl::Status status = file->Append(text); !status.ok()) return status;
  return file->Finish();
}

// The shards of all stages as one.
class Shards {
 public:
  static absl::StatusOr<Shards> Open(Files& files, const std::vector<std::string>& paths) {
    Shards shards;
    for (const std::string& path : paths) {
      absl::StatusOr<SafetensorsFile> shard = SafetensorsFile::Open(path, files);
      if (!shard.ok()) return shard.status();
      const std::vector<TensorInfo>& tensors = shard->tensors();
      shards.all_.tensors.insert(shards.all_.tensors.end(), tensors.begin(), tensors.end());
      shards.readers_.push_back(*std::move(shard));
    }
    std::ranges::sort(shards.all_.tensors, {}, &TensorInfo::name);
    const auto twice = std::ranges::adjacent_find(shards.all_.tensors, {}, &TensorInfo::name);
    if (twice != shards.all_.tensors.end()) {
      return Invalid(absl::StrCat("tensor ", Quoted(twice->name), " is in two shards"));
    }
    return shards;
  }

  const std::vector<SafetensorsFile>& readers() const { return readers_; }
  // All tensors; where their bytes lie is for the readers.
  const SafetensorsHeader& header() const { return all_; }

  absl::Status Stream(const std::string& name, const ByteSink& sink) const {
    for (const SafetensorsFile& reader : readers_) {
      if (const TensorInfo* tensor = reader.Find(name)) return reader.Stream(*tensor, sink);
    }
    return absl::NotFoundError(name);
  }

 private:
  std::vector<SafetensorsFile> readers_;
  SafetensorsHeader all_;
};

// Of whole float32 values.
bool AreFinite(std::string_view values) {
  constexpr uint32_t kExponent = 0x7f80'0000;
  bool finite = true;
  for (size_t i = 0; i < values.size(); i += sizeof(uint32_t)) {
    uint32_t bits = 0;
    std::memcpy(&bits, values.data() + i, sizeof(bits));
    finite &= (bits & kExponent) != kExponent;
  }
  return finite;
}

// The shards' masters, or their moments, as a safetensors file.
absl::StatusOr<ListedFile> WriteTensors(Files& files, const std::string& directory,
                                        const std::string& name, const Shards& shards,
                                        bool moments) {
  std::vector<TensorEntry> entries;
  for (const TensorInfo& tensor : shards.header().tensors) {
    if (IsMoment(tensor.name) == moments)
      entries.push_back({tensor.name, tensor.type, tensor.shape});
  }
  const SafetensorsLayout layout(std::move(entries), {{"format", "pt"}});
  absl::StatusOr<HashedFile> file = HashedFile::Create(files, directory, name);
  if (!file.ok()) return file.status();
  SafetensorsWriter writer(layout, [&](std::string_view bytes) { return file->Append(bytes); });
  if (absl::Status status = writer.Start(); !status.ok()) return status;
  for (const TensorInfo& tensor : layout.tensors()) {
    const absl::Status status = shards.Stream(tensor.name, [&](std::string_view bytes) {
      if (AreFinite(bytes)) return writer.Append(bytes);
      return Invalid(
          absl::StrCat("tensor ", Quoted(tensor.name), " has a value that is not finite"));
    });
    if (!status.ok()) return status;
  }
  writer.Finish();
  return file->Finish();
}

absl::Status CheckState(const SafetensorsFile& shard, const CheckpointState& expected) {
  const absl::StatusOr<CheckpointState> state = ShardState(shard.header());
  if (!state.ok()) return At(shard.path(), state.status());
  if (*state == expected) return absl::OkStatus();
  return At(shard.path(), Invalid(absl::StrCat(
                              "it is of job ", Quoted(state->job), " at step ", state->step, " (",
                              state->numerics_id, "), expected is job ", Quoted(expected.job),
                              " at step ", expected.step, " (", expected.numerics_id, ")")));
}

absl::Status CheckTensors(const SafetensorsHeader& header, const PeftConfig& config) {
  SafetensorsHeader masters;
  size_t moments = 0;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.type != TensorType::kF32) {
      return Invalid(absl::StrCat("tensor ", Quoted(tensor.name), " is not float32"));
    }
    if (IsMoment(tensor.name)) {
      ++moments;
      continue;
    }
    masters.tensors.push_back(tensor);
    for (const char* suffix : {kFirstMomentSuffix, kSecondMomentSuffix}) {
      const TensorInfo* moment = header.Find(tensor.name + suffix);
      if (moment == nullptr || moment->shape != tensor.shape) {
        return Invalid(
            absl::StrCat("tensor ", Quoted(tensor.name), " has no ", suffix, " of its shape"));
      }
    }
  }
  if (moments != 2 * masters.tensors.size()) return Invalid("a moment belongs to no matrix");
  return CheckAdapterTensors(config, masters).status();
}

std::string StateText(const CheckpointState& state) {
  const nlohmann::json json = {{"format_version", kFormatVersion},
                               {"job", state.job},
                               {"numerics_id", state.numerics_id},
                               {"step", state.step}};
  return json.dump(2) + "\n";
}

absl::StatusOr<CheckpointState> ParseState(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format_version", nlohmann::json()) != kFormatVersion ||
      !json.contains("job") || !json["job"].is_string() || !json.contains("numerics_id") ||
      !json["numerics_id"].is_string() || !json.contains("step") ||
      !json["step"].is_number_unsigned()) {
    return Invalid("not a checkpoint's state");
  }
  CheckpointState state;
  state.job = json["job"].get<std::string>();
  state.step = json["step"].get<int64_t>();
  state.numerics_id = json["numerics_id"].get<std::string>();
  return state;
}

// Writes everything but the rename: the files, each synced, and the manifest after them.
absl::StatusOr<std::vector<ListedFile>> WriteFiles(Files& files, const std::string& directory,
                                                   const Shards& shards,
                                                   const CheckpointState& state,
                                                   const PeftConfig& config) {
  std::vector<ListedFile> written;
  const auto keep = [&written](absl::StatusOr<ListedFile> file) {
    if (file.ok()) written.push_back(*std::move(file));
    return file.status();
  };
  if (absl::Status status = keep(WriteText(files, directory, kAdapterConfigFile,
                                           WritePeftConfig(ForTensors(config, shards.header()))));
      !status.ok()) {
    return status;
  }
  if (absl::Status status = keep(WriteTensors(files, directory, kAdapterModelFile, shards, false));
      !status.ok()) {
    return status;
  }
  if (absl::Status status = keep(WriteTensors(files, directory, kOptimizerFile, shards, true));
      !status.ok()) {
    return status;
  }
  if (absl::Status status = keep(WriteText(files, directory, kStateFile, StateText(state)));
      !status.ok()) {
    return status;
  }
  const absl::Status status =
      WriteSynced(files, JoinPath(directory, kManifestFile), ManifestText(written));
  if (!status.ok()) return status;
  return written;
}

}  // namespace

std::map<std::string, std::string> ShardMetadata(const CheckpointState& state) {
  return {
      {"job", state.job}, {"numerics_id", state.numerics_id}, {"step", absl::StrCat(state.step)}};
}

absl::StatusOr<CheckpointState> ShardState(const SafetensorsHeader& header) {
  const auto field = [&header](const char* key) -> const std::string* {
    const auto found = header.metadata.find(key);
    return found == header.metadata.end() ? nullptr : &found->second;
  };
  const std::string *job = field("job"), *step = field("step"), *numerics = field("numerics_id");
  if (job == nullptr || step == nullptr || numerics == nullptr) {
    return Invalid("its metadata needs job, step and numerics_id");
  }
  CheckpointState state{*job, -1, *numerics};
  const auto [end, error] = std::from_chars(step->data(), step->data() + step->size(), state.step);
  if (error != std::errc() || end != step->data() + step->size() || state.step < 0) {
    return Invalid(absl::StrCat("its step is ", Quoted(*step)));
  }
  return state;
}

absl::StatusOr<Checkpoint> CommitCheckpoint(Files& files,
                                            const std::vector<std::string>& shard_paths,
                                            const CheckpointState& expected,
                                            const PeftConfig& config,
                                            const std::string& directory) {
  const absl::StatusOr<Shards> shards = Shards::Open(files, shard_paths);
  if (!shards.ok()) return shards.status();
  for (const SafetensorsFile& shard : shards->readers()) {
    if (absl::Status status = CheckState(shard, expected); !status.ok()) return status;
  }
  if (absl::Status status = CheckTensors(shards->header(), config); !status.ok()) {
    return At(shard_paths.front(), status);
  }
  if (files.Exists(directory)) {
    absl::StatusOr<Checkpoint> there = OpenCheckpoint(files, directory, true);
    if (there.ok() && there->state == expected) return there;
    return absl::AlreadyExistsError(absl::StrCat(directory, ": another checkpoint is there"));
  }

  const std::string temporary = absl::StrCat(directory, ".tmp");
  if (absl::Status status = RemoveTree(files, temporary); !status.ok()) return status;
  if (absl::Status status = files.MakeDirectory(temporary); !status.ok()) return status;
  absl::StatusOr<std::vector<ListedFile>> written =
      WriteFiles(files, temporary, *shards, expected, config);
  if (!written.ok()) {
    // Room that others may need. What cannot be removed is removed before the next one is written.
    RemoveTree(files, temporary).IgnoreError();
    return written.status();
  }
  if (absl::Status status = files.SyncDirectory(temporary); !status.ok()) return status;
  if (absl::Status status = files.Rename(temporary, directory); !status.ok()) return status;
  if (absl::Status status = files.SyncDirectory(ParentPath(directory)); !status.ok()) return status;
  return Checkpoint{directory, expected, *std::move(written)};
}

absl::StatusOr<Checkpoint> OpenCheckpoint(Files& files, const std::string& directory, bool verify) {
  const absl::StatusOr<std::vector<ListedFile>> listed = ReadManifest(files, directory);
  if (!listed.ok()) return listed.status();
  const std::vector<std::string> expected = {kAdapterConfigFile, kAdapterModelFile, kOptimizerFile,
                                             kStateFile};
  if (!std::ranges::equal(*listed, expected, {}, &ListedFile::name)) {
    return At(JoinPath(directory, kManifestFile),
              Invalid("it does not list exactly the files of a checkpoint"));
  }
  for (const ListedFile& file : *listed) {
    const std::string path = JoinPath(directory, file.name);
    const absl::StatusOr<uint64_t> size = files.Size(path);
    if (!size.ok()) return size.status();
    if (*size != file.size_bytes) {
      return Invalid(
          absl::StrCat(path, ": has ", *size, " bytes, the manifest says ", file.size_bytes));
    }
    if (!verify) continue;
    const absl::StatusOr<std::string> sha256 = HashOf(files, path);
    if (!sha256.ok()) return sha256.status();
    if (*sha256 != file.sha256)
      return Invalid(absl::StrCat(path, ": its sha256 is not the manifest's"));
  }
  const std::string state_path = JoinPath(directory, kStateFile);
  const absl::StatusOr<std::string> text = files.ReadAll(state_path, kTextLimit);
  if (!text.ok()) return text.status();
  absl::StatusOr<CheckpointState> state = ParseState(*text);
  if (!state.ok()) return At(state_path, state.status());
  return Checkpoint{directory, *std::move(state), *listed};
}

}  // namespace lorad::storage
