// Copies beside a GPU's operations keep the order that they are told, and memory is shared with
// other processes, which may outlive it. Skips where there is no GPU.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"

namespace lorad::kernels {
namespace {

constexpr int64_t kRows = 2048;
constexpr int64_t kColumns = 4096;
constexpr int64_t kValues = kRows * kColumns;
constexpr int64_t kRowBytes = kColumns * static_cast<int64_t>(sizeof(float));
constexpr int64_t kBytes = kRows * kRowBytes;
constexpr char kFolderVariable[] = "COPIES_TEST_FOLDER";

bool NoDevice() {
  const auto facts = ProbeCudaDevice(0);
  if (facts.ok()) return false;
  WARN("skipped: " << std::string(facts.status().message()));
  return true;
}

// A GPU with two tensors.
struct Rig {
  explicit Rig(int64_t rows = kRows)
      : backend(*MakeCudaBackend(0)),
        copies(backend->MakeCopies()),
        arena(*backend->MakeArena(2 * rows * kRowBytes)),
        a(arena->Matrix(rows, kColumns)),
        b(arena->Matrix(rows, kColumns)) {}

  std::vector<float> Read(const TensorView& view) {
    std::vector<float> values(static_cast<size_t>(view.rows * kColumns));
    backend->CopyToHost(view, values.data());
    return values;
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<DeviceCopies> copies;
  std::unique_ptr<Arena> arena;
  TensorView a, b;
};

std::vector<float> Numbers(float first, int64_t rows = kRows) {
  std::vector<float> values(static_cast<size_t>(rows * kColumns));
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST_CASE("copies follow the operations before them, and lead those behind them") {
  if (NoDevice()) return;
  Rig rig;
  auto host = rig.copies->MakeHostArena(kBytes);
  REQUIRE(host.ok());
  float* values = (*host)->Allocate<float>(kValues);
  const auto lane = rig.copies->MakeLane();
  const std::vector<float> first = Numbers(1);
  rig.backend->CopyToDevice(first.data(), rig.a);
  // Milliseconds in which a copy that follows nothing would see zeros.
  for (int i = 0; i < 500; ++i) rig.backend->Zero(rig.b);
  rig.backend->Cast(rig.a, rig.b);
  lane->Remember();
  rig.backend->Zero(rig.a);  // behind the moment: what is copied is not its business
  lane->Follow();
  lane->Copy(rig.b.data, values, kBytes);
  lane->Wait();
  CHECK(std::equal(first.begin(), first.end(), values));

  const std::vector<float> second = Numbers(7);
  std::copy(second.begin(), second.end(), values);
  lane->Copy(values, rig.a.data, kBytes);  // a millisecond of the bus
  lane->Lead();
  rig.backend->Cast(rig.a, rig.b);
  CHECK((rig.Read(rig.b) == second));
}

TEST_CASE("memory that is shared is opened in its own process too, and outlives its owner there") {
  if (NoDevice()) return;
  Rig rig;
  auto shared = rig.copies->Share(kBytes);
  REQUIRE(shared.ok());
  const std::string name = (*shared)->name();
  auto opened = rig.copies->Open(name);
  REQUIRE(opened.ok());
  CHECK((*opened)->bytes() == kBytes);
  CHECK((*opened)->address() == (*shared)->address());
  shared->reset();
  const auto lane = rig.copies->MakeLane();
  lane->Copy(rig.a.data, (*opened)->address(), kBytes);
  lane->Wait();
  CHECK(absl::IsFailedPrecondition(rig.copies->Open(name).status()));
  CHECK(absl::IsFailedPrecondition(rig.copies->Open("no name").status()));
}

// ---- two processes ----

void Write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path.string() + ".part", std::ios::binary) << bytes;
  std::filesystem::rename(path.string() + ".part", path);
}

std::string Await(const std::filesystem::path& path) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!std::filesystem::exists(path)) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("no " + path.string());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What the other process does: writes what it was told of twice, once before and once after its
// owner has let go of it.
TEST_CASE("the other process", "[.][other-process]") {
  const std::filesystem::path folder = std::getenv(kFolderVariable);
  const std::string name = Await(folder / "name");
  const int64_t rows = std::stoll(Await(folder / "rows"));
  Rig rig(rows);
  const auto opened = rig.copies->Open(name);
  if (!opened.ok()) Write(folder / "written", std::string(opened.status().message()));
  REQUIRE(opened.ok());
  const auto lane = rig.copies->MakeLane();
  const auto write = [&](float first, const char* done) {
    rig.backend->CopyToDevice(Numbers(first, rows).data(), rig.a);
    lane->Remember();
    lane->Follow();
    lane->Copy(rig.a.data, (*opened)->address(), rows * kRowBytes);
    lane->Wait();
    Write(folder / done, "");
  };
  write(3, "written");
  Await(folder / "freed");
  write(9, "written again");
}

TEST_CASE("another process writes into shared memory, and into nobody's once that is freed") {
  if (NoDevice()) return;
  // Of more than a block of the driver's, and of so little that several allocations share one.
  const int64_t rows = GENERATE(as<int64_t>(), kRows, 4);
  const auto folder =
      std::filesystem::temp_directory_path() / ("copies_test_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  setenv(kFolderVariable, folder.c_str(), 1);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  auto other = std::async(std::launch::async, [&] {
    return std::system(
        ("'" + program + "' '[other-process]' >'" + folder.string() + "/log' 2>&1").c_str());
  });
  {
    Rig rig(rows);
    auto shared = rig.copies->Share(rows * kRowBytes);
    REQUIRE(shared.ok());
    Write(folder / "rows", std::to_string(rows));
    Write(folder / "name", (*shared)->name());
    const std::string problem = Await(folder / "written");
    INFO(problem);
    REQUIRE(problem.empty());
    const auto lane = rig.copies->MakeLane();
    lane->Copy((*shared)->address(), rig.a.data, rows * kRowBytes);
    lane->Lead();
    CHECK((rig.Read(rig.a) == Numbers(3, rows)));

    shared->reset();
    // Who gets memory now does not get what the other process still has open.
    std::vector<std::unique_ptr<Arena>> arenas;
    std::vector<TensorView> views;
    for (int i = 0; i < (rows == kRows ? 8 : 100); ++i) {
      arenas.push_back(*rig.backend->MakeArena(rows * kRowBytes));
      views.push_back(arenas.back()->Matrix(rows, kColumns));
    }
    Write(folder / "freed", "");
    Await(folder / "written again");
    const std::vector<float> zeros(static_cast<size_t>(rows * kColumns));
    for (const TensorView& view : views) CHECK((rig.Read(view) == zeros));
  }
  CHECK(other.get() == 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lorad::kernels
