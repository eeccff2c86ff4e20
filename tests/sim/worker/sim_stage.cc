#include "tests/sim/worker/sim_stage.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::sim {
namespace {

constexpr int64_t kJoinUs = 10'000'000;
// TCP's, of a peer from which nothing comes, or that says of nothing that it came.
constexpr int64_t kSilenceUs = 10'000'000;
// One has landed, one lies in the sender's memory.
constexpr int kOnTheirWayMax = 2;

absl::Status Lost(absl::Status status) {
  status.SetPayload(storage::Absl(storage::kReasonPayload), absl::Cord("STAGE_LOST"));
  return status;
}

}  // namespace

// ---- the net ----

std::string StageNet::Enter(SimStage* stage) {
  std::string endpoint = absl::StrCat("stage:", ++endpoints_);
  stages_[endpoint] = stage;
  workers_[endpoint] = stage->host_.worker;
  return endpoint;
}

SimStage* StageNet::Find(const std::string& endpoint) const {
  const auto found = stages_.find(endpoint);
  return found == stages_.end() ? nullptr : found->second;
}

StageNet::Way StageNet::LinkOf(const std::string& worker, const std::string& other) {
  return std::minmax(worker, other);
}

void StageNet::Cut(const std::string& worker, const std::string& other, int64_t for_us) {
  const Way way = LinkOf(worker, other);
  int64_t& until_us = links_[way].cut_until_us;
  until_us = std::max(until_us, clock_.now_us() + for_us);
  if (for_us <= kSilenceUs) return;
  clock_.AlarmAt(clock_.now_us() + kSilenceUs, [this, way] { LoseThoseCutOff(way); });
}

void StageNet::LoseThoseCutOff(const Way& link) {
  std::vector<std::pair<std::string, std::string>> lost;  // endpoints
  for (const auto& [endpoint, stage] : stages_) {
    for (const auto& [other_endpoint, other] : stages_) {
      const bool between = LinkOf(stage->host_.worker, other->host_.worker) == link;
      if (between && stage->IsConnectedWith(*other)) lost.emplace_back(endpoint, other_endpoint);
    }
  }
  for (const auto& [endpoint, other] : lost) Lose(endpoint, other, "nothing comes from ");
}

void StageNet::Lose(const std::string& endpoint, const std::string& other, const char* how) {
  SimStage* const there = Find(endpoint);
  if (there == nullptr) return;
  there->host_.run([this, endpoint, why = absl::StrCat(how, other)] {
    if (SimStage* const stage = Find(endpoint)) stage->Break(absl::UnavailableError(why));
  });
}

void StageNet::Slow(const std::string& worker, const std::string& other, int64_t by_us,
                    int64_t for_us) {
  Link& link = links_[LinkOf(worker, other)];
  link.slow_until_us = clock_.now_us() + for_us;
  link.slow_by_us = by_us;
}

void StageNet::Narrow(const std::string& worker, const std::string& other, int64_t for_us) {
  int64_t& until_us = links_[LinkOf(worker, other)].narrow_until_us;
  until_us = std::max(until_us, clock_.now_us() + for_us);
}

int64_t StageNet::ArrivalUs(const SimStage& from, const std::string& to, const Link& link) {
  int64_t at_us = clock_.now_us() + clock_.Delay();
  const bool slow = clock_.now_us() < link.slow_until_us;
  if (slow) at_us += static_cast<int64_t>(clock_.random()() % link.slow_by_us);
  int64_t& free_us = free_us_[{from.endpoint_, to}];
  free_us = std::max({free_us, at_us, link.cut_until_us});
  return free_us;
}

void StageNet::Carry(const SimStage& from, const std::string& to, Size size,
                     std::function<void(SimStage&)> arrive) {
  if (isolated_.contains(from.host_.worker) || isolated_.contains(workers_.at(to))) return;
  const auto found = links_.find(LinkOf(from.host_.worker, workers_.at(to)));
  Link link = found == links_.end() ? Link() : found->second;
  if (size == Size::kTensor) {
    const int64_t lost_us = clock_.now_us() + kSilenceUs;
    // What comes behind a tensor that is lost does not pass it.
    if (lost_.contains({from.endpoint_, to})) return;
    if (link.narrow_until_us > lost_us) {
      lost_.emplace(from.endpoint_, to);
      return clock_.AlarmAt(lost_us, [this, endpoint = from.endpoint_, to] {
        Lose(endpoint, to, "nothing that is sent comes to ");
      });
    }
    link.cut_until_us = std::max(link.cut_until_us, link.narrow_until_us);
  }
  clock_.At(ArrivalUs(from, to, link), [this, to, arrive = std::move(arrive)] {
    SimStage* const there = Find(to);
    if (there == nullptr) return;
    there->host_.run([this, to, arrive] {
      if (SimStage* const stage = Find(to)) arrive(*stage);
    });
  });
}

// ---- a stage ----

SimStage::SimStage(StageNet& net, Host host, int64_t epoch, int stage, int stages)
    : net_(net),
      host_(std::move(host)),
      epoch_(epoch),
      stage_(stage),
      stages_(stages),
      endpoint_(net.Enter(this)) {}

SimStage::~SimStage() {
  waiting_.reset();
  Break(absl::CancelledError("it has ended"));
  net_.Leave(endpoint_);
}

void SimStage::Wait(std::function<bool()> ready, std::function<void(const absl::Status&)> then) {
  REQUIRE_FALSE(waiting_.has_value());
  waiting_ = {std::move(ready), std::move(then)};
  Look();
}

void SimStage::Look() {
  if (!waiting_.has_value() || (broken_.ok() && !waiting_->ready())) return;
  const Waiting waiting = *std::exchange(waiting_, std::nullopt);
  waiting.then(broken_);
}

// The others learn of it.
void SimStage::Break(const absl::Status& why) {
  if (!broken_.ok()) return;
  broken_ = Lost(why);
  for (int stage = 0; stage < static_cast<int>(endpoints_.size()); ++stage) {
    if (stage == stage_) continue;
    Carry(stage, StageNet::Size::kSmall, [from = stage_](SimStage& other) {
      other.Break(absl::UnavailableError(absl::StrCat("stage ", from, " is gone")));
    });
  }
  Look();
}

// Neighbours exchange tensors, stage 0 notes with each.
bool SimStage::IsConnectedWith(const SimStage& other) const {
  const int distance = std::abs(stage_ - other.stage_);
  return epoch_ == other.epoch_ && distance > 0 &&
         (distance == 1 || stage_ == 0 || other.stage_ == 0);
}

// To a stage of the same group; others take nothing.
void SimStage::Carry(int stage, StageNet::Size size, std::function<void(SimStage&)> arrive) {
  const std::string& to = endpoints_.at(static_cast<size_t>(stage));
  net_.Carry(*this, to, size, [epoch = epoch_, stage, arrive = std::move(arrive)](SimStage& other) {
    if (other.epoch_ == epoch && other.stage_ == stage) arrive(other);
  });
}

void SimStage::Join(const std::vector<std::string>& endpoints, Done done) {
  REQUIRE(static_cast<int>(endpoints.size()) == stages_);
  endpoints_ = endpoints;
  for (int stage = 0; stage < stages_; ++stage) {
    if (stage == stage_) continue;
    Carry(stage, StageNet::Size::kSmall, [from = stage_](SimStage& other) {
      other.joined_.insert(from);
      other.Look();
    });
  }
  net_.clock_.AlarmAt(net_.clock_.now_us() + kJoinUs, [&net = net_, endpoint = endpoint_] {
    SimStage* const stage = net.Find(endpoint);
    if (stage == nullptr || static_cast<int>(stage->joined_.size()) + 1 == stage->stages_) return;
    stage->Break(absl::DeadlineExceededError("not all stages have connected"));
  });
  Wait([this] { return static_cast<int>(joined_.size()) + 1 == stages_; },
       [done = std::move(done)](const absl::Status& status) {
         status.ok() ? done(true) : done(status);
       });
}

void SimStage::Send(bool gradient, int64_t microbatch, const std::set<std::string>& lost,
                    Done done) {
  Lane& lane = lanes_[gradient];
  Wait([&lane] { return lane.on_their_way < kOnTheirWayMax; },
       [this, gradient, microbatch, lost, &lane,
        done = std::move(done)](const absl::Status& status) {
         if (!status.ok()) return done(status);
         ++lane.on_their_way;
         Carry(gradient ? stage_ - 1 : stage_ + 1, StageNet::Size::kTensor,
               [gradient, microbatch, lost](SimStage& other) {
                 other.lanes_[gradient].come.push_back({microbatch, lost});
                 other.Look();
               });
         done(true);
       });
}

void SimStage::Receive(bool gradient, int64_t microbatch, std::set<std::string>* lost, Done done) {
  Lane& lane = lanes_[gradient];
  const int from = gradient ? stage_ + 1 : stage_ - 1;
  Wait([this, gradient, &lane] { return !lane.come.empty() || (given_up_ && !gradient); },
       [=, this, &lane, done = std::move(done)](const absl::Status& status) {
         if (!status.ok()) return done(status);
         if (!gradient && std::exchange(given_up_, false)) return done(false);
         const Tensor tensor = std::move(lane.come.front());
         lane.come.pop_front();
         REQUIRE(tensor.microbatch == microbatch);
         lost->insert(tensor.lost.begin(), tensor.lost.end());
         Carry(from, StageNet::Size::kSmall, [gradient](SimStage& other) {
           --other.lanes_[gradient].on_their_way;
           other.Look();
         });
         done(true);
       });
}

void SimStage::SendNote(int stage, worker::v1::StageNote note) {
  if (!broken_.ok()) return;
  Carry(stage, StageNet::Size::kSmall, [from = stage_, note = std::move(note)](SimStage& other) {
    other.notes_[from].push_back(note);
    other.Look();
  });
}

void SimStage::AwaitNote(int stage, OnNote on_note) {
  std::deque<worker::v1::StageNote>& notes = notes_[stage];
  Wait([&notes] { return !notes.empty(); },
       [&notes, on_note = std::move(on_note)](const absl::Status& status) {
         if (!status.ok()) return on_note(status);
         const worker::v1::StageNote note = std::move(notes.front());
         notes.pop_front();
         on_note(note);
       });
}

void SimStage::GiveUpReceive() {
  given_up_ = true;
  Look();
}

}  // namespace lorad::sim
