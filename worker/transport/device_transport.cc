#include "worker/transport/device_transport.h"

#include <array>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"

namespace lorad::worker {
namespace {

using Time = std::chrono::steady_clock::time_point;
using kernels::TensorView;

// What a receiver calls its memory: the sender needs no name, but a transport's Offer has one.
constexpr char kByNccl[] = "NCCL";

int64_t BytesOf(const TensorView& memory, int64_t rows) {
  return rows * memory.columns * kernels::BytesOf(memory.dtype);
}

// A tensor of the same shape elsewhere on this host.
TensorView At(void* address, const TensorView& shape) {
  TensorView view = shape;
  view.data = address;
  view.device = kernels::Device::kCpu;
  return view;
}

// The end of a lane at which tensors leave.
struct Departure {
  struct Tensor {
    Passage passage;
    TensorView memory;
  };

  Crossing crossing = Crossing::kStaged;
  std::unique_ptr<kernels::Arena> arena;  // staged: of the host
  void* staging = nullptr;
  std::unique_ptr<kernels::OpenedMemory> opened;  // peer: the other side's
  std::string opened_name;
  std::unique_ptr<kernels::CopyLane> copies;  // behind the memory, for it ends first
  std::unique_ptr<NcclEdge> edge;             // NCCL
  std::optional<Tensor> leaving;              // until the transport beneath, or NCCL, has it
  std::thread thread;
};

// The end at which they come.
struct Arrival {
  Crossing crossing = Crossing::kStaged;
  std::unique_ptr<kernels::Arena> arena;          // staged: of the host; NCCL: of the device
  std::unique_ptr<kernels::SharedMemory> shared;  // peer: of the device
  void* landing = nullptr;                        // in the one or the other
  std::unique_ptr<kernels::CopyLane> copies;      // behind the memory, for it ends first
  std::unique_ptr<NcclEdge> edge;                 // NCCL; likewise
  std::optional<TensorView> posted;
  bool to_be_announced = false;  // `posted`, to the transport beneath
  std::optional<Time> fetched;   // NCCL: since when the rows are there, by the thread
  std::thread thread;
};

class DeviceTransport final : public Transport {
 public:
  DeviceTransport(int stage, std::unique_ptr<Transport> below, kernels::DeviceCopies* copies,
                  Crossings crossings)
      : stage_(stage), below_(std::move(below)), copies_(copies) {
    for (const Lane lane : {Lane::kActivations, Lane::kGradients}) {
      const bool forward = lane == Lane::kActivations;
      Departure& departure = Of(departures_, lane);
      departure.crossing = forward ? crossings.behind : crossings.before;
      departure.edge = std::move(Of(crossings.leaving, lane));
      Arrival& arrival = Of(arrivals_, lane);
      arrival.crossing = forward ? crossings.before : crossings.behind;
      arrival.edge = std::move(Of(crossings.coming, lane));
    }
  }

  ~DeviceTransport() override {
    Interrupt(absl::UnavailableError(absl::StrCat("stage ", stage_, " is gone")));
    for (Departure& departure : departures_) {
      if (departure.thread.joinable()) departure.thread.join();
    }
    for (Arrival& arrival : arrivals_) {
      if (arrival.thread.joinable()) arrival.thread.join();
    }
  }

  absl::Status Send(Lane lane, const Passage& passage, const TensorView& memory) override {
    assert(memory.row_stride == memory.columns);
    Departure& departure = Of(departures_, lane);
    absl::Status status = Prepare(lane, memory, &departure);
    if (!status.ok()) return status;
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    departure.copies->Remember();
    if (departure.crossing == Crossing::kStaged) {
      departure.copies->Follow();
      departure.copies->Copy(memory.data, departure.staging, BytesOf(memory, passage.rows));
    }
    departure.leaving = {passage, memory};
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::Status WaitSent(Lane lane) override {
    std::unique_lock lock(mutex_);
    const Departure& departure = Of(departures_, lane);
    const absl::Status status = Wait(lock, [&] { return !departure.leaving.has_value(); });
    if (!status.ok()) return status;
    lock.unlock();
    return below_->WaitSent(lane);
  }

  absl::Status PostReceive(Lane lane, const TensorView& memory) override {
    assert(memory.row_stride == memory.columns);
    Arrival& arrival = Of(arrivals_, lane);
    absl::Status status = Prepare(lane, memory, &arrival);
    if (!status.ok()) return status;
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    arrival.copies->Remember();
    arrival.posted = memory;
    arrival.to_be_announced = true;
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<Landing>> WaitReceived(Lane lane) override {
    Arrival& arrival = Of(arrivals_, lane);
    {
      std::unique_lock lock(mutex_);
      const absl::Status status = Wait(lock, [&] { return !arrival.to_be_announced; });
      if (!status.ok()) return status;
    }
    auto landing = below_->WaitReceived(lane);
    if (!landing.ok() || !landing->has_value()) return landing;
    if (arrival.edge != nullptr) {
      std::unique_lock lock(mutex_);
      const absl::Status status = Wait(lock, [&] { return arrival.fetched.has_value(); });
      if (!status.ok()) return status;
      (*landing)->end = *std::exchange(arrival.fetched, std::nullopt);
    }
    const int64_t rows = (*landing)->passage.rows;
    if (rows > 0) {
      arrival.copies->Follow();
      arrival.copies->Copy(arrival.landing, arrival.posted->data, BytesOf(*arrival.posted, rows));
      arrival.copies->Lead();
    }
    arrival.posted.reset();
    (*landing)->passage.in_place = false;  // it was, beneath
    return landing;
  }

  void GiveUpReceive(Lane lane) override { below_->GiveUpReceive(lane); }

  absl::Status Offer(Lane lane, const TensorView& memory, std::string name) override {
    return below_->Offer(lane, memory, std::move(name));
  }
  absl::StatusOr<std::string> WaitRoom(Lane lane) override { return below_->WaitRoom(lane); }
  absl::StatusOr<Passage> WaitComing(Lane lane) override { return below_->WaitComing(lane); }
  absl::Status broken() override {
    {
      std::lock_guard lock(mutex_);
      if (!broken_.ok()) return broken_;
    }
    return below_->broken();
  }

  absl::Status SendNote(int stage, std::string note) override {
    return below_->SendNote(stage, std::move(note));
  }
  absl::StatusOr<std::string> WaitNote(int stage) override { return below_->WaitNote(stage); }

  void Interrupt(absl::Status why) override {
    Break(why);
    below_->Interrupt(std::move(why));
  }

 private:
  template <class End>
  static End& Of(std::array<End, 2>& ends, Lane lane) {
    return ends[static_cast<size_t>(lane)];
  }

  // The first error, for all calls. From then on nothing is copied: the memory may go.
  void Break(const absl::Status& why) {
    std::lock_guard lock(mutex_);
    if (broken_.ok()) broken_ = why;
    changed_.notify_all();
  }

  // Not for others: for the device, or for what the transport beneath has a limit for.
  template <class Ready>
  absl::Status Wait(std::unique_lock<std::mutex>& lock, Ready ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    changed_.wait(lock,
                  [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !broken_.ok() || ready(); });
    return broken_;
  }

  // ---- before the first tensor ----

  absl::StatusOr<void*> MakeHostMemory(const TensorView& shape,
                                       std::unique_ptr<kernels::Arena>* arena) {
    const int64_t bytes = BytesOf(shape, shape.rows);
    auto made = copies_->MakeHostArena(kernels::ArenaBytes(bytes));
    if (!made.ok()) return made.status();
    *arena = *std::move(made);
    return (*arena)->Allocate(bytes);
  }

  absl::Status Prepare(Lane lane, const TensorView& shape, Departure* departure) {
    if (departure->copies != nullptr) return absl::OkStatus();
    if (departure->crossing == Crossing::kStaged) {
      const auto staging = MakeHostMemory(shape, &departure->arena);
      if (!staging.ok()) return staging.status();
      departure->staging = *staging;
    }
    departure->copies = copies_->MakeLane();
    departure->thread = std::thread([this, lane] { RunDeparture(lane); });
    return absl::OkStatus();
  }

  absl::Status Prepare(Lane lane, const TensorView& shape, Arrival* arrival) {
    if (arrival->copies != nullptr) return absl::OkStatus();
    if (arrival->crossing == Crossing::kStaged) {
      const auto landing = MakeHostMemory(shape, &arrival->arena);
      if (!landing.ok()) return landing.status();
      arrival->landing = *landing;
    } else if (arrival->crossing == Crossing::kNccl) {
      auto made = copies_->MakeArena(kernels::ArenaBytes(BytesOf(shape, shape.rows)));
      if (!made.ok()) return made.status();
      arrival->arena = *std::move(made);
      arrival->landing = arrival->arena->Allocate(BytesOf(shape, shape.rows));
    } else {
      auto shared = copies_->Share(BytesOf(shape, shape.rows));
      if (!shared.ok()) return shared.status();
      arrival->shared = *std::move(shared);
      arrival->landing = arrival->shared->address();
    }
    arrival->copies = copies_->MakeLane();
    arrival->thread = std::thread([this, lane] { RunArrival(lane); });
    return absl::OkStatus();
  }

  // ---- the threads ----

  void RunDeparture(Lane lane) {
    Departure& departure = Of(departures_, lane);
    while (true) {
      Departure::Tensor tensor;
      {
        std::unique_lock lock(mutex_);
        if (!Wait(lock, [&] { return departure.leaving.has_value(); }).ok()) return;
        tensor = *departure.leaving;
      }
      const absl::Status status = Carry(lane, tensor, &departure);
      if (!status.ok()) return Interrupt(status);
      std::lock_guard lock(mutex_);
      departure.leaving.reset();
      changed_.notify_all();
    }
  }

  absl::Status Carry(Lane lane, const Departure::Tensor& tensor, Departure* departure) {
    Passage passage = tensor.passage;
    if (departure->crossing == Crossing::kNccl) return SendByNccl(lane, tensor, departure);
    if (departure->crossing == Crossing::kPeer) {
      const auto took_us = CopyAcross(lane, tensor, departure);
      if (!took_us.ok()) return took_us.status();
      passage.in_place = true;
      passage.took_us = *took_us;
    } else {
      departure->copies->Wait();
    }
    return below_->Send(lane, passage, At(departure->staging, tensor.memory));
  }

  // How many microseconds it took, once the device has come to it.
  absl::StatusOr<int64_t> CopyAcross(Lane lane, const Departure::Tensor& tensor,
                                     Departure* departure) {
    const auto name = below_->WaitRoom(lane);
    if (!name.ok()) return name.status();
    if (departure->opened == nullptr || departure->opened_name != *name) {
      auto opened = copies_->Open(*name);
      if (!opened.ok()) return opened.status();
      departure->opened = *std::move(opened);
      departure->opened_name = *name;
    }
    const int64_t bytes = BytesOf(tensor.memory, tensor.passage.rows);
    // The other side refuses what it has no memory for, as soon as it is told.
    if (bytes > departure->opened->bytes()) return 0;
    departure->copies->Follow();
    departure->copies->Wait();
    const Time begin = std::chrono::steady_clock::now();
    {
      std::lock_guard lock(mutex_);
      if (!broken_.ok()) return broken_;
      departure->copies->Copy(tensor.memory.data, departure->opened->address(), bytes);
    }
    departure->copies->Wait();
    const auto took = std::chrono::steady_clock::now() - begin;
    return std::chrono::duration_cast<std::chrono::microseconds>(took).count();
  }

  // The other side's kernel is launched when the passage comes, so nothing is left to wait for here.
  absl::Status SendByNccl(Lane lane, const Departure::Tensor& tensor, Departure* departure) {
    departure->copies->Follow();
    departure->copies->Wait();
    absl::Status status = below_->WaitRoom(lane).status();
    if (!status.ok()) return status;
    Passage passage = tensor.passage;
    passage.in_place = true;
    status = below_->Send(lane, passage, At(nullptr, tensor.memory));
    if (!status.ok() || passage.rows == 0) return status;
    return departure->edge->Send(tensor.memory.data, BytesOf(tensor.memory, passage.rows),
                                 [this] { return broken(); });
  }

  absl::Status FetchByNccl(Lane lane, const TensorView& shape, Arrival* arrival) {
    const auto passage = below_->WaitComing(lane);
    if (!passage.ok()) return passage.status();
    if (passage->rows > 0) {
      const absl::Status status = arrival->edge->Receive(
          arrival->landing, BytesOf(shape, passage->rows), [this] { return broken(); });
      if (!status.ok()) return status;
    }
    std::lock_guard lock(mutex_);
    arrival->fetched = std::chrono::steady_clock::now();
    changed_.notify_all();
    return absl::OkStatus();
  }

  void RunArrival(Lane lane) {
    Arrival& arrival = Of(arrivals_, lane);
    while (true) {
      TensorView shape;
      {
        std::unique_lock lock(mutex_);
        if (!Wait(lock, [&] { return arrival.to_be_announced; }).ok()) return;
        shape = At(arrival.landing, *arrival.posted);
      }
      arrival.copies->Wait();  // what came before has left the memory
      absl::Status status = Announce(lane, shape, arrival);
      if (!status.ok()) return Interrupt(status);
      {
        std::lock_guard lock(mutex_);
        arrival.to_be_announced = false;
        changed_.notify_all();
      }
      if (arrival.edge == nullptr) continue;
      status = FetchByNccl(lane, shape, &arrival);
      if (!status.ok()) return Interrupt(status);
    }
  }

  absl::Status Announce(Lane lane, const TensorView& shape, const Arrival& arrival) {
    switch (arrival.crossing) {
      case Crossing::kStaged:
        return below_->PostReceive(lane, shape);
      case Crossing::kPeer:
        return below_->Offer(lane, shape, arrival.shared->name());
      case Crossing::kNccl:
        return below_->Offer(lane, shape, kByNccl);
    }
    return absl::InternalError("an unknown crossing");
  }

  const int stage_;
  const std::unique_ptr<Transport> below_;
  kernels::DeviceCopies* const copies_;
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  // By lane. Each belongs to one caller and to its own thread, in turns that leaving and
  // to_be_announced give, which change under the lock.
  std::array<Departure, 2> departures_;
  std::array<Arrival, 2> arrivals_;
};

}  // namespace

std::unique_ptr<Transport> MakeDeviceTransport(int stage, std::unique_ptr<Transport> below,
                                               kernels::DeviceCopies* copies, Crossings crossings) {
  return std::make_unique<DeviceTransport>(stage, std::move(below), copies, std::move(crossings));
}

}  // namespace lorad::worker
