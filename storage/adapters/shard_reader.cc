#include "storage/adapters/shard_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/adapters/manifest.h"
#include "storage/adapters/peft.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

// The meaning of an error in a file that was whole once.
absl::Status AsDamage(Files& files, const std::string& directory, const absl::Status& status) {
  const bool gone = absl::IsNotFound(status) && files.IsDirectory(ParentPath(directory));
  return gone || absl::IsInvalidArgument(status) ? Corrupt(std::string(status.message())) : status;
}

// The text files, which are small; the others are hashed on their way.
absl::Status VerifyTexts(Files& files, const Checkpoint& checkpoint) {
  for (const ListedFile& file : checkpoint.files) {
    if (file.name != kStateFile && file.name != kAdapterConfigFile) continue;
    const std::string path = JoinPath(checkpoint.directory, file.name);
    const absl::StatusOr<std::string> text = files.ReadAll(path, kReadAllLimit);
    if (!text.ok()) return text.status();
    if (absl::Status same = CheckListed(path, Sha256::Of(*text), file.sha256); !same.ok()) {
      return same;
    }
  }
  return absl::OkStatus();
}

// Of a moment that whose it is, of a matrix its own name.
std::string_view MatrixOf(std::string_view name) {
  for (const std::string_view suffix : {kFirstMomentSuffix, kSecondMomentSuffix}) {
    if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  }
  return name;
}

bool IsMoment(std::string_view name) { return MatrixOf(name) != name; }

}  // namespace

absl::Status VerifyCheckpoint(Files& files, const std::string& directory) {
  const absl::Status status = OpenCheckpoint(files, directory, true).status();
  return status.ok() ? CheckPlace(files, directory) : AsDamage(files, directory, status);
}

absl::Status CheckPlace(Files& files, const std::string& directory) {
  const absl::StatusOr<Checkpoint> checkpoint = OpenCheckpoint(files, directory, false);
  if (!checkpoint.ok()) return absl::OkStatus();
  const CheckpointState& state = checkpoint->state;
  if (directory.ends_with(absl::StrCat("/", state.job, "/", state.step))) return absl::OkStatus();
  return Corrupt(absl::StrCat(JoinPath(directory, kStateFile), ": it is of job ", Quoted(state.job),
                              " at step ", state.step));
}

absl::StatusOr<std::unique_ptr<ShardReader>> ShardReader::OfCheckpoint(
    Files& files, const std::string& directory) {
  std::unique_ptr<ShardReader> reader(new ShardReader(files));
  reader->committed_ = true;
  const absl::StatusOr<Checkpoint> checkpoint = OpenCheckpoint(files, directory, false);
  absl::Status status = checkpoint.status();
  if (status.ok()) status = VerifyTexts(files, *checkpoint);
  if (status.ok()) status = reader->AddSource(*checkpoint, kAdapterModelFile);
  if (status.ok()) status = reader->AddSource(*checkpoint, kOptimizerFile);
  if (!status.ok()) return AsDamage(files, directory, status);
  for (const Source& source : reader->sources_) {
    for (const TensorInfo& tensor : source.file.tensors()) {
      if ((&source == &reader->sources_.back()) == IsMoment(tensor.name)) continue;
      return Corrupt(absl::StrCat(source.file.path(), ": tensor ", Quoted(tensor.name),
                                  " does not belong there"));
    }
  }
  reader->Plan(checkpoint->state);
  return reader;
}

absl::StatusOr<std::unique_ptr<ShardReader>> ShardReader::OfWeights(Files& files,
                                                                    const std::string& directory,
                                                                    const std::string& job) {
  std::unique_ptr<ShardReader> reader(new ShardReader(files));
  reader->committed_ = true;
  const absl::StatusOr<Checkpoint> checkpoint = OpenCheckpoint(files, directory, false);
  absl::Status status = checkpoint.status();
  if (status.ok()) status = VerifyTexts(files, *checkpoint);
  if (status.ok()) status = reader->AddSource(*checkpoint, kAdapterModelFile);
  if (!status.ok()) return AsDamage(files, directory, status);
  reader->Plan({job, 0, ""});
  return reader;
}

absl::StatusOr<std::unique_ptr<ShardReader>> ShardReader::OfAdapter(Files& files,
                                                                    const std::string& directory,
                                                                    const std::string& job) {
  std::unique_ptr<ShardReader> reader(new ShardReader(files));
  const std::string config_path = JoinPath(directory, kAdapterConfigFile);
  const std::string path = JoinPath(directory, kAdapterModelFile);
  const absl::StatusOr<std::string> text = files.ReadAll(config_path, kReadAllLimit);
  if (!text.ok()) return text.status();
  const auto of_config = ListedSha256(files, directory, kAdapterConfigFile);
  const auto of_model = ListedSha256(files, directory, kAdapterModelFile);
  if (!of_config.ok()) return AsDamage(files, directory, of_config.status());
  if (!of_model.ok()) return AsDamage(files, directory, of_model.status());
  absl::Status same = CheckListed(config_path, Sha256::Of(*text), *of_config);
  if (!same.ok()) return same;
  reader->committed_ = !of_model->empty();
  if (reader->committed_) {
    // Its tensors lie in another order than a shard's, so it is read twice.
    const absl::StatusOr<std::string> sha256 = HashOf(files, path);
    if (!sha256.ok()) return AsDamage(files, directory, sha256.status());
    same = CheckListed(path, *sha256, *of_model);
    if (!same.ok()) return same;
  }
  const absl::StatusOr<PeftConfig> config = ParsePeftConfig(*text);
  if (!config.ok()) return At(config_path, config.status());
  if (absl::Status status = reader->AddSource(path, ""); !status.ok()) {
    return reader->committed_ ? AsDamage(files, directory, status) : status;
  }
  const auto modules = CheckAdapterTensors(*config, reader->sources_.front().file.header());
  if (!modules.ok()) {
    const absl::Status status = At(path, modules.status());
    return reader->committed_ ? AsDamage(files, directory, status) : status;
  }
  reader->Plan({job, 0, ""});
  return reader;
}

absl::Status ShardReader::AddSource(const Checkpoint& checkpoint, const std::string& name) {
  const auto listed = std::ranges::find(checkpoint.files, name, &ListedFile::name);
  return AddSource(JoinPath(checkpoint.directory, name), listed->sha256);
}

absl::Status ShardReader::AddSource(const std::string& path, const std::string& sha256) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path, files_);
  if (!file.ok()) return file.status();
  for (const TensorInfo& tensor : file->tensors()) {
    if (!IsFloatType(tensor.type)) {
      return Refuse("ADAPTER_INVALID",
                    absl::StrCat(path, ": tensor ", Quoted(tensor.name), " is not of floats"));
    }
  }
  Source& source = sources_.emplace_back(Source{*std::move(file), sha256, {}});
  source.sha.Update(source.file.prefix());
  return absl::OkStatus();
}

void ShardReader::Plan(const CheckpointState& state) {
  metadata_ = ShardMetadata(state);
  std::map<std::string, Reading, std::less<>> of_name;
  for (size_t i = 0; i < sources_.size(); ++i) {
    for (const TensorInfo& tensor : sources_[i].file.tensors()) of_name[tensor.name] = {tensor, i};
  }
  std::vector<TensorEntry> entries;
  for (const auto& [name, reading] : of_name) {
    entries.push_back({name, TensorType::kF32, reading.tensor.shape});
  }
  layout_ = std::make_unique<SafetensorsLayout>(std::move(entries), metadata_);
  for (const TensorInfo& tensor : layout_->tensors()) {
    readings_.push_back(std::move(of_name.find(tensor.name)->second));
  }
}

void ShardReader::Only(const std::set<std::string, std::less<>>& matrices) {
  std::vector<TensorEntry> entries;
  for (Reading& reading : readings_) {
    reading.wanted = matrices.contains(MatrixOf(reading.tensor.name));
    if (!reading.wanted) continue;
    entries.push_back({reading.tensor.name, TensorType::kF32, reading.tensor.shape});
  }
  layout_ = std::make_unique<SafetensorsLayout>(std::move(entries), metadata_);
}

absl::StatusOr<std::string> ShardReader::Next() {
  if (prefix_sent_ < layout_->prefix().size()) {
    std::string piece = layout_->prefix().substr(prefix_sent_, kPieceBytes);
    prefix_sent_ += piece.size();
    return piece;
  }
  while (reading_ < readings_.size()) {
    const Reading& reading = readings_[reading_];
    absl::StatusOr<std::string> piece = ReadTensor(reading);
    if (!piece.ok()) return piece;
    if (piece->empty()) {
      ++reading_;
      done_ = 0;
    } else if (reading.wanted) {
      return piece;
    }
  }
  if (absl::Status status = CheckSums(); !status.ok()) return status;
  return std::string();
}

absl::StatusOr<std::string> ShardReader::ReadTensor(const Reading& reading) {
  Source& source = sources_[reading.source];
  const TensorInfo& tensor = reading.tensor;
  const auto value_bytes = static_cast<uint64_t>(TensorTypeBytes(tensor.type));
  const uint64_t wanted =
      std::min(tensor.bytes() - done_, kPieceBytes / sizeof(float) * value_bytes);
  const bool for_nothing = !reading.wanted && source.sha256.empty();
  if (wanted == 0 || for_nothing) return std::string();
  absl::StatusOr<std::string> bytes = source.file.Read(tensor, done_, wanted);
  if (absl::IsInvalidArgument(bytes.status())) {  // it has become shorter
    const std::string what(bytes.status().message());
    return committed_ ? Corrupt(what) : Refuse("ADAPTER_INVALID", what);
  }
  if (!bytes.ok()) return bytes.status();
  done_ += wanted;
  source.sha.Update(*bytes);
  if (!reading.wanted || tensor.type == TensorType::kF32) return bytes;
  std::vector<float> values(wanted / value_bytes);
  ConvertToFloat(tensor.type, bytes->data(), static_cast<int64_t>(values.size()), values.data());
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

absl::Status ShardReader::CheckSums() {
  for (Source& source : sources_) {
    absl::Status same = CheckListed(source.file.path(), source.sha.HexDigest(), source.sha256);
    if (!same.ok()) return same;
  }
  return absl::OkStatus();
}

}  // namespace lorad::storage
