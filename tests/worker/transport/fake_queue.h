// What a lane of the fake device is to a library that enqueues work on it (CopyLane::Queue).
#pragma once

namespace lorad::worker {

struct FakeQueue {
  void* lane = nullptr;
  // work(argument) runs on the lane's thread, behind what is enqueued there.
  void (*enqueue)(void* lane, void (*work)(void*), void* argument) = nullptr;
};

}  // namespace lorad::worker
