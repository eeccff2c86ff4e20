#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lorad::worker {

// The shards that lie in staging memory, one a job, and the tries to bring them to the coordinator:
// a few at once, those that were staged first before others, each again with growing pauses until
// it is there, is not wanted, or is given up. Times in ms. Threads: one.
class Saves {
 public:
  static constexpr int kTriesAtOnce = 4;

  struct Shard {
    std::string job;
    int64_t step = 0;
    int64_t bytes = 0;
    double staged_ms = 0;
    double next_try_ms = 0;
    bool under_way = false;  // a try is
    int failed_tries = 0;
    double begun_ms = 0;     // its first try
    int late_tries = 0;      // of them, those that ran out of time
    bool last_try = false;   // its slot is to be freed
    bool abandoned = false;  // its group is being left
    bool told = false;       // that it is delayed
    // How long its next try may take.
    int64_t timeout_ms() const;
  };

  // REQUIRES: the job has none here. Returns its number.
  int64_t Add(const std::string& job, int64_t step, int64_t bytes, double now_ms);
  // nullptr: the job's staging memory is free.
  const Shard* Find(const std::string& job) const;
  const Shard& at(int64_t number) const { return shards_.at(number); }

  // Numbers of the shards whose try begins now; they count as under way.
  std::vector<int64_t> Begin(double now_ms);

  // The outcome for the shard of a try that ended with `status`. All but kAgain forget it.
  enum class Outcome { kSaved, kAgain, kGivenUp, kAbandoned };
  struct Ended {
    Shard shard;
    Outcome outcome = Outcome::kAbandoned;
    // kAgain: its tries have failed for so long that its user should know, who does not yet.
    bool tell = false;
  };
  // REQUIRES: `number` is under way.
  Ended End(int64_t number, const absl::Status& status, double now_ms);

  // The slot of `job` is to be freed: a try that is under way, or the first that waits for its
  // turn, is the last. True: one that had failed before was given up here and now.
  bool LastTry(const std::string& job);

  // The group is being left: only tries under way are still waited for.
  void Abandon();

  // Whether the shard of `job` is within its first try, and until when; 0: it is not.
  double FirstTryEnds(const std::string& job) const;

  bool any_under_way() const;
  bool under_way(int64_t number) const;
  // When Begin may have something to do that it has not now; infinity: only after another event.
  double NextDue() const;

 private:
  Shard* FindMutable(const std::string& job);

  int64_t last_number_ = 0;
  std::map<int64_t, Shard> shards_;
};

}  // namespace lorad::worker
