#include "tests/sim/turns.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lorad::sim {
namespace {

// What is decided before a job waits is carried out a while later: a checkpoint is written, a group
// is cut.
constexpr int64_t kDecidedUs = 10'000'000;
// Who waits is seen to a second, and by two questions.
constexpr int64_t kSeenUs = 2'000'000;

}  // namespace

int64_t Turns::Known::waited_at_us(int64_t us) const {
  const auto after = std::ranges::upper_bound(began_us, us + kSeenUs);
  return after == began_us.begin() ? us : *std::prev(after);
}

void Turns::Look(int64_t now_us, const v1::ListWorkersResponse& workers,
                 const v1::ClusterStatus& cluster, const v1::ListJobsResponse& jobs,
                 absl::FunctionRef<bool(const v1::Worker&, const v1::Job&)> fits,
                 absl::FunctionRef<std::optional<Site::Move>(const std::string&)> last_move) {
  if (!hold_) return;
  // By worker that some job fits alone, and base model, who has waited for it the longest.
  std::map<std::string, std::map<std::string, const Known*>> first;
  for (const v1::Job& job : jobs.jobs()) {
    const auto [entry, is_new] = known_.try_emplace(job.name());
    Known& known = entry->second;
    const bool waited = std::exchange(known.waits, job.state() == v1::Job::QUEUED);
    if (is_new || (known.waits && !waited)) known.began_us.push_back(now_us);
    if (!known.waits) continue;
    known.has_waited = true;
    if (now_us - known.waited_since_us() < kDecidedUs) continue;
    const v1::Worker* only = nullptr;
    int many = 0;
    for (const v1::Worker& worker : workers.workers()) {
      if (!fits(worker, job)) continue;
      only = &worker;
      ++many;
    }
    if (many != 1) continue;
    const Known*& longest = first[only->name()][job.base_model()];
    if (longest == nullptr || known.waited_since_us() < longest->waited_since_us())
      longest = &known;
  }
  for (const v1::Group& group : cluster.groups()) {
    const std::string& worker = group.workers(0);
    bool begins = true, is_led = false;
    std::string of_its_own, of_others;  // who overtake jobs of its base model, and of others
    for (const std::string& name : group.jobs()) {
      Known& known = known_[name];
      begins &= std::exchange(known.group, group.name()) != group.name();
      const std::string last = std::exchange(known.worker, worker);
      const bool has_waited = std::exchange(known.has_waited, false);
      bool overtakes = false;
      for (const auto& [base_model, waits] : first[worker]) {
        // Who comes back was cut there.
        if (last == worker) break;
        const int64_t since_us = waits->waited_since_us() + kSeenUs;
        if (has_waited && known.waited_since_us() <= since_us) continue;
        // It was sent here before, or for one that waits longer, and its last window took its time.
        const auto move = last_move(name);
        if (move && move->to == group.name() && move->decided_us <= since_us) continue;
        if (move && !move->for_job.empty() &&
            known_[move->for_job].waited_at_us(move->decided_us) <= since_us) {
          continue;
        }
        overtakes = true;
        absl::StrAppend(base_model == group.base_model() ? &of_its_own : &of_others, name,
                        " from '", last, has_waited ? "', having waited" : "', not having waited",
                        " since ", known.waited_since_us(), " us, sent at ",
                        move ? move->decided_us : -1, " us for '", move ? move->for_job : "",
                        "', before one of ", base_model, " that waits since ", since_us, " us\n");
      }
      is_led |= !overtakes;
    }
    const bool may = of_others.empty() || (begins && is_led);
    if (of_its_own.empty() && may) continue;
    FAIL("at " << now_us << " us came to " << group.name() << " of " << group.base_model() << " on "
               << worker << ":\n"
               << of_its_own << of_others << jobs.DebugString());
  }
}

}  // namespace lorad::sim
