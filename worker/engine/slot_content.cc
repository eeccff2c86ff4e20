#include "worker/engine/slot_content.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "storage/adapters/checkpoint.h"
#include "storage/files/errors.h"

namespace lorad::worker {
namespace {

constexpr size_t kPieceFloats = 1 << 16;

absl::Status Invalid(const std::string& job, std::string_view what) {
  return storage::Refuse(
      "CONTENT_INVALID",
      absl::StrCat("what the slot of job ", job, " should start from ", storage::Absl(what)));
}

}  // namespace

SlotContentReader::SlotContentReader(kernels::Backend* backend, Slot* slot, bool whole)
    : backend_(backend), slot_(slot), whole_(whole) {}

absl::Status SlotContentReader::Append(std::string_view piece) {
  if (!have_header_) {
    prefix_.append(piece);
    if (prefix_.size() < 8) return absl::OkStatus();
    const auto length = storage::SafetensorsPrefixBytes(prefix_, storage::kUnknownFileBytes);
    if (!length.ok()) return length.status();
    if (prefix_.size() < *length) return absl::OkStatus();
    const std::string rest = prefix_.substr(*length);
    prefix_.resize(*length);
    absl::Status status = ReadHeader();
    if (!status.ok()) return status;
    return rest.empty() ? absl::OkStatus() : Append(rest);
  }
  while (!piece.empty()) {
    while (run_ < runs_.size() && run_done_ == runs_[run_].bytes) {
      ++run_;
      run_done_ = 0;
    }
    if (run_ == runs_.size()) {
      return Invalid(slot_->options().job, "goes on behind its last tensor");
    }
    Fill(&piece);
  }
  return absl::OkStatus();
}

absl::Status SlotContentReader::ReadHeader() {
  const auto header = storage::ParseSafetensorsHeader(prefix_, storage::kUnknownFileBytes);
  if (!header.ok()) return header.status();
  const auto state = storage::ShardState(*header);
  if (!state.ok()) return state.status();
  step_ = state->step;
  numerics_id_ = state->numerics_id;
  absl::Status status = Plan(*header);
  have_header_ = true;
  prefix_.clear();
  return status;
}

absl::Status SlotContentReader::Plan(const storage::SafetensorsHeader& header) {
  const std::string& job = slot_->options().job;
  std::map<std::string, std::pair<kernels::TensorView, size_t>> wanted;
  std::set<std::string> left_out;
  size_t masters = 0;
  size_t moments = 0;
  for (size_t i = 0; i < slot_->tensors().size(); ++i) {
    const SlotTensor& tensor = slot_->tensors()[i];
    const Slot::Place& place = slot_->places()[i];
    if (tensor.shared_with >= 0) continue;
    wanted[tensor.name] = {place.master, i};
    ++masters;
    const std::string first = absl::StrCat(tensor.name, storage::kFirstMomentSuffix);
    const std::string second = absl::StrCat(tensor.name, storage::kSecondMomentSuffix);
    if (!tensor.trainable) {
      left_out.insert({first, second});
      continue;
    }
    wanted[first] = {place.exp_avg, i};
    wanted[second] = {place.exp_avg_sq, i};
    moments += 2;
  }
  std::vector<const storage::TensorInfo*> in_file_order;
  for (const storage::TensorInfo& info : header.tensors) in_file_order.push_back(&info);
  std::sort(in_file_order.begin(), in_file_order.end(),
            [](const auto* a, const auto* b) { return a->begin < b->begin; });
  size_t masters_seen = 0;
  size_t moments_seen = 0;
  for (const storage::TensorInfo* info : in_file_order) {
    const auto found = wanted.find(info->name);
    if (found == wanted.end()) {
      if (whole_ && !left_out.contains(info->name)) {
        return Invalid(job, "has a tensor that does not belong to it: " + info->name);
      }
      runs_.push_back({info->bytes(), kernels::TensorView{}});
      continue;
    }
    const SlotTensor& tensor = slot_->tensors()[found->second.second];
    if (info->type != storage::TensorType::kF32 ||
        info->shape != std::vector<int64_t>{tensor.rows, tensor.columns}) {
      return Invalid(job, absl::StrCat("has ", info->name, " as ",
                                       storage::Absl(storage::TensorTypeName(info->type)), " ",
                                       storage::ShapeString(info->shape), ", not F32 ",
                                       storage::ShapeString({tensor.rows, tensor.columns})));
    }
    ++(info->name == tensor.name ? masters_seen : moments_seen);
    runs_.push_back({info->bytes(), found->second.first});
  }
  if (masters_seen != masters) {
    return Invalid(job,
                   absl::StrCat("has ", masters_seen, " of the slot's ", masters, " matrices"));
  }
  if (moments_seen != 0 && moments_seen != moments) {
    return Invalid(job, absl::StrCat("has ", moments_seen, " of the slot's ", moments, " moments"));
  }
  return absl::OkStatus();
}

// Takes from `data` what fits the current run, at most a piece.
void SlotContentReader::Fill(std::string_view* data) {
  const Run& run = runs_[run_];
  const auto left = static_cast<size_t>(run.bytes - run_done_);
  if (run.target.empty()) {
    const size_t taken = std::min(left, data->size());
    run_done_ += taken;
    data->remove_prefix(taken);
    return;
  }
  const uint64_t first = run_done_ / sizeof(float);
  const auto take = [data](size_t bytes, char* to) {
    std::memcpy(to, data->data(), bytes);
    data->remove_prefix(bytes);
  };
  if (!carry_.empty() || data->size() < sizeof(float)) {
    const size_t had = carry_.size();
    carry_.resize(std::min(sizeof(float), had + data->size()));
    take(carry_.size() - had, carry_.data() + had);
    if (carry_.size() < sizeof(float)) return;
    piece_.resize(1);
    std::memcpy(piece_.data(), carry_.data(), sizeof(float));
    carry_.clear();
  } else {
    piece_.resize(std::min({left, data->size(), kPieceFloats * sizeof(float)}) / sizeof(float));
    take(piece_.size() * sizeof(float), reinterpret_cast<char*>(piece_.data()));
  }
  const size_t values = piece_.size();
  // The tensor is dense: a stretch of it is a matrix of one row.
  const kernels::TensorView stretch{.data = run.target.f32() + first,
                                    .rows = 1,
                                    .columns = static_cast<int64_t>(values),
                                    .row_stride = static_cast<int64_t>(values),
                                    .device = run.target.device};
  backend_->CopyToDevice(piece_.data(), stretch);
  run_done_ += values * sizeof(float);
}

absl::Status SlotContentReader::Finish() {
  while (run_ < runs_.size() && run_done_ == runs_[run_].bytes) {
    ++run_;
    run_done_ = 0;
  }
  if (!have_header_ || run_ < runs_.size()) {
    return Invalid(slot_->options().job, "ended before its last tensor");
  }
  slot_->set_step(step_);
  slot_->RefreshCopies();
  return absl::OkStatus();
}

}  // namespace lorad::worker
