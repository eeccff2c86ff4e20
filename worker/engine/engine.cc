// Forming a group, and the slots: who is resident, what they start from, where they go.
#include "worker/engine/engine.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "storage/files/errors.h"
#include "worker/engine/slot_content.h"
#include "worker/host/process.h"

namespace lorad::worker {
namespace {

// The content that a slot starts from comes within this, or not: for the first byte, and for each
// after it.
constexpr int64_t kFetchMs = 10'000;
constexpr int64_t kFetchBytesPerMs = 4096;

// Whether what a slot starts from may be had by another try.
bool Passes(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status) || absl::IsAborted(status) ||
         absl::IsCancelled(status) || absl::IsInternal(status) || absl::IsUnknown(status);
}

absl::Status WithReason(absl::Status status, std::string_view reason) {
  status.SetPayload(storage::Absl(storage::kReasonPayload), absl::Cord(storage::Absl(reason)));
  return status;
}

absl::Status CheckFits(int64_t bytes, int64_t held, int64_t budget, std::string_view what) {
  if (budget == 0 || bytes + held <= budget) return absl::OkStatus();
  return WithReason(absl::ResourceExhaustedError(
                        absl::StrCat(storage::Absl(what), " needs ", bytes, " bytes beside ", held,
                                     " that are in use, and the worker may use ", budget,
                                     "; give it more (--memory), or smaller microbatches")),
                    "MEMORY");
}

SlotOptions OptionsOf(const v1::SlotSpec& spec) {
  SlotOptions options;
  options.job = spec.job();
  options.dropout = spec.dropout();
  for (const std::string& target : spec.target_modules()) {
    options.modules.push_back({target, {}, spec.rank(), spec.scale()});
  }
  if (spec.modules_size() > 0) options.modules.clear();
  for (const v1::SlotSpec::Modules& modules : spec.modules()) {
    options.modules.push_back({modules.target(),
                               {modules.layers().begin(), modules.layers().end()},
                               modules.rank(),
                               modules.scale()});
  }
  options.init_seed = spec.init_seed();
  options.dropout_seed = spec.seed();
  options.beta1 = spec.beta1();
  options.beta2 = spec.beta2();
  options.eps = spec.eps();
  options.weight_decay = spec.weight_decay();
  options.max_grad_norm = spec.max_grad_norm();
  if (spec.has_loraplus_lr_ratio()) options.loraplus_lr_ratio = spec.loraplus_lr_ratio();
  options.answers_only = spec.answers_only();
  return options;
}

Recomputation RecomputationOf(const v1::FormGroup& order) {
  switch (order.recomputation()) {
    case v1::FormGroup::NOTHING:
      return Recomputation::kNothing;
    case v1::FormGroup::BLOCKS:
      return Recomputation::kBlocks;
    default:
      return Recomputation::kProducts;
  }
}

absl::StatusOr<GroupShape> ShapeOf(const v1::FormGroup& order) {
  if (order.longest_sequence() < 1 || order.longest_sequence() > order.capacity_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("longest sequence ", order.longest_sequence(),
                                                   " is not in 1..", order.capacity_tokens(),
                                                   " (the capacity)"));
  }
  const GroupShape shape{.capacity_tokens = order.capacity_tokens(),
                         .longest_sequence = order.longest_sequence(),
                         .recomputation = RecomputationOf(order),
                         .rank_max = order.rank_max() > 0 ? order.rank_max() : kRankMax,
                         .slots_max = order.slots_max() > 0 ? order.slots_max() : kSlotsMax,
                         .in_flight = std::max(order.microbatches_in_flight(), 1)};
  if (shape.rank_max > kRankMax || shape.slots_max > kSlotsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a group of ", shape.slots_max,
                                                   " slots of rank ", shape.rank_max, ": at most ",
                                                   kSlotsMax, " and ", kRankMax));
  }
  if (shape.in_flight > sizes::kInFlightMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        shape.in_flight, " microbatches in flight on a stage: at most ", sizes::kInFlightMax));
  }
  return shape;
}

// The blocks of this stage. Stage 0 begins with the first block, the last one ends with the last.
absl::StatusOr<StageRange> RangeOf(const v1::FormGroup& order,
                                   const storage::ModelDescription& description) {
  const StageRange whole = WholeModel(description);
  const StageRange range =
      order.end_block() > 0 ? StageRange{order.first_block(), order.end_block()} : whole;
  const int stages = std::max(order.stages(), 1);
  const bool first = order.stage() == 0;
  const bool last = order.stage() == stages - 1;
  const bool fits = order.stage() >= 0 && order.stage() < stages && range.first_block >= 0 &&
                    range.first_block < range.end_block && range.end_block <= whole.end_block &&
                    first == (range.first_block == 0) &&
                    last == (range.end_block == whole.end_block);
  if (fits) return range;
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(
          "blocks ", range.first_block, " to ", range.end_block, " of ", whole.end_block,
          " cannot be stage ", order.stage(), " of ", stages,
          ": the first stage begins with block 0, the last one ends with the last block")),
      "BAD_STAGE");
}

}  // namespace

Engine::Engine(const v1::FormGroup& order, const Environment& environment)
    : environment_(environment),
      order_(order),
      stage_(order.stage()),
      stages_(std::max(order.stages(), 1)) {}

Engine::~Engine() {
  if (model_ != nullptr) environment_.backend->Synchronize();  // before memory goes
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Form(const v1::FormGroup& order,
                                                     const Environment& environment) {
  assert(environment.kept != nullptr);
  const auto shape = ShapeOf(order);
  if (!shape.ok()) return shape.status();
  const double started_ms = environment.clock();
  std::unique_ptr<Engine> engine(new Engine(order, environment));
  const auto directory = environment.options.model_files->Open(order, environment.context);
  if (!directory.ok()) return directory.status();
  const auto range = RangeOf(order, directory->description());
  if (!range.ok()) return range.status();
  v1::Report report;
  v1::GroupFormed& formed = *report.mutable_group_formed();
  absl::Status status = engine->MakeModel(*directory, *range, *shape, &formed);
  if (!status.ok()) return status;
  engine->table_ = environment.backend->MakeAdapterTable(static_cast<int32_t>(shape->slots_max),
                                                         engine->model_->groups());
  status = engine->MakeWayBack();
  if (!status.ok()) return WithReason(status, "MEMORY_TAKEN");
  engine->index_taken_.assign(static_cast<size_t>(shape->slots_max), false);
  engine->place_taken_.assign(static_cast<size_t>(shape->in_flight), false);
  formed.set_load_seconds((environment.clock() - started_ms) / 1000);
  formed.set_endpoint(environment.context.endpoint);
  engine->Report(std::move(report));
  return engine;
}

// All memory is taken before the first weight is read: who finds too little learns it at once.
absl::Status Engine::MakeModel(const storage::ModelDirectory& directory, StageRange range,
                               const GroupShape& shape, v1::GroupFormed* formed) {
  const storage::ModelDescription& description = directory.description();
  kernels::Backend* backend = environment_.backend;
  const int64_t bytes = Model::CountBytes(backend, description, range, shape);
  const int64_t weights_bytes = Weights::CountBytes(backend, description, range);
  group_bytes_ = bytes + Model::LandingBytes(*backend, description, range, shape);
  const int64_t budget =
      order_.budget_bytes() > 0 ? order_.budget_bytes() : environment_.options.memory_bytes;
  absl::Status status = CheckFits(group_bytes_, 0, budget, "the group");
  if (!status.ok()) return status;
  weights_ = environment_.kept->Find(directory, range);
  const bool kept = weights_ != nullptr;
  const bool resident = kept && backend->device() == kernels::Device::kCpu;
  formed->set_reserved_bytes(group_bytes_);
  formed->set_baseline_resident_bytes(
      std::max<int64_t>(ResidentBytes() - (resident ? weights_bytes : 0), 0));
  formed->set_weights_kept(kept);
  std::shared_ptr<Weights> read;
  if (!kept) {
    auto made = Weights::Make(backend, description, range);
    if (!made.ok()) return WithReason(made.status(), "MEMORY_TAKEN");
    weights_ = read = *std::move(made);
  }
  auto arena = backend->MakeArena(bytes - weights_bytes);
  if (!arena.ok()) return WithReason(arena.status(), "MEMORY_TAKEN");
  arena_ = *std::move(arena);
  model_ = std::make_unique<Model>(backend, *weights_, shape, *arena_);
  if (kept) {
    spdlog::info("{}: the weights that were loaded are kept", directory.path());
    return absl::OkStatus();
  }
  status = read->Load(directory);
  if (status.ok()) environment_.kept->Keep(directory, std::move(read));
  return status;
}

absl::Status Engine::MakeWayBack() {
  way_back_ = std::make_unique<WayBack>(WayBack::Environment{
      .backend = environment_.backend,
      .table = table_.get(),
      .report = environment_.context.report,
      .has_head = model_->has_head(),
      .on_loss_not_finite =
          [this](const std::string& job, int64_t step, const std::vector<int64_t>& sequences) {
            FailJob(job, &residents_.at(job), step, sequences, "validation loss");
          },
  });
  return way_back_->Reserve(model_->shape(), 2 * model_->targets(),
                            model_->description().vocabulary);
}

void Engine::Report(v1::Report report) { environment_.context.report(std::move(report)); }

absl::StatusOr<Resident*> Engine::Find(const std::string& job) {
  const auto found = residents_.find(job);
  if (found == residents_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("job ", job, " has no slot here"));
  }
  return &found->second;
}

absl::Status Engine::LoadSlot(const v1::Operation& operation) {
  if (const auto known = residents_.find(operation.job()); known != residents_.end()) {
    if (known->second.slot != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("job ", operation.job(), " has a slot already"));
    }
    residents_.erase(known);  // it could not be loaded; another try
  }
  if (operation.slot().job() != operation.job()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "LoadSlot of job ", operation.job(), " describes a slot of job ", operation.slot().job()));
  }
  Resident& resident = residents_[operation.job()];
  const absl::Status status = TryLoadSlot(operation, &resident);
  v1::Report report;
  if (status.ok()) {
    v1::SlotLoaded& loaded = *report.mutable_slot_loaded();
    loaded.set_job(operation.job());
    loaded.set_step(resident.slot->step());
    loaded.set_bytes(resident.slot->bytes());
  } else {
    resident.slot.reset();
    resident.failed = true;
    if (absl::IsUnavailable(status)) return status;  // whether it is tried again is not ours to say
    spdlog::error("job {}: its slot was not loaded: {}", operation.job(), status.ToString());
    v1::SlotFailed& failed = *report.mutable_slot_failed();
    failed.set_job(operation.job());
    const std::string reason = storage::ReasonOf(status);
    failed.set_reason(reason.empty() ? "SLOT_LOAD" : reason);
    failed.set_message(std::string(status.message()));
  }
  Report(std::move(report));
  return absl::OkStatus();
}

absl::Status Engine::TryLoadSlot(const v1::Operation& operation, Resident* resident) {
  const SlotOptions options = OptionsOf(operation.slot());
  for (const SlotModules& modules : options.modules) {
    if (modules.rank <= model_->shape().rank_max) continue;
    return absl::InvalidArgumentError(absl::StrCat("rank ", modules.rank, " of job ", options.job,
                                                   "; this group was formed for ranks up to ",
                                                   model_->shape().rank_max));
  }
  auto tensors = ListLoraTensors(model_->description(), model_->range(), options);
  if (!tensors.ok()) return tensors.status();
  const int64_t budget =
      order_.budget_bytes() > 0 ? order_.budget_bytes() : environment_.options.memory_bytes;
  absl::Status status =
      CheckFits(Slot::BudgetBytes(*environment_.backend, *tensors), group_bytes_ + slot_bytes_,
                budget, absl::StrCat("the slot of job ", options.job).c_str());
  if (!status.ok()) return status;
  const auto free = std::find(index_taken_.begin(), index_taken_.end(), false);
  if (free == index_taken_.end()) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat("all ", index_taken_.size(),
                                                                " slots of this group are in use")),
                      "SLOTS");
  }
  auto slot = Slot::Create(environment_.backend, *std::move(tensors), options);
  if (!slot.ok()) return WithReason(slot.status(), "MEMORY_TAKEN");
  if (operation.content().empty()) {
    (*slot)->Initialize();
  } else {
    status = FetchContent(operation, slot->get());
    if (!status.ok()) return status;
  }
  resident->slot = *std::move(slot);
  resident->index = static_cast<int32_t>(free - index_taken_.begin());
  *free = true;
  slot_bytes_ += resident->slot->bytes();
  resident->slot->Bind(*model_, table_.get(), resident->index);
  return absl::OkStatus();
}

absl::Status Engine::FetchContent(const v1::Operation& operation, Slot* slot) {
  v1::FetchSlotContentRequest request;
  request.set_epoch(order_.epoch());
  request.set_job(operation.job());
  request.set_content(operation.content());
  if (stages_ > 1) {
    for (const SlotTensor& tensor : slot->tensors()) {
      if (tensor.shared_with < 0) request.add_tensors(tensor.name);
    }
  }
  SlotContentReader reader(environment_.backend, slot, stages_ == 1);
  const int64_t timeout_ms = kFetchMs + slot->bytes() / kFetchBytesPerMs;
  absl::Status unreadable;  // kept apart: what the reader refuses no other try mends
  const absl::Status status =
      environment_.context.fetch(request, timeout_ms, [&](std::string_view piece) {
        unreadable = reader.Append(piece);
        return unreadable;
      });
  if (!unreadable.ok()) return unreadable;
  if (status.ok()) return reader.Finish();
  if (absl::IsDataLoss(status)) return WithReason(status, "CHECKPOINT_CORRUPT");
  return Passes(status) ? absl::UnavailableError(status.message()) : status;
}

absl::Status Engine::Save(Resident* resident, const v1::Operation& operation) {
  if (resident->slot->step() != operation.step()) {
    return absl::InvalidArgumentError(absl::StrCat("Save of job ", operation.job(), " at step ",
                                                   operation.step(), ", but its slot is at step ",
                                                   resident->slot->step()));
  }
  if (resident->slot->options().answers_only) {
    return absl::InvalidArgumentError(
        absl::StrCat("Save of job ", operation.job(), ", whose slot only answers"));
  }
  resident->slot->Stage(environment_.options.numerics_id);
  return absl::OkStatus();
}

Shard Engine::Staged(const std::string& job) const { return residents_.at(job).slot->staged(); }

absl::Status Engine::FreeSlot(const std::string& job) {
  auto resident = Find(job);
  if (!resident.ok()) return resident.status();
  way_back_->Finish();
  environment_.backend->Synchronize();  // before memory goes
  if ((*resident)->slot != nullptr) {
    environment_.backend->ClearSlot(*table_, (*resident)->index);
    index_taken_[(*resident)->index] = false;
    slot_bytes_ -= (*resident)->slot->bytes();
  }
  residents_.erase(job);
  v1::Report report;
  report.mutable_slot_freed()->set_job(job);
  Report(std::move(report));
  return absl::OkStatus();
}

namespace {

class Maker : public EngineMaker {
 public:
  Maker(kernels::Backend* backend, EngineOptions options, Clock clock)
      : backend_(backend), options_(std::move(options)), clock_(std::move(clock)) {}

  absl::StatusOr<std::unique_ptr<GroupEngine>> Form(const v1::FormGroup& order,
                                                    const EngineContext& context) override {
    auto engine = Engine::Form(order, {backend_, context, options_, clock_, &kept_});
    if (!engine.ok()) kept_.Drop();
    return engine;
  }
  void DropWeights() override { kept_.Drop(); }

 private:
  kernels::Backend* const backend_;
  const EngineOptions options_;
  const Clock clock_;
  KeptWeights kept_;
};

}  // namespace

std::unique_ptr<EngineMaker> MakeEngineMaker(kernels::Backend* backend, EngineOptions options,
                                             Clock clock) {
  return std::make_unique<Maker>(backend, std::move(options), std::move(clock));
}

}  // namespace lorad::worker
