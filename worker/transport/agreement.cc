#include "worker/transport/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace lorad::worker {
namespace {

// Memory that is opened to see whether it can be.
constexpr int64_t kProbeBytes = 4096;
// Both sides of an edge of NCCL come to it within a border's time; connecting takes 0.5 s.
constexpr int64_t kOpenMs = 20'000;

// A word that travels as a tensor: its length, then its bytes. The first of these says yes or no;
// what follows is a name, or why not.
constexpr int64_t kWordValues = 512;
constexpr size_t kWordBytesMax = kWordValues * sizeof(float) - sizeof(uint32_t);
constexpr char kYes = '+';
constexpr char kNo = '-';

constexpr char kOtherwise[] = "another way was asked for (--transport)";

// A lane's place in an array of both.
size_t Of(Lane lane) { return static_cast<size_t>(lane); }

struct Neighbour {
  int stage = 0;
  Lane towards = Lane::kActivations;
  Lane from = Lane::kGradients;
  std::vector<float> said = std::vector<float>(kWordValues);
  std::vector<float> heard = std::vector<float>(kWordValues);
  std::unique_ptr<kernels::SharedMemory> probe = nullptr;
  std::string not_by_peer = "";  // why
  std::string not_by_nccl = "";
  std::array<std::string, 2> names = {};                // of NCCL's edges, by lane
  std::array<std::unique_ptr<NcclEdge>, 2> edges = {};  // likewise

  bool by_peer() const { return not_by_peer.empty(); }
  bool by_nccl() const { return not_by_nccl.empty(); }
};

void Say(std::string_view word, Neighbour* neighbour) {
  word = word.substr(0, kWordBytesMax);
  const auto length = static_cast<uint32_t>(word.size());
  auto* bytes = reinterpret_cast<char*>(neighbour->said.data());
  std::memcpy(bytes, &length, sizeof(length));
  std::memcpy(bytes + sizeof(length), word.data(), word.size());
}

// Yes, or why not.
void SayVerdict(const std::string& why_not, Neighbour* neighbour) {
  Say(why_not.empty() ? std::string(1, kYes) : kNo + why_not, neighbour);
}

// Of at least one byte.
absl::StatusOr<std::string> Heard(const Neighbour& neighbour) {
  const auto* bytes = reinterpret_cast<const char*>(neighbour.heard.data());
  uint32_t length = 0;
  std::memcpy(&length, bytes, sizeof(length));
  if (length < 1 || length > kWordBytesMax) {
    return absl::InternalError(
        absl::StrCat("stage ", neighbour.stage, " does not say how it is reached"));
  }
  return std::string(bytes + sizeof(length), length);
}

class Agreement {
 public:
  Agreement(Transport* transport, const StageIdentity& me, const DeviceWay& way)
      : transport_(transport), me_(me), way_(way) {
    if (me.stage > 0) {
      neighbours_.push_back(
          {.stage = me.stage - 1, .towards = Lane::kGradients, .from = Lane::kActivations});
    }
    if (me.stage + 1 < me.stages) {
      neighbours_.push_back(
          {.stage = me.stage + 1, .towards = Lane::kActivations, .from = Lane::kGradients});
    }
  }

  absl::StatusOr<Crossings> Reach() {
    absl::Status status = TryPeer();
    if (status.ok()) status = TryNccl();
    if (status.ok()) status = CheckChoice();
    if (!status.ok()) return status;
    Crossings crossings;
    for (Neighbour& neighbour : neighbours_) {
      const bool before = neighbour.stage < me_.stage;
      (before ? crossings.before : crossings.behind) = neighbour.by_peer()   ? Crossing::kPeer
                                                       : neighbour.by_nccl() ? Crossing::kNccl
                                                                             : Crossing::kStaged;
      crossings.leaving[Of(neighbour.towards)] = std::move(neighbour.edges[Of(neighbour.towards)]);
      crossings.coming[Of(neighbour.from)] = std::move(neighbour.edges[Of(neighbour.from)]);
      Log(neighbour);
    }
    return crossings;
  }

 private:
  // All words at once, so that nobody waits for another's neighbour.
  absl::Status Exchange() {
    absl::Status status;
    const auto word = [](std::vector<float>& values) {
      return kernels::HostMatrix(values.data(), 1, kWordValues);
    };
    for (Neighbour& neighbour : neighbours_) {
      status.Update(transport_->PostReceive(neighbour.from, word(neighbour.heard)));
      status.Update(transport_->Send(neighbour.towards, {.rows = 1}, word(neighbour.said)));
    }
    for (Neighbour& neighbour : neighbours_) {
      if (status.ok()) status.Update(transport_->WaitReceived(neighbour.from).status());
      if (status.ok()) status.Update(transport_->WaitSent(neighbour.towards));
    }
    return status;
  }

  bool Chooses(TransportChoice choice) const {
    return way_.choice == TransportChoice::kAuto || way_.choice == choice;
  }

  // ---- by peer: each says what it shares, then whether it could open that of the other ----

  absl::Status TryPeer() {
    for (Neighbour& neighbour : neighbours_) {
      auto probe = Chooses(TransportChoice::kPeer) ? way_.copies->Share(kProbeBytes)
                                                   : absl::FailedPreconditionError(kOtherwise);
      if (probe.ok()) {
        neighbour.probe = *std::move(probe);
        Say(kYes + neighbour.probe->name(), &neighbour);
      } else {
        neighbour.not_by_peer = std::string(probe.status().message());
        SayVerdict(neighbour.not_by_peer, &neighbour);
      }
    }
    absl::Status status = Exchange();
    if (!status.ok()) return status;
    for (Neighbour& neighbour : neighbours_) {
      const auto offer = Heard(neighbour);
      if (!offer.ok()) return offer.status();
      std::string& why_not = neighbour.not_by_peer;
      if (why_not.empty() && offer->front() == kYes) {
        why_not = std::string(way_.copies->Open(offer->substr(1)).status().message());
      }
      SayVerdict(why_not, &neighbour);
      if (offer->front() == kNo) why_not = offer->substr(1);
    }
    return HearVerdicts(&Neighbour::not_by_peer);
  }

  absl::Status HearVerdicts(std::string Neighbour::*why_not) {
    const absl::Status status = Exchange();
    if (!status.ok()) return status;
    for (Neighbour& neighbour : neighbours_) {
      const auto verdict = Heard(neighbour);
      if (!verdict.ok()) return verdict.status();
      if ((neighbour.*why_not).empty() && verdict->front() == kNo) {
        neighbour.*why_not = absl::StrCat("on its side: ", verdict->substr(1));
      }
    }
    return absl::OkStatus();
  }

  // ---- by NCCL: each says whether it would, the earlier one by which names; then whether it did ----

  absl::Status TryNccl() {
    for (Neighbour& neighbour : neighbours_) {
      const auto offer = NcclOffer(&neighbour);
      neighbour.not_by_nccl = std::string(offer.status().message());
      if (offer.ok()) {
        Say(kYes + *offer, &neighbour);
      } else {
        SayVerdict(neighbour.not_by_nccl, &neighbour);
      }
    }
    absl::Status status = Exchange();
    if (!status.ok()) return status;
    for (Neighbour& neighbour : neighbours_) {
      const auto offer = Heard(neighbour);
      if (!offer.ok()) return offer.status();
      if (neighbour.by_nccl()) neighbour.not_by_nccl = TakeNcclOffer(*offer, &neighbour);
    }
    for (const int parity : {0, 1}) {
      for (Neighbour& neighbour : neighbours_) {
        const int border = std::min(neighbour.stage, me_.stage);
        if (border % 2 != parity || !neighbour.by_nccl()) continue;
        neighbour.not_by_nccl = std::string(OpenEdges(&neighbour).message());
        status = transport_->broken();
        if (!status.ok()) return status;
      }
    }
    for (Neighbour& neighbour : neighbours_) SayVerdict(neighbour.not_by_nccl, &neighbour);
    status = HearVerdicts(&Neighbour::not_by_nccl);
    for (Neighbour& neighbour : neighbours_) {
      if (!neighbour.by_nccl()) neighbour.edges = {};
    }
    return status;
  }

  // What follows a yes: the host, where that decides; a zero byte; the names of the edges of
  // activations and of gradients, of the earlier stage.
  absl::StatusOr<std::string> NcclOffer(Neighbour* neighbour) const {
    if (neighbour->by_peer()) return absl::FailedPreconditionError("it is reached by peer");
    if (!Chooses(TransportChoice::kNccl)) return absl::FailedPreconditionError(kOtherwise);
    if (way_.nccl == nullptr) return absl::FailedPreconditionError(way_.no_nccl);
    std::string offer = way_.choice == TransportChoice::kNccl ? "" : way_.host;
    offer += '\0';
    if (neighbour->stage < me_.stage) return offer;
    for (std::string& name : neighbour->names) {
      auto made = way_.nccl->NewName();
      if (!made.ok()) return made.status();
      name = *std::move(made);
      offer += name;
    }
    return offer;
  }

  // "", or why it does not come to that.
  std::string TakeNcclOffer(const std::string& word, Neighbour* neighbour) const {
    if (word.front() == kNo) return word.substr(1);
    const size_t end = word.find('\0');
    const std::string host = word.substr(1, end == std::string::npos ? end : end - 1);
    if (way_.choice != TransportChoice::kNccl && host == way_.host) {
      return absl::StrCat("both are on host ", host, ", and --transport nccl was not asked for");
    }
    if (neighbour->stage > me_.stage) return "";
    const std::string names = end == std::string::npos ? "" : word.substr(end + 1);
    if (names.size() != 2 * sizeof(NcclId)) return "it gives its edges no names";
    neighbour->names = {names.substr(0, sizeof(NcclId)), names.substr(sizeof(NcclId))};
    return "";
  }

  absl::Status OpenEdges(Neighbour* neighbour) {
    for (const Lane lane : {Lane::kActivations, Lane::kGradients}) {
      auto edge =
          NcclEdge::Open(*way_.nccl, neighbour->names[Of(lane)], lane == neighbour->towards,
                         way_.copies->MakeLane(), kOpenMs, [this] { return transport_->broken(); });
      if (!edge.ok()) return edge.status();
      neighbour->edges[Of(lane)] = *std::move(edge);
    }
    return absl::OkStatus();
  }

  // ---- what has come of it ----

  absl::Status CheckChoice() const {
    for (const Neighbour& neighbour : neighbours_) {
      const auto out_of_reach = [&](const char* way, const std::string& why) {
        return absl::FailedPreconditionError(absl::StrCat("stage ", neighbour.stage,
                                                          " cannot be reached by ", way, ": ", why,
                                                          "; --transport auto takes another way"));
      };
      if (way_.choice == TransportChoice::kPeer && !neighbour.by_peer()) {
        return out_of_reach("peer", neighbour.not_by_peer);
      }
      if (way_.choice == TransportChoice::kNccl && !neighbour.by_nccl()) {
        return out_of_reach("NCCL", neighbour.not_by_nccl);
      }
    }
    return absl::OkStatus();
  }

  void Log(const Neighbour& neighbour) const {
    std::string how = "by peer";
    if (!neighbour.by_peer() && neighbour.by_nccl()) {
      how =
          absl::StrCat("by NCCL ", way_.nccl->version(), ", not by peer: ", neighbour.not_by_peer);
    } else if (!neighbour.by_peer()) {
      how = absl::StrCat("through the host's memory, not by peer: ", neighbour.not_by_peer,
                         ", nor by NCCL: ", neighbour.not_by_nccl);
    }
    spdlog::info("stage {} reaches stage {} {}", me_.stage, neighbour.stage, how);
  }

  Transport* const transport_;
  const StageIdentity& me_;
  const DeviceWay& way_;
  std::deque<Neighbour> neighbours_;
};

}  // namespace

absl::StatusOr<Crossings> AgreeOnCrossings(Transport* transport, const StageIdentity& me,
                                           const DeviceWay& way) {
  return Agreement(transport, me, way).Reach();
}

}  // namespace lorad::worker
