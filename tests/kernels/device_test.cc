// The GPUs of this machine: what is refused, and with which remedy. Where there is none, that
// alone.
#include "kernels/cuda/device/device.h"

#include <catch2/catch.hpp>
#include <string>

#include "kernels/cuda/cuda_backend.h"

namespace lorad::kernels {
namespace {

bool Has(const absl::Status& status, const std::string& part) {
  return std::string(status.message()).find(part) != std::string::npos;
}

bool Skipped() {
  if (CudaDeviceCount() > 0) return false;
  WARN("skipped: no GPU");
  return true;
}

TEST_CASE("An index that does not exist is refused") {
  const int count = CudaDeviceCount();
  for (const int index : {-1, count, count + 63}) {
    const absl::Status probed = ProbeCudaDevice(index).status();
    INFO(probed.ToString());
    CHECK((absl::IsNotFound(probed) || absl::IsUnimplemented(probed)));
    CHECK(!probed.message().empty());
    if (count > 0) CHECK(Has(probed, "this machine has " + std::to_string(count)));
    CHECK(MakeCudaBackend(index).status() == probed);
  }
}

TEST_CASE("The facts of every GPU") {
  if (Skipped()) return;
  for (int index = 0; index < CudaDeviceCount(); ++index) {
    const auto facts = ProbeCudaDevice(index);
    REQUIRE(facts.ok());
    CHECK(facts->index == index);
    CHECK(facts->capability >= 80);
    CHECK(facts->multiprocessors > 0);
    CHECK(facts->memory_bytes > int64_t{1} << 30);
    CHECK((facts->free_bytes > 0 && facts->free_bytes <= facts->memory_bytes + (1 << 30)));
    CHECK(facts->runtime_version >= 13000);
    const std::string line = Describe(*facts);
    INFO(line);
    CHECK(line.find(facts->name) != std::string::npos);
    CHECK(line.find(facts->driver) != std::string::npos);
  }
}

TEST_CASE("Memory that a GPU does not have is refused, and the backend works on") {
  if (Skipped()) return;
  auto backend = MakeCudaBackend(0);
  REQUIRE(backend.ok());
  const absl::Status status = (*backend)->MakeArena(int64_t{1} << 50).status();
  INFO(status.ToString());
  CHECK(absl::IsResourceExhausted(status));
  CHECK(Has(status, "GiB free"));
  CHECK(Has(status, "lower the worker's memory budget"));
  const auto arena = (*backend)->MakeArena(1 << 20);
  REQUIRE(arena.ok());
  (*backend)->Zero((*arena)->Matrix(16, 16));
  (*backend)->Synchronize();
}

}  // namespace
}  // namespace lorad::kernels
