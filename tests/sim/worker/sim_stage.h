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

  // What the stages of two workers send each other from now on waits for so long, as if a cable was
  // out. After TCP's patience (sockets.h) those that are connected lose each other.
  void Cut(const std::string& worker, const std::string& other, int64_t for_us);
  // For so long it takes up to so much longer.
  void Slow(const std::string& worker, const std::string& other, int64_t by_us, int64_t for_us);
  // For so long only small messages pass, as where a way drops packets of full length and tells
  // nobody: stages join and send notes. A tensor comes when that is over; or its sender, to whom
  // nobody says that it came, loses the other after TCP's patience.
  void Narrow(const std::string& worker, const std::string& other, int64_t for_us);
  // Nothing comes from it or to it, as where it said an address to which there is no route.
  void Isolate(const std::string& worker) { isolated_.insert(worker); }

 private:
  friend class SimStage;
  using Way = std::pair<std::string, std::string>;
  // Between two workers, either way.
  struct Link {
    int64_t cut_until_us = 0;
    int64_t slow_until_us = 0;
    int64_t slow_by_us = 0;
    int64_t narrow_until_us = 0;
  };
  enum class Size { kSmall, kTensor };
  static Way LinkOf(const std::string& worker, const std::string& other);
  std::string Enter(SimStage* stage);
  void Leave(const std::string& endpoint) { stages_.erase(endpoint); }
  // null: nobody is there any more.
  SimStage* Find(const std::string& endpoint) const;
  // Dropped where nobody is there any more.
  void Carry(const SimStage& from, const std::string& to, Size size,
             std::function<void(SimStage&)> arrive);
  int64_t ArrivalUs(const SimStage& from, const std::string& to, const Link& link);
  void LoseThoseCutOff(const Way& link);
  // An endpoint loses another, if it is still there.
  void Lose(const std::string& endpoint, const std::string& other, const char* how);

  Clockwork& clock_;
  int64_t endpoints_ = 0;  // that there were
  std::map<std::string, SimStage*> stages_;
  std::map<std::string, std::string> workers_;  // by endpoint, also of those that have gone
  std::map<Way, int64_t> free_us_;              // of endpoints: then the way is free
  std::set<Way> lost_;                          // of endpoints: a tensor between them was lost
  std::map<Way, Link> links_;                   // of workers
  std::set<std::string> isolated_;              // likewise
};

// One stage of a group, from its forming to its end: the others see its end. At most one call waits
// at a time. Errors carry the reason STAGE_LOST, and stay.
class SimStage {
 public:
  // What EngineDone is to say.
  using Done = std::function<void(absl::StatusOr<bool>)>;
  // Where it runs: what comes to it is done at once, or when its process goes on.
  struct Host {
    std::string worker;
    std::function<void(std::function<void()>)> run = [](const auto& what) { what(); };
  };

  // The net outlives it.
  SimStage(StageNet& net, Host host, int64_t epoch, int stage, int stages);
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
  friend class StageNet;
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
  bool IsConnectedWith(const SimStage& other) const;
  void Carry(int stage, StageNet::Size size, std::function<void(SimStage&)> arrive);

  StageNet& net_;
  const Host host_;
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
