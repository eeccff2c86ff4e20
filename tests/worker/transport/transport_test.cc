// What every transport promises (worker/transport/transport.h): the same cases over each.
#include "worker/transport/transport.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>

#include "tests/worker/mpi/site.h"
#include "tests/worker/transport/fake_device.h"
#include "tests/worker/transport/fake_nccl_library.h"
#include "tests/worker/transport/join.h"
#include "worker/transport/device_transport.h"
#include "worker/transport/in_process.h"

namespace lorad::worker {
namespace {

using Transports = std::vector<std::unique_ptr<Transport>>;
using kernels::TensorView;

constexpr int64_t kTimeoutMs = 300;

struct Kind {
  const char* name;
  std::function<Transports(int stages, int64_t timeout_ms)> join;
};

Transports OnDevices(Transports below, Crossing crossing) {
  static const std::unique_ptr<kernels::DeviceCopies> copies = MakeFakeCopies();
  for (size_t stage = 0; stage < below.size(); ++stage) {
    below[stage] = MakeDeviceTransport(static_cast<int>(stage), std::move(below[stage]),
                                       copies.get(), {.before = crossing, .behind = crossing});
  }
  return below;
}

Transports ByNccl(int stages, int64_t timeout_ms) {
  static const std::unique_ptr<kernels::DeviceCopies> copies = MakeFakeCopies();
  const DeviceWay way = {
      .copies = copies.get(), .choice = TransportChoice::kNccl, .nccl = &FakeNcclLibrary()};
  return AllOf(TryJoinDevices(std::vector<DeviceWay>(static_cast<size_t>(stages), way),
                              {.wait_ms = timeout_ms}));
}

std::vector<Kind> Kinds() {
  using Moment = InProcessOptions::Moment;
  const auto in_process = [](Moment moment, int64_t delay_us_max) {
    return [=](int stages, int64_t timeout_ms) {
      return JoinInProcess(
          stages,
          {.moment = moment, .delay_us_max = delay_us_max, .seed = 1, .timeout_ms = timeout_ms});
    };
  };
  const auto by_sockets = [](int stages, int64_t timeout_ms) {
    return JoinBySockets(stages, {.wait_ms = timeout_ms});
  };
  std::vector<Kind> kinds = {
      {"in process, at once", in_process(Moment::kAtOnce, 0)},
      {"in process, at last", in_process(Moment::kAtLast, 0)},
      {"in process, shuffled and slow", in_process(Moment::kShuffled, 500)},
      {"sockets", by_sockets},
      {"devices, staged, in process",
       [=](int stages, int64_t timeout_ms) {
         return OnDevices(in_process(Moment::kShuffled, 500)(stages, timeout_ms),
                          Crossing::kStaged);
       }},
      {"devices, staged, by sockets",
       [=](int stages, int64_t timeout_ms) {
         return OnDevices(by_sockets(stages, timeout_ms), Crossing::kStaged);
       }},
      {"devices, by peer, in process",
       [=](int stages, int64_t timeout_ms) {
         return OnDevices(in_process(Moment::kAtLast, 500)(stages, timeout_ms), Crossing::kPeer);
       }},
      {"devices, by peer, with sockets",
       [=](int stages, int64_t timeout_ms) {
         return OnDevices(by_sockets(stages, timeout_ms), Crossing::kPeer);
       }},
      {"devices, by NCCL, with sockets", ByNccl}};
  if (MpiSite* site = MpiSite::Here(); site != nullptr) {
    const auto by_mpi = [site](int stages, int64_t timeout_ms) {
      return AllOf(site->TryJoin(stages, {.wait_ms = timeout_ms}));
    };
    kinds.push_back({"MPI", by_mpi});
    kinds.push_back({"devices, staged, by MPI", [=](int stages, int64_t timeout_ms) {
                       return OnDevices(by_mpi(stages, timeout_ms), Crossing::kStaged);
                     }});
  }
  return kinds;
}

// A tensor [rows, columns] of numbers that begin with `first`.
struct Tensor {
  Tensor(int64_t rows, int64_t columns, float first = 0)
      : values(static_cast<size_t>(rows * columns)),
        view(kernels::HostMatrix(values.data(), rows, columns)) {
    std::iota(values.begin(), values.end(), first);
  }
  std::vector<float> values;
  TensorView view;
};

TEST_CASE("tensors land in their order, whole, in the memory that was posted for them") {
  constexpr int64_t kRows = 700;
  constexpr int64_t kColumns = 1000;  // more than a socket holds
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const Transports stages = kind.join(2, 10'000);
    for (const Lane lane : {Lane::kActivations, Lane::kGradients}) {
      Transport& from = *stages[lane == Lane::kActivations ? 0 : 1];
      Transport& to = *stages[lane == Lane::kActivations ? 1 : 0];
      std::thread sender([&] {
        Tensor tensor(kRows, kColumns);
        for (int64_t i = 0; i < 5; ++i) {
          if (!from.WaitSent(lane).ok()) return;
          std::iota(tensor.values.begin(), tensor.values.end(), static_cast<float>(i));
          if (!from.Send(lane, {i, kRows - i, {1, static_cast<int32_t>(i)}}, tensor.view).ok()) {
            return;
          }
        }
        from.WaitSent(lane).IgnoreError();
      });
      for (int64_t i = 0; i < 5; ++i) {
        Tensor tensor(kRows, kColumns, -1);
        REQUIRE(to.PostReceive(lane, tensor.view).ok());
        const auto landing = to.WaitReceived(lane);
        REQUIRE(landing.ok());
        CHECK((*landing)->passage == Passage{i, kRows - i, {1, static_cast<int32_t>(i)}});
        const Tensor sent(kRows - i, kColumns, static_cast<float>(i));
        Tensor want(kRows, kColumns, -1);  // the rest is as it was
        std::copy(sent.values.begin(), sent.values.end(), want.values.begin());
        CHECK((tensor.values == want.values));
      }
      sender.join();
    }
  }
}

TEST_CASE("a tensor of no rows lands too, and not before there is memory for one") {
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const Transports stages = kind.join(2, 10'000);
    Tensor tensor(1, 4);
    REQUIRE(stages[0]->Send(Lane::kActivations, {3, 0}, tensor.view).ok());
    REQUIRE(stages[1]->PostReceive(Lane::kActivations, tensor.view).ok());
    const auto landing = stages[1]->WaitReceived(Lane::kActivations);
    REQUIRE(landing.ok());
    CHECK((*landing)->passage == Passage{3, 0});
  }
}

TEST_CASE("notes come in order from each stage, and no tensor holds them up") {
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const Transports stages = kind.join(3, 10'000);
    Tensor large(2000, 1000);  // that nobody takes
    REQUIRE(stages[0]->Send(Lane::kActivations, {1, 2000}, large.view).ok());
    REQUIRE(stages[1]->Send(Lane::kGradients, {1, 2000}, large.view).ok());
    for (const char* note : {"a", "", "c"}) {
      REQUIRE(stages[1]->SendNote(0, note).ok());
      REQUIRE(stages[2]->SendNote(0, std::string("2") + note).ok());
    }
    REQUIRE(stages[0]->SendNote(2, std::string(100'000, 'x')).ok());
    for (const char* note : {"a", "", "c"}) {
      CHECK(*stages[0]->WaitNote(2) == std::string("2") + note);
      CHECK(*stages[0]->WaitNote(1) == note);
    }
    CHECK(stages[2]->WaitNote(0)->size() == 100'000);
  }
}

double SecondsOf(const std::function<void()>& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// Every wait there is.
std::vector<std::function<absl::Status(Transport&)>> Waits() {
  return {[](Transport& stage) { return stage.WaitReceived(Lane::kActivations).status(); },
          [](Transport& stage) { return stage.WaitNote(0).status(); },
          [](Transport& stage) {
            // Nobody posts memory on the other side; more than a socket holds.
            static const Tensor tensor(20'000, 1000);
            const absl::Status sent = stage.Send(Lane::kGradients, {1, 20'000}, tensor.view);
            return sent.ok() ? stage.WaitSent(Lane::kGradients) : sent;
          }};
}

TEST_CASE("every wait ends in time, and the transport with it") {
  for (const Kind& kind : Kinds()) {
    for (const auto& wait : Waits()) {
      INFO(kind.name);
      // The other side knows at once. The best of three: other tests run on the same cores.
      constexpr double kAtOnce = kTimeoutMs / 2000.0;
      double least = kTimeoutMs;
      for (int attempt = 0; attempt < 3 && least >= kAtOnce; ++attempt) {
        const Transports stages = kind.join(2, kTimeoutMs);
        Tensor tensor(1, 4);
        REQUIRE(stages[1]->PostReceive(Lane::kActivations, tensor.view).ok());
        absl::Status status;
        const double seconds = SecondsOf([&] { status = wait(*stages[1]); });
        CHECK(absl::IsDeadlineExceeded(status));
        CHECK(seconds >= 0.9 * kTimeoutMs / 1000);
        CHECK(stages[1]->SendNote(0, "late") == status);
        least = std::min(least, SecondsOf([&] { CHECK_FALSE(stages[0]->WaitNote(1).ok()); }));
      }
      CHECK(least < kAtOnce);
    }
  }
}

TEST_CASE("an interruption ends every wait, under way or to come") {
  for (const Kind& kind : Kinds()) {
    for (const auto& wait : Waits()) {
      INFO(kind.name);
      const Transports stages = kind.join(2, 60'000);
      Tensor tensor(1, 4);
      REQUIRE(stages[1]->PostReceive(Lane::kActivations, tensor.view).ok());
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        stages[1]->Interrupt(absl::AbortedError("dissolved"));
      });
      CHECK(wait(*stages[1]) == absl::AbortedError("dissolved"));
      other.join();
      CHECK(stages[1]->WaitNote(0).status() == absl::AbortedError("dissolved"));
    }
  }
}

TEST_CASE("a wait that is given up ends without a tensor, and the next one has the memory") {
  for (const Kind& kind : Kinds()) {
    for (const bool under_way : {true, false}) {
      INFO(kind.name << (under_way ? ", under way" : ", before it waits"));
      const Transports stages = kind.join(2, 60'000);
      Tensor memory(1, 4, -1);
      REQUIRE(stages[1]->PostReceive(Lane::kActivations, memory.view).ok());
      std::thread other([&] {
        if (under_way) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        stages[1]->GiveUpReceive(Lane::kActivations);
      });
      if (!under_way) other.join();
      const auto nothing = stages[1]->WaitReceived(Lane::kActivations);
      REQUIRE(nothing.ok());
      CHECK_FALSE(nothing->has_value());
      if (under_way) other.join();
      Tensor sent(1, 4);
      REQUIRE(stages[0]->Send(Lane::kActivations, {9, 1}, sent.view).ok());
      const auto landing = stages[1]->WaitReceived(Lane::kActivations);
      REQUIRE(landing.ok());
      CHECK((*landing)->passage == Passage{9, 1});
      CHECK((memory.values == sent.values));
    }
  }
}

TEST_CASE("a stage that is gone is known at once, in every wait") {
  for (const Kind& kind : Kinds()) {
    for (const auto& wait : Waits()) {
      INFO(kind.name);
      Transports stages = kind.join(2, 60'000);
      Tensor tensor(1, 4);
      REQUIRE(stages[1]->PostReceive(Lane::kActivations, tensor.view).ok());
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        stages[0].reset();
      });
      absl::Status status;
      CHECK(SecondsOf([&] { status = wait(*stages[1]); }) < 2);
      CHECK(absl::IsUnavailable(status));
      CHECK_THAT(std::string(status.message()), Catch::Contains("stage 0"));
      other.join();
    }
  }
}

// The transports of the host's memory; those of devices choose between Offer and PostReceive.
std::vector<Kind> Beneath() { return {Kinds()[0], Kinds()[3]}; }

TEST_CASE("who is offered memory learns its name, and sends the passage alone") {
  for (const Kind& kind : Beneath()) {
    INFO(kind.name);
    const Transports stages = kind.join(2, 10'000);
    Tensor memory(2, 4, -1);
    REQUIRE(stages[1]->Offer(Lane::kActivations, memory.view, "there").ok());
    const auto name = stages[0]->WaitRoom(Lane::kActivations);
    REQUIRE(name.ok());
    CHECK(*name == "there");
    const Tensor sent(2, 4);
    Passage passage{.microbatch = 1, .rows = 2, .in_place = true, .took_us = 7000};
    REQUIRE(stages[0]->Send(Lane::kActivations, passage, sent.view).ok());
    const auto landing = stages[1]->WaitReceived(Lane::kActivations);
    REQUIRE(landing.ok());
    passage.took_us = 0;  // which only the moments tell
    CHECK((*landing)->passage == passage);
    CHECK((*landing)->end - (*landing)->begin >= std::chrono::milliseconds(7));
    CHECK((memory.values == Tensor(2, 4, -1).values));  // the transport has left it alone
    REQUIRE(stages[1]->PostReceive(Lane::kActivations, memory.view).ok());
    CHECK(stages[0]->WaitRoom(Lane::kActivations)->empty());
  }
}

TEST_CASE("rows that come where they were to be written, or the other way, are refused") {
  for (const Kind& kind : Beneath()) {
    for (const bool offered : {true, false}) {
      INFO(kind.name << (offered ? ", offered" : ", posted"));
      const Transports stages = kind.join(2, 10'000);
      Tensor sent(2, 4);
      Tensor memory(2, 4);
      const absl::Status posted = offered
                                      ? stages[1]->Offer(Lane::kActivations, memory.view, "there")
                                      : stages[1]->PostReceive(Lane::kActivations, memory.view);
      REQUIRE(posted.ok());
      stages[0]
          ->Send(Lane::kActivations, {.microbatch = 1, .rows = 2, .in_place = !offered}, sent.view)
          .IgnoreError();
      CHECK(absl::IsInternal(stages[1]->WaitReceived(Lane::kActivations).status()));
    }
  }
}

TEST_CASE("a tensor that does not fit the memory posted for it is refused") {
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{3, 4}, {2, 5}}) {
      const Transports stages = kind.join(2, 10'000);
      Tensor sent(rows, columns);
      Tensor memory(2, 4);
      REQUIRE(stages[1]->PostReceive(Lane::kActivations, memory.view).ok());
      stages[0]->Send(Lane::kActivations, {1, rows}, sent.view).IgnoreError();
      CHECK(absl::IsInternal(stages[1]->WaitReceived(Lane::kActivations).status()));
    }
  }
}

}  // namespace
}  // namespace lorad::worker
