#include "storage/adapters/merged_model.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/adapters/merge_tile.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr char kTemplateFile[] = "chat_template.jinja";
constexpr char kIndexFile[] = "model.safetensors.index.json";
// What goes along as it is, where it is there.
constexpr const char* kOtherFiles[] = {"config.json",
                                       "generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer.model",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       kTemplateFile,
                                       kIndexFile};
std::string FileName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

MergedModel::MergedModel(ModelDirectory model, PeftAdapter adapter, Files& files)
    : model_(std::move(model)), adapter_(std::move(adapter)), files_(&files) {}

absl::StatusOr<MergedModel> MergedModel::Open(const std::string& model_directory,
                                              std::string_view fingerprint,
                                              const std::string& adapter_directory,
                                              std::string_view chat_template, Files& files) {
  absl::StatusOr<ModelDirectory> model =
      ModelDirectory::OpenRegistered(model_directory, fingerprint);
  if (!model.ok()) return model.status();
  absl::StatusOr<PeftAdapter> adapter = PeftAdapter::Open(adapter_directory, files);
  if (!adapter.ok()) return adapter.status();
  if (absl::Status status = adapter->CheckFits(model->description()); !status.ok()) {
    return At(adapter_directory, status);
  }
  MergedModel merged(*std::move(model), *std::move(adapter), files);
  if (absl::Status status = merged.ListFiles(chat_template); !status.ok()) return status;
  merged.FindPatches();
  return merged;
}

absl::Status MergedModel::ListFiles(std::string_view chat_template) {
  if (model_.weight_files().empty()) {
    return Refuse("MODEL_UNSUPPORTED",
                  absl::StrCat(model_.path(), ": random weights have no files to merge into"));
  }
  for (const SafetensorsFile& file : model_.weight_files()) {
    weights_.push_back({FileName(file.path()), {}});
    listed_.push_back({weights_.back().name, file.file_bytes()});
  }
  const bool sharded = weights_.size() > 1 || weights_[0].name != "model.safetensors";
  chat_template_ = chat_template;
  for (const char* name : kOtherFiles) {
    if (name == std::string_view(kTemplateFile) && !chat_template_.empty()) {
      listed_.push_back({name, chat_template_.size()});
      continue;
    }
    if (name == std::string_view(kIndexFile) && !sharded) continue;
    const absl::StatusOr<uint64_t> size = files_->Size(JoinPath(model_.path(), name));
    if (absl::IsNotFound(size.status())) continue;
    if (!size.ok()) return size.status();
    listed_.push_back({name, *size});
  }
  return absl::OkStatus();
}

void MergedModel::FindPatches() {
  ModuleMatcher matcher(adapter_.config());
  for (const Block& block : model_.description().blocks) {
    for (const LinearGroup* group : {&block.in, &block.out}) {
      for (const LinearPart& part : group->parts) {
        const std::string& path = part.path;
        const std::optional<ModuleLora> lora = matcher.Match(path);
        if (!lora) continue;
        const double scale = LoraScale(lora->alpha, lora->rank, adapter_.config().rslora);
        const auto [file, tensor] = model_.Find(part.tensor);
        const uint64_t data = model_.weight_files()[file].header().data_begin;
        weights_[file].patches.push_back({path, tensor->type, data + tensor->begin,
                                          data + tensor->end, group->in_features,
                                          static_cast<float>(scale)});
      }
    }
  }
  for (WeightFile& file : weights_) std::ranges::sort(file.patches, {}, &Patch::begin);
}

absl::StatusOr<std::string> MergedModel::Read(std::string_view name, uint64_t offset,
                                              uint64_t length) {
  if (name == kTemplateFile && !chat_template_.empty()) {
    return chat_template_.substr(offset, length);
  }
  for (const WeightFile& file : weights_) {
    if (file.name == name) return ReadWeights(file, offset, length);
  }
  return ReadExactly(std::string(name), offset, length);
}

absl::StatusOr<std::string> MergedModel::ReadExactly(const std::string& name, uint64_t offset,
                                                     uint64_t length) const {
  const std::string path = JoinPath(model_.path(), name);
  absl::StatusOr<std::string> bytes = files_->ReadRange(path, offset, length);
  if (!bytes.ok() || bytes->size() == length) return bytes;
  return WithReason(absl::StatusCode::kFailedPrecondition, "MODEL_CHANGED",
                    absl::StrCat(path, ": ends after ", offset + bytes->size(),
                                 " bytes; it was "
                                 "longer when the merge began"));
}

// Reads a little more at both ends, so that every value of a matrix is whole.
absl::StatusOr<std::string> MergedModel::ReadWeights(const WeightFile& file, uint64_t offset,
                                                     uint64_t length) {
  constexpr uint64_t kMargin = sizeof(float) - 1;
  const auto listed = std::ranges::find(listed_, file.name, &MergedFile::name);
  const uint64_t begin = offset - std::min(offset, kMargin);
  const uint64_t end = std::min(offset + length + kMargin, listed->size_bytes);
  absl::StatusOr<std::string> bytes = ReadExactly(file.name, begin, end - begin);
  if (!bytes.ok()) return bytes;
  for (const Patch& patch : file.patches) {
    if (patch.end <= begin || patch.begin >= end) continue;
    if (absl::Status status = LoadFactors(patch); !status.ok()) return status;
    Apply(patch, begin, &*bytes);
  }
  bytes->resize(offset - begin + length);
  bytes->erase(0, offset - begin);  // a move in place costs less than memory for a copy
  return bytes;
}

absl::Status MergedModel::LoadFactors(const Patch& patch) {
  if (factors_.module == patch.module) return absl::OkStatus();
  Factors factors;
  factors.module = patch.module;
  for (const auto& [matrix, values] : {std::pair('A', &factors.a), std::pair('B', &factors.b)}) {
    const TensorInfo* tensor = adapter_.file().Find(PeftKey(patch.module, matrix));
    assert(tensor != nullptr);  // CheckFits
    values->resize(static_cast<size_t>(tensor->elements()));
    absl::StatusOr<std::string> bytes = adapter_.file().Read(*tensor, 0, tensor->bytes());
    if (!bytes.ok()) return bytes.status();
    ConvertToFloat(tensor->type, bytes->data(), tensor->elements(), values->data());
    if (matrix == 'A') factors.rank = tensor->shape[0];
  }
  factors_ = std::move(factors);
  return absl::OkStatus();
}

// `bytes` lie in the file from `offset` on. Of the matrix the values that are whole in them change:
// the end of a row, rows, the beginning of one.
void MergedModel::Apply(const Patch& patch, uint64_t offset, std::string* bytes) const {
  const auto size = static_cast<uint64_t>(TensorTypeBytes(patch.type));
  const uint64_t first = std::max(offset, patch.begin);
  const uint64_t last = std::min(offset + bytes->size(), patch.end);
  int64_t at = static_cast<int64_t>((first - patch.begin + size - 1) / size);
  const int64_t end = static_cast<int64_t>((last - patch.begin) / size);
  while (at < end) {
    const int64_t row = at / patch.in_features, column = at % patch.in_features;
    const int64_t rows = column == 0 ? std::max<int64_t>(1, (end - at) / patch.in_features) : 1;
    const int64_t width = std::min(patch.in_features - column, end - at);
    for (int64_t c = 0; c < width; c += kTileColumns) {
      MergeTile tile;
      tile.values = bytes->data() + (patch.begin + static_cast<uint64_t>(at + c) * size - offset);
      tile.rows = rows;
      tile.columns = std::min(kTileColumns, width - c);
      tile.in_features = patch.in_features;
      tile.b = factors_.b.data() + row * factors_.rank;
      tile.a = factors_.a.data() + column + c;
      tile.rank = factors_.rank;
      tile.scale = patch.scale;
      Merge(patch.type, tile);
    }
    at += rows > 1 ? rows * patch.in_features : width;
  }
}

}  // namespace lorad::storage
