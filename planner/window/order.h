// Microbatches into the operation lists of every stage, and the proof that the lists are right.
// mLoRA 3.2 (adapters interleave), LoRAFusion 4.2 (bubble lemma, no-op microbatches).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/window/execute.h"
#include "planner/window/types.h"

namespace lorad::planner {

struct OrderInput {
  int stages = 1;
  int in_flight = 0;                                   // microbatches on a stage; 0: `stages`
  PlacesInFlight before = {};                          // what the window before has left
  std::vector<std::string> frees;                      // at the window's front, in this order,
  std::vector<std::pair<std::string, int64_t>> loads;  // then (job, step) of each LoadSlot,
  std::vector<std::pair<std::string, int64_t>> saves;  // then Saves of what was stepped before
  std::vector<Microbatch> microbatches;                // in pipeline order; one kind of pass each
  std::vector<BatchEnd> ends;
};

// Microbatches of which stage `stage` runs Forward before the first Backward: stage s of S holds
// at most A(s) + 1 of them at once. With a bound of k microbatches in flight on any stage
//   A(s) = min(S - 1 - s, k - 1)   k <= S, else   A(s) = k - 1 - s
// k = S keeps equal stages busy and gives PipeDream-flush; more absorbs microbatches of unequal
// length, fewer saves activations.
int ForwardsAhead(int stages, int in_flight, int stage);

// The list of every stage. One stage: Forward and Backward of each microbatch in turn. S stages:
// one forward, one backward, stage s being A(s) microbatches ahead, with an Evaluate or a Generate
// in its turn like any Forward. NormUp follows the last Backward of its batch directly; ClipDown,
// Step and Save, in the order of `ends`, come A(0) - A(s) places later, which is when stage 0 has
// all norms, and as early as any Forward needs them: no stage stands still for the norms of
// another. A microbatch that holds batch j + 1 of a job (or evaluates it after step j) gets the
// fewest Noop microbatches before it that put Step(job, j) before its Forward on every stage; Noops
// take numbers from `microbatches`' last one on and are added to no microbatch list.
//
// Without `left` the pipeline is empty when the lists end. With it the order runs on into the next
// window: the lists end with the Forward of the last place, and what follows from the A(0) newest
// places is left for a window that has them `before`. So nobody drains at a border. A job whose
// batch is in flight is freed behind its Step, slots are loaded behind the frees, and a Save of a
// step that is in flight stands behind that; where no microbatch is left to run meanwhile, Noops
// let the pipeline go on.
// O(operations). INVALID_ARGUMENT where the input
// contradicts itself (a batch without an end, an end without a batch, batches of a job out of
// order, numbers that do not rise, a negative bound).
absl::StatusOr<std::vector<std::vector<Operation>>> OrderOperations(const OrderInput& input,
                                                                    PlacesInFlight* left = nullptr);

// The lists of the shortest order that leaves these places: of each stage what has been run of
// them.
std::vector<std::vector<Operation>> ListsThatLeft(int stages, int in_flight,
                                                  const PlacesInFlight& places);

// OK, or what is wrong with the lists of a window:
// - on every stage, Step(job, j) comes before the Forward of any microbatch that holds global batch
//   j + 1 of the job, and before any Evaluate after step j;
// - every Forward of a train microbatch has its one Backward after it, in the Forwards' order;
//   every microbatch is run once;
// - Step(job, j) comes once, after all Backwards of its batch, after NormUp and ClipDown; Save
//   directly after its Step (or before the job's first Forward);
// - a job's operations lie behind its LoadSlot, none after its FreeSlot until it is loaded again;
// - every Forward but the first stage's has its activations received and every Backward but the
//   last one's its gradient, and what they make is sent on;
// - every Recv has its Send, in the same order, and the lists run to their end under rendezvous
//   sends with these buffers, whatever anything takes (execute.h).
absl::Status VerifyWindow(const Window& window, const Buffers& buffers = {});
// The same for windows that follow one another, the last of which leaves nothing in flight: their
// lists joined.
absl::Status VerifyWindows(const std::vector<Window>& windows, const Buffers& buffers = {});
// The same for one window that takes over what is in flight and leaves what is in flight: joined to
// lists that have left `before` (ListsThatLeft), and to those that drain what it leaves. Each
// window being proven so, all of them joined are: what drains `left` was proven to be all that is
// missing behind its window, and the next one, behind ListsThatLeft, to run just that. O(operations
// * stages), and no more for any number of windows before.
absl::Status VerifyWindowAmong(const Window& window, int in_flight, const PlacesInFlight& before,
                               const PlacesInFlight& left, const Buffers& buffers = {});

}  // namespace lorad::planner
