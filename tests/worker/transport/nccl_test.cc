// Stages whose tensors go by NCCL, here a fake that holds its kernels as the real one does: when
// they are launched, what ends them, and what neighbours choose where it is there or not.
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <numeric>
#include <thread>

#include "tests/worker/transport/fake_device.h"
#include "tests/worker/transport/fake_nccl_library.h"
#include "tests/worker/transport/join.h"

namespace lorad::worker {
namespace {

using kernels::TensorView;
using std::chrono::milliseconds;

absl::Status NothingBroken() { return absl::OkStatus(); }

DeviceWay Way(kernels::DeviceCopies* copies, TransportChoice choice, std::string host = "") {
  return {.copies = copies, .choice = choice, .host = std::move(host), .nccl = &FakeNcclLibrary()};
}

// Two stages by NCCL, each with a device of its own.
struct Pair {
  explicit Pair(const FakeDevice& device_of_second = {})
      : first_device(MakeFakeCopies()), second_device(MakeFakeCopies(device_of_second)) {
    auto joined = AllOf(TryJoinDevices({Way(first_device.get(), TransportChoice::kNccl),
                                        Way(second_device.get(), TransportChoice::kNccl)}));
    first = std::move(joined[0]);
    second = std::move(joined[1]);
  }

  const std::unique_ptr<kernels::DeviceCopies> first_device, second_device;
  std::unique_ptr<Transport> first, second;
  std::vector<float> sent = std::vector<float>(600, 3);
  std::vector<float> memory = std::vector<float>(800, -1);
  TensorView from = kernels::HostMatrix(sent.data(), 6, 100);
  TensorView to = kernels::HostMatrix(memory.data(), 8, 100);
};

bool Within(milliseconds limit, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  return holds();
}

TEST_CASE("tensors cross both ways, one after the other, and nothing is left at the end") {
  FakeNccl& nccl = FakeNcclState();
  const int kernels = nccl.kernels;
  {
    Pair pair;
    CHECK(nccl.communicators == 4);  // two edges, two sides
    for (int i = 0; i < 20; ++i) {
      const bool forward = i % 2 == 0;
      const Lane lane = forward ? Lane::kActivations : Lane::kGradients;
      Transport& from = forward ? *pair.first : *pair.second;
      Transport& to = forward ? *pair.second : *pair.first;
      std::iota(pair.sent.begin(), pair.sent.end(), static_cast<float>(i));
      const Passage passage{.microbatch = i, .rows = 6, .lost = {2}};
      REQUIRE(to.PostReceive(lane, pair.to).ok());
      REQUIRE(from.Send(lane, passage, pair.from).ok());
      const auto landing = to.WaitReceived(lane);
      REQUIRE(landing.ok());
      CHECK((*landing)->passage == passage);
      CHECK((*landing)->begin <= (*landing)->end);
      REQUIRE(from.WaitSent(lane).ok());
      std::vector<float> want = pair.sent;
      want.resize(800, -1);
      CHECK((pair.memory == want));
    }
  }
  CHECK(nccl.kernels == kernels + 40);
  CHECK(nccl.communicators == 0);
}

TEST_CASE("no kernel is launched before both sides are at it, and none for a tensor of no rows") {
  FakeNccl& nccl = FakeNcclState();
  const int kernels = nccl.kernels;
  const int alone = nccl.alone;
  Pair pair;
  SECTION("the sender comes first") {
    REQUIRE(pair.first->Send(Lane::kActivations, {.rows = 6}, pair.from).ok());
    std::this_thread::sleep_for(milliseconds(100));
    CHECK(nccl.kernels == kernels);
    REQUIRE(pair.second->PostReceive(Lane::kActivations, pair.to).ok());
  }
  SECTION("the receiver comes first") {
    REQUIRE(pair.second->PostReceive(Lane::kActivations, pair.to).ok());
    std::this_thread::sleep_for(milliseconds(100));
    CHECK(nccl.kernels == kernels);
    REQUIRE(pair.first->Send(Lane::kActivations, {.rows = 6}, pair.from).ok());
  }
  SECTION("the receiver's stage is at something else") {
    REQUIRE(pair.second->PostReceive(Lane::kActivations, pair.to).ok());
    REQUIRE(pair.first->Send(Lane::kActivations, {.rows = 6}, pair.from).ok());
    REQUIRE(pair.first->WaitSent(Lane::kActivations).ok());
    CHECK(nccl.kernels == kernels + 2);
  }
  REQUIRE(pair.second->WaitReceived(Lane::kActivations).ok());
  CHECK(nccl.kernels == kernels + 2);
  REQUIRE(pair.second->PostReceive(Lane::kActivations, pair.to).ok());
  REQUIRE(pair.first->WaitSent(Lane::kActivations).ok());
  REQUIRE(pair.first->Send(Lane::kActivations, {.microbatch = 1}, pair.from).ok());
  REQUIRE(pair.second->WaitReceived(Lane::kActivations).ok());
  CHECK(nccl.kernels == kernels + 2);
  CHECK(nccl.alone == alone);
}

TEST_CASE("a stage that goes while a kernel waits for it leaves none behind") {
  FakeNccl& nccl = FakeNcclState();
  const int kernels = nccl.kernels;
  const int aborted = nccl.aborted;
  Pair pair({.delay_us_max = 3'000'000});  // its kernel begins three seconds later
  REQUIRE(pair.second->PostReceive(Lane::kActivations, pair.to).ok());
  REQUIRE(pair.first->Send(Lane::kActivations, {.rows = 6}, pair.from).ok());
  REQUIRE(Within(milliseconds(10'000), [&] { return nccl.kernels == kernels + 1; }));
  const auto begin = std::chrono::steady_clock::now();
  pair.second->Interrupt(absl::CancelledError("given up"));
  CHECK(absl::IsUnavailable(pair.first->WaitSent(Lane::kActivations)));
  CHECK(nccl.aborted == aborted + 1);
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10'000));
  CHECK(absl::IsCancelled(pair.second->WaitReceived(Lane::kActivations).status()));
  pair.first.reset();
  pair.second.reset();
  CHECK(nccl.communicators == 0);
}

TEST_CASE("connecting ends where the other side does not come") {
  FakeNccl& nccl = FakeNcclState();
  const auto device = MakeFakeCopies();
  const auto name = FakeNcclLibrary().NewName();
  REQUIRE(name.ok());
  const auto open = [&](const std::string& edge, int64_t limit_ms, const NcclEdge::Broken& broken) {
    return NcclEdge::Open(FakeNcclLibrary(), edge, true, device->MakeLane(), limit_ms, broken)
        .status();
  };
  CHECK(absl::IsDeadlineExceeded(open(*name, 20, NothingBroken)));
  CHECK(absl::IsCancelled(open(*name, 60'000, [] { return absl::CancelledError("given up"); })));
  CHECK(absl::IsUnavailable(open("a name of another library", 60'000, NothingBroken)));
  CHECK(nccl.communicators == 0);
}

// How the first of two stages says that it reaches the second; counted in communicators.
struct Choice {
  const char* what;
  TransportChoice first = TransportChoice::kAuto;
  TransportChoice second = TransportChoice::kAuto;
  std::string second_host = "b";
  bool peer = false;
  bool first_has = true;
  bool second_has = true;
  bool refuses = false;
  bool by_nccl = false;
};

TEST_CASE("neighbours take NCCL between hosts and on request, where both have it") {
  using enum TransportChoice;
  FakeNccl& nccl = FakeNcclState();
  const Choice choices[] = {
      {.what = "two hosts", .by_nccl = true},
      {.what = "one host", .second_host = "a"},
      {.what = "one host, and one asks for it",
       .first = kNccl,
       .second_host = "a",
       .by_nccl = true},
      {.what = "the other asks for it", .second = kNccl, .second_host = "a", .by_nccl = true},
      {.what = "two hosts that reach each other by peer", .peer = true},
      {.what = "one asks for it where peer would do",
       .first = kNccl,
       .peer = true,
       .by_nccl = true},
      {.what = "one asks for sockets", .second = kSockets},
      {.what = "one lacks it", .first_has = false},
      {.what = "the other lacks it", .second_has = false},
      {.what = "it does not connect", .refuses = true},
  };
  for (const Choice& c : choices) {
    INFO(c.what);
    const auto first = MakeFakeCopies({.shares = c.peer});
    const auto second = MakeFakeCopies({.shares = c.peer});
    DeviceWay one = Way(first.get(), c.first, "a");
    DeviceWay other = Way(second.get(), c.second, c.second_host);
    if (!c.first_has) one.nccl = nullptr;
    if (!c.second_has) other.nccl = nullptr;
    nccl.refuses = c.refuses;
    const auto transports = AllOf(TryJoinDevices({one, other}));
    nccl.refuses = false;
    CHECK(nccl.communicators == (c.by_nccl ? 4 : 0));
  }
}

TEST_CASE("each of four stages' borders connects") {
  const auto device = MakeFakeCopies();
  const DeviceWay way = Way(device.get(), TransportChoice::kNccl);
  const auto transports = AllOf(TryJoinDevices({way, way, way, way}));
  CHECK(FakeNcclState().communicators == 12);
}

TEST_CASE("a stage that must go by NCCL and cannot says which other and why") {
  const auto first = MakeFakeCopies();
  const auto second = MakeFakeCopies();
  DeviceWay lacks = Way(second.get(), TransportChoice::kAuto);
  lacks.nccl = nullptr;
  lacks.no_nccl = "it is not installed there";
  const Joined joined = TryJoinDevices({Way(first.get(), TransportChoice::kNccl), lacks});
  CHECK(absl::IsFailedPrecondition(joined[0].status()));
  const std::string message(joined[0].status().message());
  CHECK_THAT(message, Catch::Contains("stage 1 cannot be reached by NCCL"));
  CHECK_THAT(message, Catch::Contains("it is not installed there"));
  CHECK_THAT(message, Catch::Contains("--transport"));
}

TEST_CASE("a library that is missing, too old or another says so, and how to mend it") {
  const auto refused = [](const std::string& file) {
    const absl::Status status = NcclLibrary::Open(file).status();
    CHECK(absl::IsFailedPrecondition(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains("NCCL 2.18 or newer"));
    return std::string(status.message());
  };
  CHECK_THAT(refused("libnccl-that-is-not-there.so.2"),
             Catch::Contains("libnccl-that-is-not-there.so.2"));
  CHECK_THAT(refused("libm.so.6"), Catch::Contains("it lacks ncclGetVersion"));
  FakeNccl& nccl = FakeNcclState();
  nccl.version = 21706;
  CHECK_THAT(refused(kFakeNcclFile), Catch::Contains("is of version 2.17.6"));
  nccl.version = 22809;
  CHECK(FakeNcclLibrary().version() == "2.28.9");
}

}  // namespace
}  // namespace lorad::worker
