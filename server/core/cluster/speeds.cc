// How fast workers are beside others of their kind (DeviceKeyOf), whose times are learned together.
// Of t = slowness x times only the product is measured, so the two are found from one another: what
// goes into the times is divided by the slowness, and the slowness is how long the newest
// microbatches took by the times, over how long those of the fastest of the kind did, which has 1;
// of more than four over the slowest of the fastest quarter, lest noise choose whom all others are
// slow beside. So the times become those of that one. Only workers that train one base model at one
// time are compared: one that trains alone may be faster for just that, where they share a host. Who
// is compared with nobody stays as slow as it was, for a while; who is alone of its kind has 1, and
// its times for the kind's.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "server/core/cluster/cluster.h"

namespace lorad::server {
namespace {

struct Measured {
  WorkerState* worker = nullptr;
  double ratio = 0;  // of the time that it took to the one by the times of its kind
};

void Compare(std::vector<Measured>& alike) {
  if (alike.size() < 2) return;
  std::ranges::sort(alike, {}, &Measured::ratio);
  const double usual = alike[(alike.size() - 1) / 4].ratio;
  for (const auto& [worker, ratio] : alike) {
    const double slowness =
        std::clamp(ratio / usual, 1 / Cluster::kSlownessMax, Cluster::kSlownessMax);
    const bool is_noticed = slowness >= Cluster::kNoticed || slowness <= 1 / Cluster::kNoticed;
    worker->slowness = is_noticed ? slowness : 1;
    worker->compared_us = worker->measured_us;
  }
}

}  // namespace

void Cluster::Observe(const std::string& base_model, const planner::ModelShape& shape,
                      WorkerState& worker, int64_t capacity_tokens,
                      const TimedMicrobatch& microbatch) {
  worker.speed.Observe(base_model, microbatch);
  worker.measured_us = turn_.now_us();
  TimedMicrobatch of_kind = microbatch;
  of_kind.forward_ms /= worker.slowness;
  of_kind.backward_ms /= worker.slowness;
  fits_.Observe(base_model, shape, worker, capacity_tokens, of_kind);
}

void Cluster::ForgetSpeed(WorkerState& worker) {
  worker.speed = {};
  worker.slowness = 1;
}

void Cluster::CompareSpeeds() {
  std::map<std::string, std::vector<WorkerState*>> kinds;
  for (WorkerState* worker : Connected()) kinds[DeviceKeyOf(worker)].push_back(worker);
  for (const auto& [kind, workers] : kinds) {
    std::map<std::string, std::vector<Measured>> by_base_model;
    for (WorkerState* worker : workers) {
      const bool is_old = turn_.now_us() - worker->compared_us > kSlowForUs;
      if (worker->slowness > 1 && is_old) ForgetSpeed(*worker);
      if (workers.size() == 1) worker->slowness = 1;
      const auto idle_ms = static_cast<double>(turn_.now_us() - worker->measured_us) / 1e3;
      if (idle_ms > worker->speed.SpanMs()) continue;
      const std::string& base_model = worker->speed.base_model();
      // Beside what jobs are placed by.
      const planner::TimeModel* times = fits_.Nearest(base_model, kind, UsualTokens(*worker));
      const double ratio = times ? worker->speed.Ratio(*times) : 0;
      if (ratio > 0) by_base_model[base_model].push_back({worker, ratio});
    }
    for (auto& [base_model, alike] : by_base_model) Compare(alike);
  }
}

}  // namespace lorad::server
