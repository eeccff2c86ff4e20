#include "worker/transport/device_listener.h"

#include <cstring>
#include <deque>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "worker/transport/device_transport.h"

namespace lorad::worker {
namespace {

// Memory that is opened to see whether it can be.
constexpr int64_t kProbeBytes = 4096;

// A word that travels as a tensor: its length, then its bytes. The first of these says yes or no;
// what follows is a name, or why not.
constexpr int64_t kWordValues = 512;
constexpr size_t kWordBytesMax = kWordValues * sizeof(float) - sizeof(uint32_t);
constexpr char kYes = '+';
constexpr char kNo = '-';

struct Neighbour {
  int stage = 0;
  Lane towards = Lane::kActivations;
  Lane from = Lane::kGradients;
  std::vector<float> said = std::vector<float>(kWordValues);
  std::vector<float> heard = std::vector<float>(kWordValues);
  std::unique_ptr<kernels::SharedMemory> probe = nullptr;
  std::string why_not = "";  // not by peer
};

void Say(std::string_view word, Neighbour* neighbour) {
  word = word.substr(0, kWordBytesMax);
  const auto length = static_cast<uint32_t>(word.size());
  auto* bytes = reinterpret_cast<char*>(neighbour->said.data());
  std::memcpy(bytes, &length, sizeof(length));
  std::memcpy(bytes + sizeof(length), word.data(), word.size());
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

// All words at once, so that nobody waits for another's neighbour.
absl::Status Exchange(Transport* transport, std::deque<Neighbour>* neighbours) {
  absl::Status status;
  const auto word = [](std::vector<float>& values) {
    return kernels::HostMatrix(values.data(), 1, kWordValues);
  };
  for (Neighbour& neighbour : *neighbours) {
    status.Update(transport->PostReceive(neighbour.from, word(neighbour.heard)));
    status.Update(transport->Send(neighbour.towards, {.rows = 1}, word(neighbour.said)));
  }
  for (Neighbour& neighbour : *neighbours) {
    if (status.ok()) status.Update(transport->WaitReceived(neighbour.from).status());
    if (status.ok()) status.Update(transport->WaitSent(neighbour.towards));
  }
  return status;
}

// Each says what it shares, then whether it could open that of the other.
absl::Status TryPeer(Transport* transport, kernels::DeviceCopies* copies, TransportChoice choice,
                     std::deque<Neighbour>* neighbours) {
  for (Neighbour& neighbour : *neighbours) {
    const bool staged = choice == TransportChoice::kSockets || choice == TransportChoice::kMpi;
    auto probe = staged ? absl::FailedPreconditionError("another way was asked for (--transport)")
                        : copies->Share(kProbeBytes);
    if (probe.ok()) {
      neighbour.probe = *std::move(probe);
      Say(kYes + neighbour.probe->name(), &neighbour);
    } else {
      neighbour.why_not = std::string(probe.status().message());
      Say(kNo + neighbour.why_not, &neighbour);
    }
  }
  absl::Status status = Exchange(transport, neighbours);
  if (!status.ok()) return status;
  for (Neighbour& neighbour : *neighbours) {
    const auto offer = Heard(neighbour);
    if (!offer.ok()) return offer.status();
    if (neighbour.why_not.empty() && offer->front() == kYes) {
      neighbour.why_not = std::string(copies->Open(offer->substr(1)).status().message());
    }
    Say(neighbour.why_not.empty() ? std::string(1, kYes) : kNo + neighbour.why_not, &neighbour);
    if (offer->front() == kNo) neighbour.why_not = offer->substr(1);
  }
  status = Exchange(transport, neighbours);
  if (!status.ok()) return status;
  for (Neighbour& neighbour : *neighbours) {
    const auto verdict = Heard(neighbour);
    if (!verdict.ok()) return verdict.status();
    if (neighbour.why_not.empty() && verdict->front() == kNo) {
      neighbour.why_not = absl::StrCat("on its side: ", verdict->substr(1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Crossings> Agree(Transport* transport, const StageIdentity& me,
                                kernels::DeviceCopies* copies, TransportChoice choice) {
  std::deque<Neighbour> neighbours;
  if (me.stage > 0) {
    neighbours.push_back(
        {.stage = me.stage - 1, .towards = Lane::kGradients, .from = Lane::kActivations});
  }
  if (me.stage + 1 < me.stages) {
    neighbours.push_back(
        {.stage = me.stage + 1, .towards = Lane::kActivations, .from = Lane::kGradients});
  }
  const absl::Status status = TryPeer(transport, copies, choice, &neighbours);
  if (!status.ok()) return status;
  Crossings crossings;
  for (const Neighbour& neighbour : neighbours) {
    const bool by_peer = neighbour.why_not.empty();
    if (!by_peer && choice == TransportChoice::kPeer) {
      return absl::FailedPreconditionError(
          absl::StrCat("stage ", neighbour.stage, " cannot be reached by peer: ", neighbour.why_not,
                       "; --transport auto takes another way"));
    }
    (neighbour.stage < me.stage ? crossings.before : crossings.behind) =
        by_peer ? Crossing::kPeer : Crossing::kStaged;
    spdlog::info(
        "stage {} reaches stage {} {}", me.stage, neighbour.stage,
        by_peer ? "by peer" : "through the host's memory, not by peer: " + neighbour.why_not);
  }
  return crossings;
}

}  // namespace

DeviceListener::DeviceListener(std::unique_ptr<StageListener> below, kernels::DeviceCopies* copies,
                               TransportChoice choice)
    : below_(std::move(below)), copies_(copies), choice_(choice) {}

absl::StatusOr<std::unique_ptr<Transport>> DeviceListener::Join(
    const StageIdentity& me, const std::vector<std::string>& endpoints) {
  auto joined = below_->Join(me, endpoints);
  if (!joined.ok()) return joined.status();
  {
    std::lock_guard lock(mutex_);
    if (interrupted_) return absl::CancelledError("interrupted");
    joined_ = joined->get();
  }
  const auto crossings = Agree(joined->get(), me, copies_, choice_);
  std::lock_guard lock(mutex_);
  joined_ = nullptr;
  if (!crossings.ok()) return crossings.status();
  return MakeDeviceTransport(me.stage, *std::move(joined), copies_, *crossings);
}

void DeviceListener::Interrupt() {
  below_->Interrupt();
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (joined_ != nullptr) joined_->Interrupt(absl::CancelledError("interrupted"));
}

}  // namespace lorad::worker
