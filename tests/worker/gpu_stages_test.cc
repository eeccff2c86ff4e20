// A model in stages on one GPU, each with a worker of its own in this process: an adapter gets the
// bits that one worker gives it, by peer and through the host's memory; on two GPUs by NCCL, too.
// Skips where there is no GPU.
#include <catch2/catch.hpp>
#include <filesystem>
#include <iostream>
#include <stdexcept>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "tests/worker/harness.h"
#include "tests/worker/join_and_leave.h"
#include "tests/worker/rows.h"
#include "tests/worker/transport/join.h"
#include "worker/transport/nccl.h"

namespace lorad::worker {
namespace {

bool NoDevice() {
  const auto facts = kernels::ProbeCudaDevice(0);
  if (facts.ok()) return false;
  WARN("skipped: " << std::string(facts.status().message()));
  return true;
}

std::unique_ptr<kernels::Backend> OnGpu(int index) {
  auto backend = kernels::MakeCudaBackend(index);
  if (!backend.ok()) throw std::runtime_error(std::string(backend.status().message()));
  return *std::move(backend);
}

struct Shape {
  std::string path;
  std::vector<std::vector<int32_t>> cuts;
};

// The smallest, whose cuts lie in mid-layer too; and one whose products take the kernels of real ones.
std::vector<Shape> Shapes() {
  const auto folder = std::filesystem::temp_directory_path();
  return {{MakeRandomModel(folder / "gpu_stages_untied"), {{3}, {1, 4}, {1, 3, 5}}},
          {MakeTiedRandomModel(folder / "gpu_stages_tied"), {{2}, {1, 2, 5}}},
          {MakeSmolLm2Model(folder / "gpu_stages_smollm2"), {{30}, {15, 31, 44}}}};
}

Harness::Options OfShape(const Shape& shape) {
  return {.model_path = shape.path,
          .capacity_tokens = 256,
          .longest_sequence = 100,
          .recomputation = v1::FormGroup::NOTHING,
          .make_backend = [] { return OnGpu(0); }};
}

TEST_CASE("stages on one GPU give one worker's bits, by peer and through the host's memory") {
  if (NoDevice()) return;
  for (const Shape& shape : Shapes()) {
    const Outcome one = JoinAndLeave(OfShape(shape));
    for (const std::vector<int32_t>& cut : shape.cuts) {
      for (const TransportChoice transport : {TransportChoice::kPeer, TransportChoice::kSockets}) {
        INFO(shape.path << ", " << cut.size() + 1 << " stages"
                        << (transport == TransportChoice::kPeer ? ", by peer" : ", staged"));
        Harness::Options options = OfShape(shape);
        options.cuts = cut;
        options.in_flight = 3;
        options.runs_on = true;
        options.open_listener = ListenByASocket;
        options.transport = transport;
        CheckEqual(JoinAndLeave(options), one);
      }
    }
    std::cout << shape.path << ": " << 2 * shape.cuts.size() << " runs compared" << std::endl;
  }
}

TEST_CASE("stages on two GPUs give one worker's bits, by NCCL and by peer") {
  if (NoDevice()) return;
  if (!kernels::ProbeCudaDevice(1).ok()) {
    WARN("skipped: fewer than two GPUs");
    return;
  }
  const auto nccl = NcclLibrary::Open();
  if (!nccl.ok()) WARN("without NCCL: " << std::string(nccl.status().message()));
  for (const Shape& shape : Shapes()) {
    const Outcome one = JoinAndLeave(OfShape(shape));
    for (const TransportChoice transport : {TransportChoice::kNccl, TransportChoice::kPeer}) {
      if (transport == TransportChoice::kNccl && !nccl.ok()) continue;
      INFO(shape.path << (transport == TransportChoice::kPeer ? ", by peer" : ", by NCCL"));
      Harness::Options options = OfShape(shape);
      options.cuts = shape.cuts.front();
      options.in_flight = 3;
      options.runs_on = true;
      options.open_listener = ListenByASocket;
      options.transport = transport;
      options.nccl = nccl.ok() ? nccl->get() : nullptr;
      options.make_backend = [stage = 0]() mutable { return OnGpu(stage++); };
      CheckEqual(JoinAndLeave(options), one);
    }
  }
}

TEST_CASE("stages on one GPU give one worker's bits, whatever is in flight and computed again") {
  if (NoDevice()) return;
  const Shape shape = Shapes().back();
  const Outcome one = JoinAndLeave(OfShape(shape));
  for (const int32_t in_flight : {1, 2, 6}) {
    for (const auto recomputation : {v1::FormGroup::PRODUCTS, v1::FormGroup::BLOCKS}) {
      INFO(in_flight << " in flight, computing " << v1::FormGroup::Recomputation_Name(recomputation)
                     << " again");
      Harness::Options options = OfShape(shape);
      options.cuts = {20, 41};
      options.in_flight = in_flight;
      options.open_listener = ListenByASocket;
      options.recomputation = recomputation;
      CheckEqual(JoinAndLeave(options), one);
    }
  }
}

TEST_CASE("a group whose stages are on a GPU is given up and formed again, many times") {
  if (NoDevice()) return;
  const Shape shape = Shapes().front();
  Harness::Options options = OfShape(shape);
  options.cuts = {2, 4};
  options.in_flight = 3;
  options.open_listener = ListenByASocket;
  Harness harness(options);
  for (int epoch = 1; epoch <= 20; ++epoch) {
    harness.Form();
    TestJob job = Jobs()[0];
    harness.Load(job);
    // The window is under way on some stages when the group goes.
    v1::Window window = harness.NewWindow();
    harness.AddSteps({&job}, false, nullptr, &window);
    harness.Submit(window);
    harness.Dissolve(epoch);
    harness.WaitIdle();
    harness.TakeReports();
  }
  harness.Form();
  TestJob job = Jobs()[0];
  harness.Load(job);
  harness.Step({&job}, true);
  CHECK_FALSE(harness.Shard(job).empty());
}

}  // namespace
}  // namespace lorad::worker
