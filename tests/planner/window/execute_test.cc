#include "planner/window/execute.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

#include "planner/window/order.h"
#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

using Lists = std::vector<std::vector<Operation>>;

double Free(int, const Operation&) { return 0; }

// Microbatches of one job each, all of one batch.
OrderInput Plain(int stages, int microbatches, int in_flight) {
  OrderInput input;
  input.stages = stages;
  input.in_flight = in_flight;
  for (int i = 0; i < microbatches; ++i) {
    input.microbatches.push_back({i, {{.job = "a", .step = 1, .tokens = 1}}});
  }
  input.ends = {{"a", 1, 1, false}};
  return input;
}

std::string Error(const Lists& lists, const Buffers& buffers) {
  return std::string(Execute(lists, buffers, Free).status().message());
}

TEST_CASE("Two stages by hand") {
  const auto lists = OrderOperations(Plain(2, 2, 0));
  REQUIRE(lists.ok());
  const auto execution = Execute(*lists, {}, [](int, const Operation& operation) {
    switch (operation.kind) {
      case OperationKind::kForward:
        return 10.0;
      case OperationKind::kBackward:
        return 20.0;
      case OperationKind::kSend:
        return 1.0;
      default:
        return 0.0;
    }
  });
  REQUIRE(execution.ok());
  std::string text;
  for (size_t s = 0; s < 2; ++s) {
    for (size_t i = 0; i < (*lists)[s].size(); ++i) {
      const Span& span = (*execution)[s][i];
      if (span.end_ms == span.start_ms) continue;
      text += std::to_string(s) + " " + ToText((*lists)[s][i]) + " " +
              std::to_string(static_cast<int>(span.start_ms)) + "-" +
              std::to_string(static_cast<int>(span.end_ms)) + "\n";
    }
  }
  // F1 waits for its send buffer: F0's output leaves until 11.
  CHECK(text ==
        "0 F0 0-10\n"
        "0 SEND F0>1 10-11\n"
        "0 F1 11-21\n"
        "0 SEND F1>1 21-22\n"
        "0 RECV B0<1 41-42\n"
        "0 B0 42-62\n"
        "0 RECV B1<1 71-72\n"
        "0 B1 72-92\n"
        "1 RECV F0<0 10-11\n"
        "1 F0 11-21\n"
        "1 B0 21-41\n"
        "1 SEND B0>0 41-42\n"
        "1 RECV F1<0 21-22\n"
        "1 F1 41-51\n"
        "1 B1 51-71\n"
        "1 SEND B1>0 71-72\n");
}

TEST_CASE("Lists that deadlock for want of a buffer") {
  // Stage 0 is to send F1 before it receives B0, stage 1 to send B0 before it receives F1.
  const auto lists = OrderOperations(Plain(2, 3, 0));
  REQUIRE(lists.ok());
  CHECK(Error(*lists, {.receive = 0, .send = 0}) ==
        "the lists wait for ever: stage 0 at operation 5 (B0), stage 0 at operation 3 (SEND F1>1), "
        "stage 0 at operation 4 (RECV B0<1), stage 1 at operation 5 (F1), stage 1 at operation 3 "
        "(SEND B0>0), stage 1 at operation 4 (RECV F1<0)");
  CHECK(Error(*lists, {.receive = 1, .send = 0}) == "");
  CHECK(Error(*lists, {.receive = 0, .send = 1}) == "");
}

TEST_CASE("Every order runs with a buffer on each side, and any number of microbatches in flight") {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int microbatches = 1; microbatches <= 9; ++microbatches) {
      for (int in_flight = 0; in_flight <= stages + 3; ++in_flight) {
        const auto lists = OrderOperations(Plain(stages, microbatches, in_flight));
        REQUIRE(lists.ok());
        INFO(stages << " stages, " << microbatches << ", " << in_flight);
        CHECK(Error(*lists, {.receive = 1, .send = 1}) == "");
        CHECK(Error(*lists, {.receive = 1, .send = 0}) == "");
        CHECK(Error(*lists, {.receive = 0, .send = 1}) == "");
        // More buffers never hurt.
        CHECK(Error(*lists, {.receive = 3, .send = 2}) == "");
      }
    }
  }
}

TEST_CASE("What is wrong is named") {
  const Operation f0{.kind = OperationKind::kForward, .microbatch = 0};
  const Operation b0{.kind = OperationKind::kBackward, .microbatch = 0};
  const auto send = [](int64_t microbatch, int peer, bool gradient) {
    return Operation{
        .kind = OperationKind::kSend, .microbatch = microbatch, .peer = peer, .gradient = gradient};
  };
  const auto receive = [](int64_t microbatch, int peer, bool gradient) {
    return Operation{
        .kind = OperationKind::kRecv, .microbatch = microbatch, .peer = peer, .gradient = gradient};
  };
  const Operation f1{.kind = OperationKind::kForward, .microbatch = 1};
  CHECK(Error({{f0, send(0, 1, false)}, {receive(0, 0, false), f0}}, {}) == "");
  CHECK(Error({{f0, send(0, 0, false)}, {}}, {}) ==
        "stage 0, operation 1 (SEND F0>0): the other stage is no neighbour in that direction");
  CHECK(Error({{b0, send(0, 1, true)}, {}}, {}) ==
        "stage 0, operation 1 (SEND B0>1): the other stage is no neighbour in that direction");
  CHECK(Error({{f0, send(0, -1, false)}, {}}, {}) ==
        "stage 0, operation 1 (SEND F0>-1): the other stage is no neighbour in that direction");
  CHECK(Error({{send(0, 1, false), f0}, {receive(0, 0, false), f0}}, {}) ==
        "stage 0, operation 0 (SEND F0>1): nothing before it makes what is sent");
  CHECK(Error({{f0, send(0, 1, false)}, {receive(0, 0, false)}}, {}) ==
        "stage 1, operation 0 (RECV F0<0): nothing behind it takes what is received");
  CHECK(Error({{f0, send(0, 1, false), f1}, {receive(1, 0, false), f1}}, {}) ==
        "stage 0, operation 1 (SEND F0>1): stage 1 expects RECV F1<0");
  CHECK(Error({{f0, send(0, 1, false)}, {}}, {}) ==
        "the lists wait for ever: stage 0 at operation 1 (SEND F0>1)");
  CHECK(Error({{f0}, {receive(0, 0, false), f0}}, {}) ==
        "the lists wait for ever: stage 1 at operation 1 (F0), stage 1 at operation 0 (RECV "
        "F0<0)");
}

// The same rules told another way: whoever chance picks begins or ends something, one at a time,
// until nothing moves. True: all lists ended.
class Chance {
 public:
  Chance(const Lists& lists, const Buffers& buffers, std::mt19937* random)
      : lists_(lists), buffers_(buffers), random_(*random) {
    for (const auto& list : lists) states_.emplace_back(list.size(), kWaiting);
  }

  bool Run() {
    while (true) {
      std::vector<std::function<void()>> moves;
      for (size_t s = 0; s < lists_.size(); ++s) {
        for (size_t i = 0; i < lists_[s].size(); ++i) {
          if (states_[s][i] == kRunning) {
            moves.push_back([this, s, i] { states_[s][i] = kDone; });
          } else if (!IsTransfer(lists_[s][i])) {
            if (MayCompute(s, i)) moves.push_back([this, s, i] { states_[s][i] = kRunning; });
          } else if (lists_[s][i].kind == OperationKind::kSend && MayBegin(s, i)) {
            const auto [peer, receive] = Other(s, i);
            if (receive < 0) continue;
            moves.push_back([this, s, i, peer = peer, receive = receive] {
              states_[s][i] = states_[peer][static_cast<size_t>(receive)] = kDone;
            });
          }
        }
      }
      if (moves.empty()) break;
      moves[random_() % moves.size()]();
    }
    for (const auto& states : states_) {
      if (std::count(states.begin(), states.end(), kDone) !=
          static_cast<ptrdiff_t>(states.size())) {
        return false;
      }
    }
    return true;
  }

 private:
  enum State { kWaiting, kRunning, kDone };

  static bool IsTransfer(const Operation& o) {
    return o.kind == OperationKind::kSend || o.kind == OperationKind::kRecv;
  }
  // Takes turns with all others that do.
  bool Blocks(const Operation& o) const {
    return !IsTransfer(o) || (o.kind == OperationKind::kSend && buffers_.send == 0) ||
           (o.kind == OperationKind::kRecv && buffers_.receive == 0);
  }
  static bool Gradient(const Operation& o) {
    return IsTransfer(o) ? o.gradient : o.kind == OperationKind::kBackward;
  }
  static bool SameData(const Operation& a, const Operation& b) {
    return a.microbatch >= 0 && a.microbatch == b.microbatch && Gradient(a) == Gradient(b) &&
           a.kind != OperationKind::kNoop && b.kind != OperationKind::kNoop;
  }
  // The computation of a transfer, or the transfer of a computation, on one stage; -1: none.
  int Find(size_t s, const Operation& of, OperationKind kind) const {
    for (size_t i = 0; i < lists_[s].size(); ++i) {
      const Operation& o = lists_[s][i];
      const bool fits = kind == OperationKind::kForward ? !IsTransfer(o) : o.kind == kind;
      if (fits && SameData(o, of)) return static_cast<int>(i);
    }
    return -1;
  }
  State At(size_t s, int i) const { return states_[s][static_cast<size_t>(i)]; }

  // Its place in the stream has come.
  bool MayBegin(size_t s, size_t i) const {
    if (states_[s][i] != kWaiting) return false;
    const auto stream = [](const Operation& o) {
      return IsTransfer(o) ? o.kind : OperationKind::kNoop;
    };
    for (size_t j = 0; j < i; ++j) {
      const bool before = stream(lists_[s][j]) == stream(lists_[s][i]) ||
                          (Blocks(lists_[s][j]) && Blocks(lists_[s][i]));
      if (before && states_[s][j] != kDone) return false;
    }
    const Operation& operation = lists_[s][i];
    if (operation.kind == OperationKind::kSend) {
      return At(s, Find(s, operation, OperationKind::kForward)) == kDone;
    }
    if (operation.kind != OperationKind::kRecv || buffers_.receive == 0) return true;
    int unused = 0;
    for (size_t j = 0; j < lists_[s].size(); ++j) {
      const Operation& other = lists_[s][j];
      if (other.kind != OperationKind::kRecv || other.gradient != operation.gradient) continue;
      if (states_[s][j] == kDone && At(s, Find(s, other, OperationKind::kForward)) == kWaiting) {
        ++unused;
      }
    }
    return unused < buffers_.receive;
  }

  bool MayCompute(size_t s, size_t i) const {
    if (!MayBegin(s, i)) return false;
    const Operation& operation = lists_[s][i];
    if (operation.kind == OperationKind::kClipDown) {
      for (size_t t = 0; t < lists_.size(); ++t) {
        for (size_t j = 0; j < lists_[t].size(); ++j) {
          if (lists_[t][j].kind == OperationKind::kNormUp && states_[t][j] != kDone) return false;
        }
      }
    }
    const int receive = Find(s, operation, OperationKind::kRecv);
    if (receive >= 0 && At(s, receive) != kDone) return false;
    if (buffers_.send == 0 || Find(s, operation, OperationKind::kSend) < 0) return true;
    int unsent = 0;
    for (size_t j = 0; j < lists_[s].size(); ++j) {
      const Operation& other = lists_[s][j];
      if (other.kind != OperationKind::kSend || other.gradient != Gradient(operation)) continue;
      if (states_[s][j] != kDone && At(s, Find(s, other, OperationKind::kForward)) == kDone)
        ++unsent;
    }
    return unsent < buffers_.send;
  }

  // The receive that a send meets, where it may begin; -1: none.
  std::pair<size_t, int> Other(size_t s, size_t i) const {
    const size_t peer = static_cast<size_t>(lists_[s][i].peer);
    const int receive = Find(peer, lists_[s][i], OperationKind::kRecv);
    if (receive < 0 || !MayBegin(peer, static_cast<size_t>(receive))) return {peer, -1};
    return {peer, receive};
  }

  const Lists& lists_;
  const Buffers buffers_;
  std::mt19937& random_;
  std::vector<std::vector<State>> states_;
};

TEST_CASE("The proof agrees with random runs, on sound lists and on disturbed ones") {
  int stuck = 0, ended = 0;
  for (const uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 700; ++i) {
      const int stages = 1 + static_cast<int>(random() % 4);
      auto lists = OrderOperations(
          Plain(stages, 1 + static_cast<int>(random() % 4), static_cast<int>(random() % 7)));
      REQUIRE(lists.ok());
      // Neighbours change places: orders that nobody planned, and some that cannot run.
      for (size_t swaps = random() % 4; swaps > 0; --swaps) {
        auto& list = (*lists)[random() % lists->size()];
        const size_t at = random() % (list.size() - 1);
        std::swap(list[at], list[at + 1]);
      }
      const Buffers buffers{static_cast<int>(random() % 3), static_cast<int>(random() % 3)};
      const absl::Status proof = Execute(*lists, buffers, Free).status();
      const bool malformed =
          !proof.ok() && proof.message().find("wait for ever") == std::string::npos;
      if (malformed) continue;  // a transfer that has no data, or meets another
      const bool runs = Chance(*lists, buffers, &random).Run();
      INFO("case " << i << ", buffers " << buffers.receive << " " << buffers.send << "\n"
                   << ToText(Window{{}, {}, *lists}) << proof.message());
      REQUIRE(runs == proof.ok());
      (runs ? ended : stuck) += 1;
    }
  }
  CHECK(stuck > 100);
  CHECK(ended > 100);
}

}  // namespace
}  // namespace lorad::planner
