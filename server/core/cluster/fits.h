// What was learned of workers: the time of microbatches, by base model, device, numerics id and
// length of a microbatch; the time that forming a group takes and the memory beyond what is
// counted, by base model and device with its numerics id; and how true forecasts were
// (planner/cost/time.h, memory_fit.h, forecast_errors.h). Kept over starts.
//
// Invariants: a fit is found by what it was learned of; what has changed since it was put into the
// store is marked. A part of Cluster; it knows the Turn, and workers as values. Threads: the core's
// one. Errors: of Load, DATA_LOSS (STORE_CORRUPT).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "planner/cost/forecast_errors.h"
#include "planner/cost/memory.h"
#include "planner/cost/memory_fit.h"
#include "planner/cost/time.h"
#include "server/core/cluster/worker_state.h"
#include "server/core/events/turn.h"

namespace lorad::server {

// The key under which times are learned: workers of equal keys share them. Null: some CPU.
std::string DeviceKeyOf(const WorkerState* worker);

class Fits {
 public:
  explicit Fits(Turn& turn) : turn_(turn) {}
  absl::Status Load(const std::vector<std::pair<std::string, std::string>>& stored);

  // ---- times ----
  // Of a group with microbatches of so many tokens at the most, on a worker that is as slow as its
  // kind.
  void Observe(const std::string& base_model, const planner::ModelShape& shape,
               const WorkerState& worker, int64_t capacity_tokens,
               const TimedMicrobatch& microbatch);
  // The times measured at that capacity, else at the nearest one on such a device, else the prior.
  // The reference holds until the base model is forgotten.
  const planner::TimeModel& TimesOf(const std::string& base_model, const planner::ModelShape& shape,
                                    const WorkerState* worker, int64_t capacity_tokens);
  // Of such a device (DeviceKeyOf), measured at the nearest capacity; null where nothing was.
  const planner::TimeModel* Nearest(const std::string& base_model, const std::string& device,
                                    int64_t capacity_tokens) const;

  // ---- forming a group ----
  void ObserveLoad(const std::string& base_model, const WorkerState& worker, double seconds);
  // As it took last; before that, as if the weights came from a disk of kLoadBytesPerSecond.
  double LoadSeconds(const std::string& base_model, const planner::ModelShape& shape,
                     const WorkerState& worker) const;
  static constexpr double kLoadBytesPerSecond = 1e9;

  // ---- memory ----
  const planner::MemoryFit& Observe(const std::string& base_model, const WorkerState& worker,
                                    const planner::MemoryFit::Peak& peak);
  // Null where nothing is known of that base model on such a device.
  const planner::MemoryFit* MemoryOf(const std::string& base_model,
                                     const WorkerState& worker) const;

  // ---- forecasts ----
  const planner::ForecastErrors& starts() const { return starts_; }
  const planner::ForecastErrors& ends() const { return ends_; }
  void ObserveStart(double forecast_s, double actual_s, bool inside);
  void ObserveEnd(double forecast_s, double actual_s, bool inside);

  // Those that have changed go into the store.
  void Put();
  // The base model is there no more.
  void Forget(const std::string& base_model);

 private:
  using Key = std::tuple<std::string, std::string, int64_t>;  // base model, device, capacity
  planner::TimeModel& TimesAt(const Key& key, const planner::ModelShape& shape,
                              const WorkerState* worker);

  Turn& turn_;
  std::map<Key, planner::TimeModel> times_;
  std::map<Key, records::FitRecord>
      stored_times_;  // not taken up yet: its model's shape is known later
  using DeviceKey = std::pair<std::string, std::string>;  // base model, device
  std::map<DeviceKey, double> load_s_;
  std::map<DeviceKey, planner::MemoryFit> memory_;
  std::set<Key> changed_times_;
  std::set<DeviceKey> changed_loads_, changed_memory_;
  planner::ForecastErrors starts_, ends_;
  bool changed_forecasts_ = false;
};

}  // namespace lorad::server
