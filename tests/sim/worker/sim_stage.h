// How the stages of a group reach one another in a simulation: what worker/transport does, with
// delays, and by calls back in the place of waits.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "tests/sim/worker/clockwork.h"

namespace lorad::sim {

class SimStage;

// Brings what stages send each other, some time later, in order on each way. One for all workers.
class StageNet {
 public:
  explicit StageNet(Clockwork& clock) : clock_(clock) {}
  StageNet(const StageNet&) = delete;
  StageNet& operator=(const StageNet&) = delete;

 private:
  friend class SimStage;
  std::string Enter(SimStage* stage);
  void Leave(const std::string& endpoint) { stages_.erase(endpoint); }
  // `arrive` gets null where nobody is there any more.
  void Carry(const std::string& from, const std::string& to, std::function<void(SimStage*)> arrive);

  Clockwork& clock_;
  int64_t endpoints_ = 0;  // that there were
  std::map<std::string, SimStage*> stages_;
  std::map<std::pair<std::string, std::string>, int64_t> free_us_;  // of each way: then it is free
};

// One stage of a group, from its forming to its end: the others see its end. At most one call waits
// at a time. Errors carry the reason STAGE_LOST, and stay.
class SimStage {
 public:
  // What EngineDone is to say.
  using Done = std::function<void(absl::StatusOr<bool>)>;

  // The net outlives it.
  SimStage(StageNet& net, int64_t epoch, int stage, int stages);
  ~SimStage();
  SimStage(const SimStage&) = delete;
  SimStage& operator=(const SimStage&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  int stage() const { return stage_; }
  int stages() const { return stages_; }

  // Done when all of them have.
  void Join(const std::vector<std::string>& endpoints, Done done);
  // A microbatch's tensor, and the jobs of it whose results are void. Waits while two of this lane
  // are on their way that the neighbour has not taken.
  void Send(bool gradient, int64_t microbatch, const std::set<std::string>& lost, Done done);
  // Waits for the lane's next, which must be of that microbatch. Done with false: it was given up.
  void Receive(bool gradient, int64_t microbatch, std::set<std::string>* lost, Done done);

  void SendNote(int stage, worker::v1::StageNote note);
  // Waits for the next note of that stage.
  using OnNote = std::function<void(const absl::StatusOr<worker::v1::StageNote>&)>;
  void AwaitNote(int stage, OnNote on_note);

  // As Transport's.
  void Interrupt(const absl::Status& why) { Break(why); }
  void GiveUpReceive();

 private:
  struct Tensor {
    int64_t microbatch = 0;
    std::set<std::string> lost;
  };
  struct Lane {
    std::deque<Tensor> come;  // not taken yet
    int on_their_way = 0;     // of those sent from here, that were not taken
  };
  struct Waiting {
    std::function<bool()> ready;
    std::function<void(const absl::Status&)> then;
  };

  void Wait(std::function<bool()> ready, std::function<void(const absl::Status&)> then);
  void Look();
  void Break(const absl::Status& why);
  void Carry(int stage, std::function<void(SimStage&)> arrive);

  StageNet& net_;
  const int64_t epoch_;
  const int stage_;
  const int stages_;
  const std::string endpoint_;
  std::vector<std::string> endpoints_;  // once it is told
  std::set<int> joined_;                // of the others
  absl::Status broken_;
  std::map<bool, Lane> lanes_;  // by gradient
  bool given_up_ = false;
  std::map<int, std::deque<worker::v1::StageNote>> notes_;
  std::optional<Waiting> waiting_;
};

}  // namespace lorad::sim
