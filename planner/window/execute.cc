#include "planner/window/execute.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <map>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace lorad::planner {
namespace {

using JobStep = std::pair<std::string, int64_t>;

enum Stream { kCompute, kSend, kReceive };

Stream StreamOf(const Operation& operation) {
  if (operation.kind == OperationKind::kSend) return kSend;
  return operation.kind == OperationKind::kRecv ? kReceive : kCompute;
}

bool Computes(const Operation& operation, int64_t microbatch, bool gradient) {
  if (operation.microbatch != microbatch) return false;
  if (gradient) return operation.kind == OperationKind::kBackward;
  return operation.kind == OperationKind::kForward || operation.kind == OperationKind::kEvaluate ||
         operation.kind == OperationKind::kGenerate;
}

constexpr int kNone = -1;

// One operation and what it waits for besides its predecessor in its stream. Indices are of the
// same stage's list.
struct Node {
  absl::InlinedVector<int, 3> after_end;    // operations that must have ended
  absl::InlinedVector<int, 1> after_start;  // operations that must have begun
  bool done = false;
};

struct Stage {
  const std::vector<Operation>* operations = nullptr;
  std::vector<Node> nodes;
  std::array<std::vector<int>, 3> streams;    // indices of operations, in order
  std::array<size_t, 3> next = {0, 0, 0};     // of each stream
  std::array<double, 3> free_ms = {0, 0, 0};  // of each stream
};

class Machine {
 public:
  Machine(const std::vector<std::vector<Operation>>& lists, const Buffers& buffers,
          const OperationCost& cost)
      : buffers_(buffers), cost_(cost), stages_(lists.size()), spans_(lists.size()) {
    for (size_t s = 0; s < lists.size(); ++s) {
      stages_[s].operations = &lists[s];
      stages_[s].nodes.resize(lists[s].size());
      spans_[s].resize(lists[s].size());
      for (size_t i = 0; i < lists[s].size(); ++i) {
        stages_[s].streams[StreamOf(lists[s][i])].push_back(static_cast<int>(i));
      }
    }
  }

  absl::Status Prepare() {
    for (size_t s = 0; s < stages_.size(); ++s) {
      for (const bool gradient : {false, true}) {
        if (absl::Status status = Link(static_cast<int>(s), gradient); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Execution> Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        while (Compute(static_cast<int>(s))) moved = true;
        while (true) {
          const absl::StatusOr<bool> sent = Transfer(static_cast<int>(s));
          if (!sent.ok()) return sent.status();
          if (!*sent) break;
          moved = true;
        }
      }
    }
    if (absl::Status status = Ended(); !status.ok()) return status;
    return std::move(spans_);
  }

 private:
  const Operation& At(int stage, int index) const {
    return (*stages_[static_cast<size_t>(stage)].operations)[static_cast<size_t>(index)];
  }

  absl::Status Wrong(int stage, int index, const std::string& what) const {
    return absl::InternalError(absl::StrCat("stage ", stage, ", operation ", index, " (",
                                            ToText(At(stage, index)), "): ", what));
  }

  // Transfers of activations, or of gradients, with what they wait for and what waits for them.
  absl::Status Link(int s, bool gradient) {
    Stage& stage = stages_[static_cast<size_t>(s)];
    const std::vector<int>& compute = stage.streams[kCompute];
    std::map<int64_t, int> at;  // microbatch -> place in the compute stream
    for (size_t i = 0; i < compute.size(); ++i) {
      const Operation& operation = At(s, compute[i]);
      if (Computes(operation, operation.microbatch, gradient)) {
        at[operation.microbatch] = static_cast<int>(i);
      }
    }
    for (const Stream stream : {kSend, kReceive}) {
      std::vector<int> transfers, places;
      for (const int index : stage.streams[stream]) {
        const Operation& operation = At(s, index);
        if (operation.gradient != gradient) continue;
        const bool up = gradient == (stream == kReceive);  // the peer is the next stage
        if (operation.peer < 0 || operation.peer >= static_cast<int>(stages_.size()) ||
            operation.peer != (up ? s + 1 : s - 1)) {
          return Wrong(s, index, "the other stage is no neighbour in that direction");
        }
        const auto found = at.find(operation.microbatch);
        const bool before = stream == kSend;
        if (found == at.end() || (compute[static_cast<size_t>(found->second)] < index) != before) {
          return Wrong(s, index,
                       before ? "nothing before it makes what is sent"
                              : "nothing behind it takes what is received");
        }
        if (!places.empty() && places.back() >= found->second) {
          return Wrong(s, index, "out of the order in which its stage computes");
        }
        transfers.push_back(index);
        places.push_back(found->second);
      }
      stream == kSend ? LinkSends(&stage, transfers, places)
                      : LinkReceives(&stage, transfers, places);
    }
    return absl::OkStatus();
  }

  bool Blocks(Stream stream) const {
    return stream == kCompute || (stream == kSend ? buffers_.send : buffers_.receive) == 0;
  }

  // Transfers without buffers take turns with compute and one another. The neighbours in each
  // stream are enough to name: streams keep their order.
  void Block(Stage* stage, const std::vector<int>& transfers) {
    for (const Stream which : {kCompute, kSend, kReceive}) {
      if (!Blocks(which)) continue;
      const std::vector<int>& stream = stage->streams[which];
      size_t at = 0;
      for (const int transfer : transfers) {
        while (at < stream.size() && stream[at] < transfer) ++at;
        if (at > 0) stage->nodes[static_cast<size_t>(transfer)].after_end.push_back(stream[at - 1]);
        const size_t behind = at < stream.size() && stream[at] == transfer ? at + 1 : at;
        if (behind < stream.size()) {
          stage->nodes[static_cast<size_t>(stream[behind])].after_end.push_back(transfer);
        }
      }
    }
  }

  // Send k waits for its data; producer k + `send` begins when send k has ended.
  void LinkSends(Stage* stage, const std::vector<int>& sends, const std::vector<int>& places) {
    const std::vector<int>& compute = stage->streams[kCompute];
    const size_t buffers = static_cast<size_t>(buffers_.send);
    for (size_t k = 0; k < sends.size(); ++k) {
      const int producer = compute[static_cast<size_t>(places[k])];
      stage->nodes[static_cast<size_t>(sends[k])].after_end.push_back(producer);
      if (buffers > 0 && k >= buffers) {
        stage->nodes[static_cast<size_t>(producer)].after_end.push_back(sends[k - buffers]);
      }
    }
    if (buffers == 0) Block(stage, sends);
  }

  // Consumer k waits for receive k, which begins when consumer k - `receive` has.
  void LinkReceives(Stage* stage, const std::vector<int>& receives,
                    const std::vector<int>& places) {
    const std::vector<int>& compute = stage->streams[kCompute];
    const size_t buffers = static_cast<size_t>(buffers_.receive);
    for (size_t k = 0; k < receives.size(); ++k) {
      const int consumer = compute[static_cast<size_t>(places[k])];
      stage->nodes[static_cast<size_t>(consumer)].after_end.push_back(receives[k]);
      if (buffers > 0 && k >= buffers) {
        const int before = compute[static_cast<size_t>(places[k - buffers])];
        stage->nodes[static_cast<size_t>(receives[k])].after_start.push_back(before);
      }
    }
    if (buffers == 0) Block(stage, receives);
  }

  // The index of the stream's next operation, where all it waits for on its own stage is done.
  int Ready(int s, Stream stream, double* start_ms) const {
    const Stage& stage = stages_[static_cast<size_t>(s)];
    if (stage.next[stream] == stage.streams[stream].size()) return kNone;
    const int index = stage.streams[stream][stage.next[stream]];
    const Node& node = stage.nodes[static_cast<size_t>(index)];
    *start_ms = stage.free_ms[stream];
    for (const int other : node.after_end) {
      if (!stage.nodes[static_cast<size_t>(other)].done) return kNone;
      *start_ms = std::max(*start_ms, Of(s, other).end_ms);
    }
    for (const int other : node.after_start) {
      if (!stage.nodes[static_cast<size_t>(other)].done) return kNone;
      *start_ms = std::max(*start_ms, Of(s, other).start_ms);
    }
    return index;
  }

  const Span& Of(int stage, int index) const {
    return spans_[static_cast<size_t>(stage)][static_cast<size_t>(index)];
  }

  void Finish(int s, Stream stream, int index, const Span& span) {
    Stage& stage = stages_[static_cast<size_t>(s)];
    spans_[static_cast<size_t>(s)][static_cast<size_t>(index)] = span;
    stage.nodes[static_cast<size_t>(index)].done = true;
    stage.free_ms[stream] = span.end_ms;
    ++stage.next[stream];
  }

  bool Compute(int s) {
    double start_ms = 0;
    const int index = Ready(s, kCompute, &start_ms);
    if (index == kNone) return false;
    const Operation& operation = At(s, index);
    const JobStep batch(operation.job, operation.step);
    if (operation.kind == OperationKind::kClipDown) {
      const auto found = normed_.find(batch);
      if (found == normed_.end() || found->second.first < stages_.size()) return false;
      start_ms = std::max(start_ms, found->second.second);
    }
    const Span span{start_ms, start_ms + cost_(s, operation)};
    if (operation.kind == OperationKind::kNormUp) {
      auto& [stages, end_ms] = normed_[batch];
      ++stages;
      end_ms = std::max(end_ms, span.end_ms);
    }
    Finish(s, kCompute, index, span);
    return true;
  }

  // The sender's next transfer, where both sides are at it.
  absl::StatusOr<bool> Transfer(int s) {
    double send_ms = 0, receive_ms = 0;
    const int send = Ready(s, kSend, &send_ms);
    if (send == kNone) return false;
    const Operation& sent = At(s, send);
    const Stage& peer = stages_[static_cast<size_t>(sent.peer)];
    if (peer.next[kReceive] == peer.streams[kReceive].size()) return false;
    const int receive = peer.streams[kReceive][peer.next[kReceive]];
    const Operation& expected = At(sent.peer, receive);
    if (expected.peer != s) return false;
    if (expected.microbatch != sent.microbatch || expected.gradient != sent.gradient) {
      return Wrong(s, send, absl::StrCat("stage ", sent.peer, " expects ", ToText(expected)));
    }
    if (Ready(sent.peer, kReceive, &receive_ms) == kNone) return false;
    const double start_ms = std::max(send_ms, receive_ms);
    const Span span{start_ms, start_ms + cost_(s, sent)};
    Finish(s, kSend, send, span);
    Finish(sent.peer, kReceive, receive, span);
    return true;
  }

  absl::Status Ended() const {
    std::string text;
    for (size_t s = 0; s < stages_.size(); ++s) {
      for (const Stream stream : {kCompute, kSend, kReceive}) {
        const Stage& stage = stages_[s];
        if (stage.next[stream] == stage.streams[stream].size()) continue;
        const int index = stage.streams[stream][stage.next[stream]];
        absl::StrAppend(&text, text.empty() ? "" : ", ", "stage ", s, " at operation ", index, " (",
                        ToText(At(static_cast<int>(s), index)), ")");
      }
    }
    if (text.empty()) return absl::OkStatus();
    return absl::InternalError("the lists wait for ever: " + text);
  }

  const Buffers buffers_;
  const OperationCost& cost_;
  std::vector<Stage> stages_;
  Execution spans_;
  std::map<JobStep, std::pair<size_t, double>> normed_;  // stages that did, the last one's end
};

}  // namespace

absl::StatusOr<Execution> Execute(const std::vector<std::vector<Operation>>& stages,
                                  const Buffers& buffers, const OperationCost& cost) {
  assert(buffers.receive >= 0 && buffers.send >= 0);
  Machine machine(stages, buffers, cost);
  if (absl::Status status = machine.Prepare(); !status.ok()) return status;
  return machine.Run();
}

}  // namespace lorad::planner
