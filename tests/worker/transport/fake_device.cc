#include "tests/worker/transport/fake_device.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/transport/fake_queue.h"

namespace lorad::worker {
namespace {

using Memory = std::vector<char>;

// What is shared, by name.
struct Shares {
  std::mutex mutex;
  int64_t last = 0;
  std::map<std::string, std::weak_ptr<Memory>> memory;
};
Shares& AllShares() {
  static Shares shares;
  return shares;
}

class FakeLane final : public kernels::CopyLane {
 public:
  explicit FakeLane(const FakeDevice& device) : device_(device), thread_([this] { Run(); }) {}
  ~FakeLane() override {
    Wait();
    {
      std::lock_guard lock(mutex_);
      end_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Operations are done when they are called, so there is nothing to wait for, and nothing waits.
  void Remember() override {}
  void Follow() override {}
  void Lead() override {
    if (device_.leads) Wait();
  }

  void Copy(const void* from, void* to, int64_t bytes) override {
    Enqueue([=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  }
  void Wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return copies_.empty(); });
  }

  void* Queue() override { return &queue_; }
  bool Done() override {
    std::lock_guard lock(mutex_);
    return copies_.empty();
  }

 private:
  void Enqueue(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    copies_.push_back(std::move(work));
    changed_.notify_all();
  }

  void Run() {
    std::mt19937_64 random(7);
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return end_ || !copies_.empty(); });
      if (copies_.empty()) return;
      const auto delay =
          static_cast<int64_t>(random() % static_cast<uint64_t>(device_.delay_us_max + 1));
      const std::function<void()> copy = copies_.front();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      copy();
      lock.lock();
      copies_.pop_front();
      changed_.notify_all();
    }
  }

  const FakeDevice device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> copies_;  // the first is under way
  bool end_ = false;
  FakeQueue queue_ = {this, [](void* lane, void (*work)(void*), void* argument) {
                        static_cast<FakeLane*>(lane)->Enqueue([=] { work(argument); });
                      }};
  std::thread thread_;
};

class FakeShared final : public kernels::SharedMemory {
 public:
  explicit FakeShared(int64_t bytes)
      : memory_(std::make_shared<Memory>(static_cast<size_t>(bytes))) {
    std::lock_guard lock(AllShares().mutex);
    name_ = absl::StrCat("share ", ++AllShares().last);
    AllShares().memory[name_] = memory_;
  }
  void* address() const override { return memory_->data(); }
  const std::string& name() const override { return name_; }

 private:
  const std::shared_ptr<Memory> memory_;
  std::string name_;
};

class FakeOpened final : public kernels::OpenedMemory {
 public:
  explicit FakeOpened(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  void* address() const override { return memory_->data(); }
  int64_t bytes() const override { return static_cast<int64_t>(memory_->size()); }

 private:
  const std::shared_ptr<Memory> memory_;
};

class FakeCopies final : public kernels::DeviceCopies {
 public:
  explicit FakeCopies(const FakeDevice& device) : device_(device) {}

  std::unique_ptr<kernels::CopyLane> MakeLane() override {
    return std::make_unique<FakeLane>(device_);
  }
  absl::StatusOr<std::unique_ptr<kernels::Arena>> MakeArena(int64_t bytes) override {
    return MakeHostArena(bytes);
  }
  absl::StatusOr<std::unique_ptr<kernels::Arena>> MakeHostArena(int64_t bytes) override {
    auto memory = std::make_shared<Memory>(static_cast<size_t>(bytes + kernels::kArenaAlignment));
    const auto past = reinterpret_cast<uintptr_t>(memory->data()) % kernels::kArenaAlignment;
    char* base = memory->data() + (kernels::kArenaAlignment - static_cast<int64_t>(past));
    return std::make_unique<kernels::Arena>(kernels::Device::kCpu, base, bytes, [memory] {});
  }
  absl::StatusOr<std::unique_ptr<kernels::SharedMemory>> Share(int64_t bytes) override {
    if (!device_.shares) return absl::FailedPreconditionError("this device shares nothing");
    return std::make_unique<FakeShared>(bytes);
  }
  absl::StatusOr<std::unique_ptr<kernels::OpenedMemory>> Open(std::string_view name) override {
    if (!device_.opens) return absl::FailedPreconditionError("this device opens nothing");
    std::lock_guard lock(AllShares().mutex);
    const auto found = AllShares().memory.find(std::string(name));
    std::shared_ptr<Memory> memory;
    if (found != AllShares().memory.end()) memory = found->second.lock();
    if (memory == nullptr) return absl::FailedPreconditionError("there is no such memory");
    return std::make_unique<FakeOpened>(std::move(memory));
  }

 private:
  const FakeDevice device_;
};

}  // namespace

std::unique_ptr<kernels::DeviceCopies> MakeFakeCopies(const FakeDevice& device) {
  return std::make_unique<FakeCopies>(device);
}

}  // namespace lorad::worker
