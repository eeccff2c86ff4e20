// Neighbours with devices agree on how tensors cross between them, or say why not.
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <numeric>
#include <thread>

#include "tests/worker/transport/fake_device.h"
#include "tests/worker/transport/join.h"
#include "worker/transport/device_listener.h"

namespace lorad::worker {
namespace {

using kernels::TensorView;

// Sends one tensor from stage 0 to stage 1, and one back.
void CheckPasses(Transport& first, Transport& second) {
  for (const Lane lane : {Lane::kActivations, Lane::kGradients}) {
    Transport& from = lane == Lane::kActivations ? first : second;
    Transport& to = lane == Lane::kActivations ? second : first;
    std::vector<float> sent(600), memory(800, -1);
    std::iota(sent.begin(), sent.end(), 3.0F);
    REQUIRE(to.PostReceive(lane, kernels::HostMatrix(memory.data(), 8, 100)).ok());
    REQUIRE(from.Send(lane, {5, 6, {1}}, kernels::HostMatrix(sent.data(), 6, 100)).ok());
    const auto landing = to.WaitReceived(lane);
    REQUIRE(landing.ok());
    CHECK((*landing)->passage == Passage{5, 6, {1}});
    REQUIRE(from.WaitSent(lane).ok());
    std::vector<float> want = sent;
    want.resize(800, -1);
    CHECK((memory == want));
  }
}

struct Case {
  const char* what;
  FakeDevice first, second;
  TransportChoice first_choice = TransportChoice::kAuto;
  TransportChoice second_choice = TransportChoice::kAuto;
  bool by_peer = false;
};

// A device that counts what it shares that is larger than a probe: where tensors land by peer.
class Counting : public kernels::DeviceCopies {
 public:
  explicit Counting(const FakeDevice& device) : copies_(MakeFakeCopies(device)) {}
  std::unique_ptr<kernels::CopyLane> MakeLane() override { return copies_->MakeLane(); }
  absl::StatusOr<std::unique_ptr<kernels::Arena>> MakeHostArena(int64_t bytes) override {
    ++staged;
    return copies_->MakeHostArena(bytes);
  }
  absl::StatusOr<std::unique_ptr<kernels::SharedMemory>> Share(int64_t bytes) override {
    if (bytes != 4096) ++landings;
    return copies_->Share(bytes);
  }
  absl::StatusOr<std::unique_ptr<kernels::Arena>> MakeArena(int64_t bytes) override {
    return copies_->MakeArena(bytes);
  }
  absl::StatusOr<std::unique_ptr<kernels::OpenedMemory>> Open(std::string_view name) override {
    return copies_->Open(name);
  }
  int landings = 0;
  int staged = 0;

 private:
  const std::unique_ptr<kernels::DeviceCopies> copies_;
};

TEST_CASE("tensors go by peer where both sides can and want to, else through the hosts' memory") {
  using Choice = TransportChoice;
  const Case cases[] = {
      {.what = "both can", .first = {}, .second = {}, .by_peer = true},
      {.what = "both must",
       .first = {},
       .second = {},
       .first_choice = Choice::kPeer,
       .second_choice = Choice::kPeer,
       .by_peer = true},
      {.what = "one shares nothing", .first = {.shares = false}, .second = {}},
      {.what = "the other shares nothing", .first = {}, .second = {.shares = false}},
      {.what = "one opens nothing", .first = {.opens = false}, .second = {}},
      {.what = "the other opens nothing", .first = {}, .second = {.opens = false}},
      {.what = "one asks for sockets", .first = {}, .second = {}, .first_choice = Choice::kSockets},
      {.what = "one asks for MPI", .first = {}, .second = {}, .first_choice = Choice::kMpi},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    Counting first(c.first), second(c.second);
    const Joined joined = TryJoinDevices({{&first, c.first_choice}, {&second, c.second_choice}});
    for (const auto& transport : joined) REQUIRE(transport.ok());
    CheckPasses(**joined[0], **joined[1]);
    CHECK(first.landings == (c.by_peer ? 1 : 0));
    CHECK(second.landings == (c.by_peer ? 1 : 0));
    CHECK((first.staged > 0) == !c.by_peer);
    CHECK((second.staged > 0) == !c.by_peer);
  }
}

TEST_CASE("each border is its own: one by peer, the next through the hosts' memory") {
  Counting first({}), second({}), third({.opens = false});
  const Joined joined = TryJoinDevices({{&first}, {&second}, {&third}});
  for (const auto& transport : joined) REQUIRE(transport.ok());
  CheckPasses(**joined[0], **joined[1]);
  CheckPasses(**joined[1], **joined[2]);
  CHECK(first.landings == 1);
  CHECK(second.landings == 1);
  CHECK(third.landings == 0);
}

TEST_CASE("what comes waits until what came before it has left the memory in which both land") {
  for (const TransportChoice choice : {TransportChoice::kPeer, TransportChoice::kSockets}) {
    const auto copies = MakeFakeCopies({.delay_us_max = 20'000, .leads = false});
    std::vector<std::vector<float>> came(8, std::vector<float>(100, -1));
    {
      const Joined joined = TryJoinDevices({{copies.get(), choice}, {copies.get(), choice}});
      for (const auto& transport : joined) REQUIRE(transport.ok());
      std::thread sender([&] {
        for (size_t i = 0; i < came.size(); ++i) {
          std::vector<float> sent(100, static_cast<float>(i));
          const TensorView view = kernels::HostMatrix(sent.data(), 1, 100);
          if (!(*joined[0])->Send(Lane::kActivations, {.rows = 1}, view).ok()) return;
          if (!(*joined[0])->WaitSent(Lane::kActivations).ok()) return;
        }
      });
      for (std::vector<float>& memory : came) {
        const TensorView view = kernels::HostMatrix(memory.data(), 1, 100);
        CHECK((*joined[1])->PostReceive(Lane::kActivations, view).ok());
        CHECK((*joined[1])->WaitReceived(Lane::kActivations).ok());
      }
      sender.join();
    }  // the end of the lanes
    for (size_t i = 0; i < came.size(); ++i) {
      CHECK((came[i] == std::vector<float>(100, static_cast<float>(i))));
    }
  }
}

TEST_CASE("a stage that must go by peer and cannot says which other and why") {
  const auto can = MakeFakeCopies();
  const auto cannot = MakeFakeCopies({.opens = false});
  const Joined joined =
      TryJoinDevices({{can.get(), TransportChoice::kPeer}, {cannot.get(), TransportChoice::kAuto}});
  CHECK(absl::IsFailedPrecondition(joined[0].status()));
  const std::string message(joined[0].status().message());
  CHECK_THAT(message, Catch::Contains("stage 1 cannot be reached by peer"));
  CHECK_THAT(message, Catch::Contains("this device opens nothing"));
  CHECK_THAT(message, Catch::Contains("--transport"));
}

TEST_CASE("an interruption ends a join whose neighbour stands still after the handshake") {
  const auto copies = MakeFakeCopies();
  auto stands_still = SocketsListener::Open("127.0.0.1");
  auto sockets = SocketsListener::Open("127.0.0.1");
  REQUIRE((stands_still.ok() && sockets.ok()));
  const std::vector<std::string> endpoints = {(*stands_still)->endpoint(), (*sockets)->endpoint()};
  DeviceListener listener(*std::move(sockets), {.copies = copies.get()});
  StageIdentity me{.epoch = 7, .stage = 1, .stages = 2, .numerics_id = "numerics"};
  auto joined = std::async(std::launch::async, [&] { return listener.Join(me, endpoints); });
  StageIdentity other = me;
  other.stage = 0;
  const auto without_a_device = (*stands_still)->Join(other, endpoints);
  REQUIRE(without_a_device.ok());
  CHECK(joined.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  listener.Interrupt();
  CHECK(absl::IsCancelled(joined.get().status()));
}

TEST_CASE("a word that is none is refused") {
  CHECK(*ParseTransportChoice("auto") == TransportChoice::kAuto);
  CHECK(*ParseTransportChoice("peer") == TransportChoice::kPeer);
  CHECK(*ParseTransportChoice("nccl") == TransportChoice::kNccl);
  CHECK(*ParseTransportChoice("sockets") == TransportChoice::kSockets);
  CHECK(*ParseTransportChoice("mpi") == TransportChoice::kMpi);
  CHECK_THAT(std::string(ParseTransportChoice("nvlink").status().message()),
             Catch::Contains("auto, peer, nccl, sockets or mpi, got 'nvlink'"));
}

}  // namespace
}  // namespace lorad::worker
