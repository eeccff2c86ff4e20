#include "server/core/cluster/fits.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "server/core/catalog/model_shape.h"
#include "server/core/catalog/stored.h"
#include "server/core/events/store_kinds.h"

namespace lorad::server {
namespace {

std::vector<double> Of(const google::protobuf::RepeatedField<double>& values) {
  return {values.begin(), values.end()};
}

std::string TimesKey(const std::string& base_model, const std::string& device, int64_t capacity) {
  return absl::StrCat("time/", base_model, "/", capacity, "/", device);
}
std::string LoadKeyText(const std::string& base_model, const std::string& device) {
  return absl::StrCat("load/", base_model, "/", device);
}
// Of older versions without a device: found by nobody, and removed with the base model.
std::string MemoryKey(const std::string& base_model, const std::string& device) {
  return absl::StrCat("memory/", base_model, device.empty() ? "" : "/", device);
}
constexpr char kForecastsKey[] = "forecasts";

}  // namespace

std::string DeviceKeyOf(const WorkerState* worker) {
  const worker::v1::Hello hello = worker ? worker->hello : worker::v1::Hello();
  return absl::StrCat(hello.device_name(), "/", hello.threads(), "/", hello.multiprocessors(), "/",
                      hello.value_bytes(), "/", hello.numerics_id());
}

absl::Status Fits::Load(const std::vector<std::pair<std::string, std::string>>& stored) {
  for (const auto& entry : stored) {
    records::FitRecord record;
    if (auto status = ParseStored(kFitKind, entry, &record); !status.ok()) return status;
    if (entry.first == kForecastsKey) {
      starts_.SetValues(Of(record.start_errors()));
      ends_.SetValues(Of(record.end_errors()));
    } else if (record.has_load_seconds()) {
      load_s_[{record.base_model(), record.device()}] = record.load_seconds();
    } else if (record.memory().empty()) {
      const Key key(record.base_model(), record.device(), record.capacity_tokens());
      stored_times_[key] = std::move(record);
    } else {
      planner::MemoryFit fit;
      if (fit.SetSums(Of(record.memory()))) memory_[{record.base_model(), record.device()}] = fit;
    }
  }
  return absl::OkStatus();
}

// ---- times ----

planner::TimeModel& Fits::TimesAt(const Key& key, const planner::ModelShape& shape,
                                  const WorkerState* worker) {
  const auto found = times_.find(key);
  if (found != times_.end()) return found->second;
  const planner::DeviceShape device = worker ? DeviceOf(worker->hello) : planner::DeviceShape{};
  planner::TimeModel model(planner::PriorOf(WorkOf(shape, device)));
  if (const auto stored = stored_times_.find(key); stored != stored_times_.end()) {
    if (!model.SetSums(Of(stored->second.forward()), Of(stored->second.backward()))) {
      turn_.Info(absl::StrCat(
          "times of model '", std::get<0>(key),
          "' in the store are of another version of lorad, or damaged: they are measured anew"));
    }
    stored_times_.erase(stored);
  }
  return times_.emplace(key, model).first->second;
}

void Fits::Observe(const std::string& base_model, const planner::ModelShape& shape,
                   const WorkerState& worker, int64_t capacity_tokens,
                   const TimedMicrobatch& microbatch) {
  const Key key(base_model, DeviceKeyOf(&worker), capacity_tokens);
  TimesAt(key, shape, &worker)
      .Observe(microbatch.work, microbatch.forward_ms, microbatch.backward_ms);
  changed_times_.insert(key);
}

const planner::TimeModel& Fits::TimesOf(const std::string& base_model,
                                        const planner::ModelShape& shape, const WorkerState* worker,
                                        int64_t capacity_tokens) {
  const std::string device = DeviceKeyOf(worker);
  const planner::TimeModel& exact = TimesAt({base_model, device, capacity_tokens}, shape, worker);
  if (exact.is_measured()) return exact;
  // Those that are stored are taken up first.
  std::vector<Key> stored;
  for (auto entry = stored_times_.lower_bound({base_model, device, 0});
       entry != stored_times_.end() && std::get<0>(entry->first) == base_model &&
       std::get<1>(entry->first) == device;
       ++entry) {
    stored.push_back(entry->first);
  }
  for (const Key& key : stored) TimesAt(key, shape, worker);
  const planner::TimeModel* nearest = Nearest(base_model, device, capacity_tokens);
  return nearest ? *nearest : exact;
}

const planner::TimeModel* Fits::Nearest(const std::string& base_model, const std::string& device,
                                        int64_t capacity_tokens) const {
  const planner::TimeModel* nearest = nullptr;
  int64_t distance = 0;
  for (auto entry = times_.lower_bound({base_model, device, 0});
       entry != times_.end() && std::get<0>(entry->first) == base_model &&
       std::get<1>(entry->first) == device;
       ++entry) {
    const int64_t away = std::abs(std::get<2>(entry->first) - capacity_tokens);
    if (!entry->second.is_measured() || (nearest && away >= distance)) continue;
    nearest = &entry->second;
    distance = away;
  }
  return nearest;
}

// ---- forming a group ----

void Fits::ObserveLoad(const std::string& base_model, const WorkerState& worker, double seconds) {
  const DeviceKey key(base_model, DeviceKeyOf(&worker));
  load_s_[key] = seconds;
  changed_loads_.insert(key);
}

double Fits::LoadSeconds(const std::string& base_model, const planner::ModelShape& shape,
                         const WorkerState& worker) const {
  const auto found = load_s_.find({base_model, DeviceKeyOf(&worker)});
  if (found != load_s_.end()) return found->second;
  planner::GroupShape group;
  group.device = DeviceOf(worker.hello);
  return static_cast<double>(planner::BytesOfGroup(shape, group).weights) / kLoadBytesPerSecond;
}

// ---- memory ----

const planner::MemoryFit& Fits::Observe(const std::string& base_model, const WorkerState& worker,
                                        const planner::MemoryFit::Peak& peak) {
  const DeviceKey key(base_model, DeviceKeyOf(&worker));
  planner::MemoryFit& fit = memory_[key];
  fit.Observe(peak);
  changed_memory_.insert(key);
  return fit;
}

const planner::MemoryFit* Fits::MemoryOf(const std::string& base_model,
                                         const WorkerState& worker) const {
  const auto found = memory_.find({base_model, DeviceKeyOf(&worker)});
  return found == memory_.end() ? nullptr : &found->second;
}

// ---- forecasts ----

void Fits::ObserveStart(double forecast_s, double actual_s, bool inside) {
  starts_.Observe(forecast_s, actual_s, inside);
  changed_forecasts_ = true;
}

void Fits::ObserveEnd(double forecast_s, double actual_s, bool inside) {
  ends_.Observe(forecast_s, actual_s, inside);
  changed_forecasts_ = true;
}

// ---- the store ----

void Fits::Put() {
  for (const Key& key : std::exchange(changed_times_, {})) {
    const planner::TimeModel& model = times_.at(key);
    const auto& [base_model, device, capacity] = key;
    records::FitRecord record;
    record.set_base_model(base_model);
    record.set_device(device);
    record.set_capacity_tokens(capacity);
    for (const double sum : model.forward().sums()) record.add_forward(sum);
    for (const double sum : model.backward().sums()) record.add_backward(sum);
    turn_.Put(storage::PutRecord(kFitKind, TimesKey(base_model, device, capacity),
                                 record.SerializeAsString()));
  }
  for (const auto& [base_model, device] : std::exchange(changed_loads_, {})) {
    records::FitRecord record;
    record.set_base_model(base_model);
    record.set_device(device);
    record.set_load_seconds(load_s_.at({base_model, device}));
    turn_.Put(
        storage::PutRecord(kFitKind, LoadKeyText(base_model, device), record.SerializeAsString()));
  }
  for (const auto& [base_model, device] : std::exchange(changed_memory_, {})) {
    records::FitRecord record;
    record.set_base_model(base_model);
    record.set_device(device);
    for (const double sum : memory_.at({base_model, device}).sums()) record.add_memory(sum);
    turn_.Put(
        storage::PutRecord(kFitKind, MemoryKey(base_model, device), record.SerializeAsString()));
  }
  if (std::exchange(changed_forecasts_, false)) {
    records::FitRecord record;
    for (const double value : starts_.values()) record.add_start_errors(value);
    for (const double value : ends_.values()) record.add_end_errors(value);
    turn_.Put(storage::PutRecord(kFitKind, kForecastsKey, record.SerializeAsString()));
  }
}

void Fits::Forget(const std::string& base_model) {
  const auto drop = [&](const auto& entry) {
    const auto& [model, device, capacity] = entry.first;
    if (model != base_model) return false;
    turn_.Put(storage::DeleteRecord(kFitKind, TimesKey(model, device, capacity)));
    return true;
  };
  std::erase_if(times_, drop);
  std::erase_if(stored_times_, drop);
  std::erase_if(changed_times_, [&](const Key& key) { return std::get<0>(key) == base_model; });
  std::erase_if(load_s_, [&](const auto& entry) {
    if (entry.first.first != base_model) return false;
    turn_.Put(storage::DeleteRecord(kFitKind, LoadKeyText(base_model, entry.first.second)));
    return true;
  });
  std::erase_if(changed_loads_, [&](const DeviceKey& key) { return key.first == base_model; });
  std::erase_if(memory_, [&](const auto& entry) {
    if (entry.first.first != base_model) return false;
    turn_.Put(storage::DeleteRecord(kFitKind, MemoryKey(base_model, entry.first.second)));
    return true;
  });
  std::erase_if(changed_memory_, [&](const DeviceKey& key) { return key.first == base_model; });
}

}  // namespace lorad::server
