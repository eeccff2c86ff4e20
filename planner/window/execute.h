// Runs the operation lists of a window as its workers would, in pretended time: the proof that the
// lists cannot deadlock, and the ground of the simulator (simulate.h).
//
// Each stage has three streams, and each stream takes its operations in the order of the stage's
// list: sends, receives, and everything else (compute). A transfer is a rendezvous: it begins when
// its Send is next in the sender's stream and its Recv next in the receiver's, and occupies both
// streams until it ends. A Send waits for the Forward, Backward or Evaluate that makes its data,
// that operation's counterpart on the other stage waits for its Recv, and a ClipDown for the
// NormUps of all stages.
//
// No operation has a choice: each waits for a fixed set of others. Such a net is monotone: whether
// it runs to its end does not depend on how long anything takes or on who moves first, so one run
// proves all of them (a marked graph is live exactly if it has no cycle without a token; Commoner,
// Holt, Even and Pnueli, "Marked directed graphs", 1971).
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/window/types.h"

namespace lorad::planner {

// The tensors that may wait between the streams of a stage, counted for activations and gradients
// apart. With
// 0 the transfers block, as in one thread that posts nothing ahead: each begins when all that
// stands before it in compute and in blocking streams has ended, and nothing of these behind it
// begins until it has ended.
struct Buffers {
  int receive = 1;  // received, its Forward or Backward not yet begun
  int send = 1;     // computed, not yet sent
};

struct Span {
  double start_ms = 0;
  double end_ms = 0;

  bool operator==(const Span&) const = default;
};

// When each operation of each list runs; operations without a cost take no time.
using Execution = std::vector<std::vector<Span>>;

// Milliseconds (finite, >= 0) of an operation of a stage; a transfer's is asked of its Send.
using OperationCost = std::function<double(int stage, const Operation& operation)>;

// Every operation at its earliest. O(operations * stages). INTERNAL where the lists cannot be run
// to their end (it names where each stage stands), where a Send and the Recv it meets differ, a
// transfer has no Forward, Backward or Evaluate on its stage, stands out of their order (buffers
// are first in, first out), or names no neighbour.
absl::StatusOr<Execution> Execute(const std::vector<std::vector<Operation>>& stages,
                                  const Buffers& buffers, const OperationCost& cost);

}  // namespace lorad::planner
