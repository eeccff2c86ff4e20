// The CPU backend's own parts: arena, thread pool, concurrent products, microbatch tables.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/handles.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/pages.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/workspace.h"

namespace lorad::kernels::cpu {
namespace {

TEST_CASE("An arena hands out what its counting pass counted") {
  const auto plan = [](Arena& arena) {
    arena.Allocate(1);
    const int64_t mark = arena.used();
    arena.Matrix(3, 5);
    arena.Allocate<int64_t>(1000);
    arena.Rewind(mark);
    arena.Matrix(7, 7, DType::kBfloat16);
    arena.Allocate(0);
  };
  Arena counting(Device::kCpu);
  plan(counting);
  CHECK(counting.bytes_max() == 64 + 64 + 8000);
  CHECK(counting.used() == 64 + 128);
  CHECK(counting.Matrix(2, 2).empty());
  auto arena = MakePagedArena(counting.bytes_max());
  REQUIRE(arena.ok());
  plan(**arena);
  CHECK((*arena)->bytes_max() == 64 + 64 + 8000);
  const TensorView view = (*arena)->Matrix(2, 3);
  CHECK(reinterpret_cast<uintptr_t>(view.data) % kArenaAlignment == 0);
  view.row(1)[2] = 4;
  CHECK(view.Rows(1, 1).Columns(2, 1).f32()[0] == 4);
}

TEST_CASE("An arena that cannot be had is an error") {
  const auto arena = MakePagedArena(int64_t{1} << 60);
  REQUIRE_FALSE(arena.ok());
  CHECK(std::string(arena.status().message()).find("memory") != std::string::npos);
}

TEST_CASE("The pool runs every item once, whatever the threads") {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (int round = 0; round < 500; ++round) {
      const int64_t items = round % 40;
      std::vector<std::atomic<int>> runs(static_cast<size_t>(items));
      pool.Run(items, [&](int64_t item, int thread) {
        runs[static_cast<size_t>(item)].fetch_add(thread >= 0 && thread < threads ? 1 : 1000);
      });
      for (const auto& count : runs) REQUIRE(count.load() == 1);
    }
  }
}

TEST_CASE("Products called at once by many threads do not disturb each other") {
  // A library without locks fails here within a few hundred calls.
  constexpr int64_t kShapes[][3] = {{64, 96, 64}, {40, 30, 300}, {200, 96, 100}, {17, 200, 33}};
  std::vector<float> a(200 * 300);
  std::vector<float> b(200 * 300);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i % 101) * 0.01f;
    b[i] = static_cast<float>(i % 97) * 0.01f - 0.3f;
  }
  const auto product = [&](int shape) {
    const auto& [m, n, k] = kShapes[shape];
    std::vector<float> c(static_cast<size_t>(m * n));
    MultiplyNT(m, n, k, 1, a.data(), k, b.data(), k, 0, c.data(), n);
    return c;
  };
  std::vector<std::vector<float>> want;
  for (int shape = 0; shape < 4; ++shape) want.push_back(product(shape));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int call = 0; call < 3000; ++call) {
        const int shape = (call + thread) % 4;
        if (product(shape) != want[static_cast<size_t>(shape)]) wrong.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong.load() == 0);
}

TEST_CASE("A microbatch is cut into chunks from each sequence's first token") {
  const std::vector<int32_t> ids(600 + 256 + 3, 0);
  const std::vector<Segment> segments = {{.first_row = 0, .rows = 600},
                                         {.first_row = 600, .rows = 256, .mode = Mode::kEvaluate},
                                         {.first_row = 856, .rows = 3, .first_position = 512}};
  const std::vector<LossRow> loss_rows = {{0, 1}, {255, 1}, {256, 1}, {700, 1}, {858, 1}};
  const CpuBatch batch({ids, segments, loss_rows});
  struct Want {
    int64_t segment, first_row, rows;
  };
  const Want chunks[] = {{0, 0, 256}, {0, 256, 256}, {0, 512, 88}, {1, 600, 256}, {2, 856, 3}};
  REQUIRE(batch.chunks.size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    CHECK(batch.chunks[i].segment == chunks[i].segment);
    CHECK(batch.chunks[i].first_row == chunks[i].first_row);
    CHECK(batch.chunks[i].rows == chunks[i].rows);
  }
  REQUIRE(batch.loss_chunks.size() == 4);
  CHECK(batch.loss_chunks[0].count == 2);
  CHECK(batch.loss_chunks[1].first == 2);
  CHECK_FALSE(batch.loss_chunks[2].train);
  CHECK(batch.loss_chunks[3].first == 4);
  CHECK(batch.positions[599] == 599);
  CHECK(batch.positions[600] == 0);
  CHECK(batch.positions[858] == 514);
}

TEST_CASE("Column tiles are a function of the width, equal but for the last, multiples of 16") {
  struct Case {
    int64_t columns, width, tiles;
  };
  for (const Case& c : {Case{1, 16, 1},
                        {576, 576, 1},
                        {768, 768, 1},
                        {769, 400, 2},
                        {960, 480, 2},
                        {1536, 768, 2},
                        {3072, 768, 4},
                        {14336, 768, 19}}) {
    INFO(c.columns);
    CHECK(TileWidth(c.columns) == c.width);
    CHECK(Tiles(c.columns) == c.tiles);
  }
}

TEST_CASE("The numerics id names device, library, kernels and revision") {
  const std::string id = MakeCpuBackend(1)->NumericsId();
  INFO(id);
  CHECK(id.rfind("cpu/oneDNN ", 0) == 0);
  CHECK(std::count(id.begin(), id.end(), '/') == 3);
  CHECK(id == MakeCpuBackend(2)->NumericsId());
}

}  // namespace
}  // namespace lorad::kernels::cpu
