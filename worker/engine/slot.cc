#include "worker/engine/slot.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "storage/adapters/checkpoint.h"
#include "storage/adapters/peft.h"
#include "storage/tensors/safetensors.h"

namespace lorad::worker {
namespace {

using kernels::TensorView;

absl::Status CheckModules(const SlotOptions& options, const std::vector<std::string>& known,
                          int layers) {
  if (options.modules.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("job ", options.job, " names no target module"));
  }
  for (const SlotModules& modules : options.modules) {
    if (modules.rank < 1 || modules.rank > kRankMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", modules.rank, " of job ", options.job, " is not in 1..", kRankMax));
    }
    if (std::find(known.begin(), known.end(), modules.target) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("job ", options.job, " names target module ",
                                                     modules.target,
                                                     ", which the model does not have"));
    }
    for (const int32_t layer : modules.layers) {
      if (layer >= 0 && layer < layers) continue;
      return absl::InvalidArgumentError(absl::StrCat("job ", options.job, " names layer ", layer,
                                                     " of ", modules.target, "; the model has ",
                                                     layers));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const SlotOptions& options, const std::vector<std::string>& known,
                          int layers) {
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dropout ", options.dropout, " of job ", options.job, " is not in [0, 1)"));
  }
  return CheckModules(options, known, layers);
}

// How a projection of a layer is trained; nullptr: not at all.
absl::StatusOr<const SlotModules*> ModulesOf(const SlotOptions& options, const std::string& target,
                                             int layer) {
  const SlotModules* found = nullptr;
  for (const SlotModules& modules : options.modules) {
    const bool here =
        modules.layers.empty() ||
        std::find(modules.layers.begin(), modules.layers.end(), layer) != modules.layers.end();
    if (modules.target != target || !here) continue;
    if (found != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("job ", options.job, " names ", target, " of layer ", layer, " twice"));
    }
    found = &modules;
  }
  return found;
}

// A and B of every wanted part of a group, appended to `tensors`.
absl::Status ListGroup(const storage::Block& block, int32_t block_index, bool of_out_group,
                       const SlotOptions& options, const std::vector<std::string>& known,
                       std::vector<SlotTensor>* tensors) {
  const storage::LinearGroup& group = of_out_group ? block.out : block.in;
  int64_t first_output = 0;
  for (const storage::LinearPart& part : group.parts) {
    const auto modules = ModulesOf(options, part.target, block.layer);
    if (!modules.ok()) return modules.status();
    if (*modules != nullptr) {
      SlotTensor a;
      a.layer = block.layer;
      a.target =
          static_cast<int32_t>(std::find(known.begin(), known.end(), part.target) - known.begin());
      a.block = block_index;
      a.of_out_group = of_out_group;
      a.first_output = first_output;
      a.outputs = part.out_features;
      a.scale = (*modules)->scale;
      a.trainable = !options.answers_only;
      SlotTensor b = a;
      a.name = storage::PeftKey(part.path, 'A');
      a.rows = (*modules)->rank;
      a.columns = group.in_features;
      a.initialization = SlotTensor::Initialization::kKaimingUniform;
      b.name = storage::PeftKey(part.path, 'B');
      b.matrix = 'B';
      b.learning_rate_factor = options.loraplus_lr_ratio;
      b.rows = part.out_features;
      b.columns = (*modules)->rank;
      tensors->push_back(std::move(a));
      tensors->push_back(std::move(b));
    }
    first_output += part.out_features;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<SlotTensor>> ListLoraTensors(
    const storage::ModelDescription& description, StageRange range, const SlotOptions& options) {
  const std::vector<std::string> known = storage::TargetModules(description);
  absl::Status status = CheckOptions(options, known, description.layers);
  std::vector<SlotTensor> tensors;
  for (int32_t i = range.first_block; i < range.end_block && status.ok(); ++i) {
    const storage::Block& block = description.blocks[i];
    for (const bool of_out_group : {false, true}) {
      if (status.ok()) status = ListGroup(block, i, of_out_group, options, known, &tensors);
    }
  }
  if (!status.ok()) return status;
  return tensors;
}

std::vector<Slot::Place> Slot::Lay(const kernels::Backend& backend,
                                   const std::vector<SlotTensor>& tensors, kernels::Arena& arena) {
  const kernels::DType dtype = backend.activation_dtype();
  std::vector<Place> places;
  for (const SlotTensor& tensor : tensors) {
    if (tensor.shared_with >= 0) {
      places.push_back(places[tensor.shared_with]);
      continue;
    }
    Place place;
    place.master = arena.Matrix(tensor.rows, tensor.columns);
    if (dtype != kernels::DType::kFloat32) {
      const bool rank_rows = tensor.matrix == 'A';
      place.copy =
          arena.Matrix(rank_rows ? kernels::PaddedRank(tensor.rows) : tensor.rows,
                       rank_rows ? tensor.columns : kernels::PaddedRank(tensor.columns), dtype);
    }
    if (tensor.trainable) {
      place.exp_avg = arena.Matrix(tensor.rows, tensor.columns);
      place.exp_avg_sq = arena.Matrix(tensor.rows, tensor.columns);
      place.gradient = arena.Allocate<int64_t>(tensor.elements());
    }
    places.push_back(place);
  }
  return places;
}

float* Slot::LayStaging(const std::vector<SlotTensor>& tensors, kernels::Arena& arena) {
  int64_t elements = 0;
  for (const SlotTensor& tensor : tensors) {
    if (tensor.shared_with < 0 && tensor.trainable) elements += tensor.elements();
  }
  return arena.Allocate<float>(3 * elements);
}

SlotBytes Slot::CountBytes(const kernels::Backend& backend,
                           const std::vector<SlotTensor>& tensors) {
  kernels::Arena device(backend.device());
  Lay(backend, tensors, device);
  kernels::Arena host(kernels::Device::kCpu);
  LayStaging(tensors, host);
  return {.device = device.bytes_max(), .host = host.bytes_max()};
}

int64_t Slot::BudgetBytes(const kernels::Backend& backend, const std::vector<SlotTensor>& tensors) {
  const SlotBytes bytes = CountBytes(backend, tensors);
  return backend.device() == kernels::Device::kCpu ? bytes.device + bytes.host : bytes.device;
}

absl::StatusOr<std::unique_ptr<Slot>> Slot::Create(kernels::Backend* backend,
                                                   std::vector<SlotTensor> tensors,
                                                   SlotOptions options) {
  std::unique_ptr<Slot> slot(new Slot(backend, std::move(tensors), std::move(options)));
  slot->bytes_ = BudgetBytes(*backend, slot->tensors_);
  const SlotBytes bytes = CountBytes(*backend, slot->tensors_);
  auto arena = backend->MakeArena(bytes.device);
  if (!arena.ok()) return arena.status();
  slot->arena_ = *std::move(arena);
  auto staging = backend->MakeHostArena(bytes.host);
  if (!staging.ok()) return staging.status();
  slot->staging_arena_ = *std::move(staging);
  slot->places_ = Lay(*backend, slot->tensors_, *slot->arena_);
  slot->staging_ = LayStaging(slot->tensors_, *slot->staging_arena_);
  for (const Place& place : slot->places_) {
    for (const TensorView& view : {place.master, place.copy, place.exp_avg, place.exp_avg_sq}) {
      if (!view.empty()) backend->Zero(view);
    }
  }
  if (slot->options_.answers_only) return slot;
  slot->optimizer_ = slot->MakeOptimizer();
  backend->DropGradients(*slot->optimizer_);
  return slot;
}

void Slot::Initialize() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const SlotTensor& tensor = tensors_[i];
    if (tensor.shared_with >= 0) continue;
    if (tensor.initialization == SlotTensor::Initialization::kKaimingUniform) {
      backend_->InitializeA(options_.init_seed, tensor.layer, tensor.target, places_[i].master);
    } else {
      backend_->Zero(places_[i].master);
    }
  }
  RefreshCopies();
}

void Slot::RefreshCopies() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].shared_with >= 0 || places_[i].copy.empty()) continue;
    backend_->Cast(places_[i].master, places_[i].copy);
  }
}

void Slot::Bind(const Model& model, kernels::AdapterTable* table, int32_t index) const {
  // Tensors come as pairs A, B of one target, in ascending output ranges inside a group.
  std::map<int32_t, std::vector<kernels::LoraTarget>> groups;
  for (size_t i = 0; i + 1 < tensors_.size(); i += 2) {
    const SlotTensor& a = tensors_[i];
    assert(a.matrix == 'A' && tensors_[i + 1].matrix == 'B');
    const int32_t group = a.of_out_group ? model.OutGroup(a.block) : model.InGroup(a.block);
    groups[group].push_back({.first_output = a.first_output,
                             .outputs = a.outputs,
                             .rank = a.rows,
                             .a = places_[i].master.f32(),
                             .b = places_[i + 1].master.f32(),
                             .a_copy = places_[i].copy,
                             .b_copy = places_[i + 1].copy,
                             .scale = static_cast<float>(a.scale),
                             .dropout = static_cast<float>(options_.dropout),
                             .layer = a.layer,
                             .target = a.target,
                             .da = places_[i].gradient,
                             .db = places_[i + 1].gradient});
  }
  for (const auto& [group, targets] : groups) backend_->SetTargets(*table, index, group, targets);
}

std::unique_ptr<kernels::Optimizer> Slot::MakeOptimizer() const {
  std::vector<kernels::OptimizerTensor> trained;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const SlotTensor& tensor = tensors_[i];
    if (tensor.shared_with >= 0 || !tensor.trainable) continue;
    const Place& place = places_[i];
    trained.push_back({.parameter = place.master.f32(),
                       .exp_avg = place.exp_avg.f32(),
                       .exp_avg_sq = place.exp_avg_sq.f32(),
                       .gradient = place.gradient,
                       .elements = tensor.elements(),
                       .columns = tensor.columns,
                       .copy = place.copy,
                       .learning_rate_factor = tensor.learning_rate_factor,
                       .weight_decay = options_.weight_decay * tensor.decay_factor});
  }
  return backend_->MakeOptimizer(trained);
}

void Slot::Stage(const std::string& numerics_id) {
  std::vector<storage::TensorEntry> entries;
  std::map<std::string, TensorView> sources;
  const auto add = [&](const std::string& name, const SlotTensor& tensor, const TensorView& view) {
    entries.push_back({.name = name, .shape = {tensor.rows, tensor.columns}});
    sources[name] = view;
  };
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const SlotTensor& tensor = tensors_[i];
    if (tensor.shared_with >= 0 || !tensor.trainable) continue;
    add(tensor.name, tensor, places_[i].master);
    add(absl::StrCat(tensor.name, storage::kFirstMomentSuffix), tensor, places_[i].exp_avg);
    add(absl::StrCat(tensor.name, storage::kSecondMomentSuffix), tensor, places_[i].exp_avg_sq);
  }
  const storage::SafetensorsLayout layout(
      std::move(entries),
      storage::ShardMetadata({.job = options_.job, .step = step_, .numerics_id = numerics_id}));
  for (const storage::TensorInfo& info : layout.tensors()) {
    backend_->CopyToHost(sources.at(info.name), staging_ + info.begin / sizeof(float));
  }
  staged_.prefix = layout.prefix();
  staged_.data = {reinterpret_cast<const char*>(staging_),
                  static_cast<size_t>(layout.file_bytes() - staged_.prefix.size())};
  staged_.step = step_;
}

}  // namespace lorad::worker
