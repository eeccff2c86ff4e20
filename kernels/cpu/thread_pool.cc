#include "kernels/cpu/thread_pool.h"

#include <cassert>

namespace lorad::kernels::cpu {
namespace {

// Operations follow each other within microseconds: look this often before sleeping (some 20 us).
constexpr int kSpins = 2000;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  assert(threads >= 1);
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { Work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::TakeItems(const Job& job, int thread) {
  for (;;) {
    const int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= job.items) return;
    job.call(job.context, item, thread);
  }
}

void ThreadPool::Open() {
  const uint64_t last = state_.load(std::memory_order_relaxed) >> kJobShift;
  state_.store(((last + 1) << kJobShift) | kOpen, std::memory_order_release);
}

void ThreadPool::Execute(const Job& job) {
  if (job.items <= 0) return;
  if (job.items == 1 || workers_.empty()) {
    for (int64_t item = 0; item < job.items; ++item) job.call(job.context, item, 0);
    return;
  }
  job_ = job;
  next_item_.store(0, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    Open();
  }
  wake_.notify_all();
  TakeItems(job, 0);
  // Who has not come yet finds no item: on a busy machine it may wake much later.
  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  // The last items are short: yielding costs less than sleeping, and leaves the core to a worker
  // that shares it.
  for (int spin = 0; (state_.load(std::memory_order_acquire) & kWorkers) != 0; ++spin) {
    if (spin < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::Work(int thread) {
  uint64_t seen = 0;  // the last job of which this thread knows
  const auto job_now = [this] { return state_.load(std::memory_order_acquire) >> kJobShift; };
  for (;;) {
    for (int spin = 0; spin < kSpins && job_now() == seen; ++spin) Pause();
    if (job_now() == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(
          lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || job_now() != seen; });
      if (job_now() == seen) return;  // stopped
    }
    uint64_t state = state_.load(std::memory_order_acquire);
    bool joined = false;
    while (!joined && (state & kOpen) != 0) {
      joined = state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel,
                                            std::memory_order_acquire);
    }
    seen = state >> kJobShift;
    if (!joined) continue;
    TakeItems(job_, thread);
    state_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace lorad::kernels::cpu
