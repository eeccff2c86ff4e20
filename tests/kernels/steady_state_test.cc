// A job in its steady state makes the device allocate nothing and the host wait for nothing: every
// call of the driver is watched (CUPTI), the libraries' own included.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "tests/kernels/block_model.h"
#include "tests/kernels/cupti.h"

namespace lorad::kernels::testing {
namespace {

// Calls that allocate, free or wait, by name.
class Watch {
 public:
  Watch() {
    if (library_ == nullptr) return;
    const auto subscribe = Find<decltype(&cuptiSubscribe)>("cuptiSubscribe");
    const auto enable = Find<decltype(&cuptiEnableDomain)>("cuptiEnableDomain");
    const CUptiResult subscribed = subscribe(&subscriber_, OnCall, this);
    REQUIRE(subscribed == CUPTI_SUCCESS);
    const CUptiResult enabled = enable(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API);
    REQUIRE(enabled == CUPTI_SUCCESS);
  }
  ~Watch() {
    if (library_ == nullptr) return;
    Find<decltype(&cuptiUnsubscribe)>("cuptiUnsubscribe")(subscriber_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool found() const { return library_ != nullptr; }
  void Count(bool on) { counting_ = on; }
  int calls() const { return calls_; }
  std::string Forbidden() const {
    std::string text;
    for (const auto& [name, count] : forbidden_) text += name + " " + std::to_string(count) + "; ";
    return text;
  }

 private:
  template <typename Function>
  Function Find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

  static bool IsForbidden(const std::string& name) {
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const auto starts = [&](const char* part) { return name.rfind(part, 0) == 0; };
    if (has("Synchronize")) return true;
    if (starts("cuMemcpy") || starts("cuMemset")) return !has("Async");
    return starts("cuMem") && (has("Alloc") || has("Free") || has("Create") || has("Map"));
  }

  static void CUPTIAPI OnCall(void* self, CUpti_CallbackDomain, CUpti_CallbackId,
                              const void* data) {
    Watch& watch = *static_cast<Watch*>(self);
    const auto& call = *static_cast<const CUpti_CallbackData*>(data);
    if (!watch.counting_ || call.callbackSite != CUPTI_API_ENTER) return;
    ++watch.calls_;
    const std::string name = call.functionName;
    if (IsForbidden(name)) ++watch.forbidden_[name];
  }

  void* const library_ = OpenCupti();
  CUpti_SubscriberHandle subscriber_ = {};
  bool counting_ = false;
  int calls_ = 0;
  std::map<std::string, int> forbidden_;
};

TEST_CASE("A job's steady state allocates nothing and waits for nothing") {
  constexpr BlockShape kShape = {.hidden = 256,
                                 .feed_forward = 640,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_size = 64,
                                 .vocabulary = 1001,
                                 .rank = 16};
  // Lengths differ from microbatch to microbatch, and come back.
  const std::vector<Microbatch> microbatches = {
      {{0, 300, 0, false}, {1, 200, 1, false}, {2, 77, -1, false}},
      {{3, 512, 0, false}, {4, 33, 1, false}},
      {{5, 40, 1, false}, {6, 700, 0, false}}};
  for (const BackendCase& backend : Backends()) {
    INFO(backend.name);
    World world(backend, BlockModel::LimitsOf(kShape, 1024, 1024), int64_t{256} << 20);
    BlockModel model(world, kShape, 3, {0, 1});
    Watch watch;
    if (!watch.found()) {
      WARN("skipped: no CUPTI (libcupti.so.13 of the CUDA toolkit)");
      return;
    }
    constexpr int kWarmUp = 3;
    for (int step = 0; step < 13; ++step) {
      for (const Microbatch& microbatch : microbatches) {
        watch.Count(step >= kWarmUp);
        model.Run(microbatch, nullptr);
        watch.Count(false);
        world.backend().Synchronize();  // the engine lets the host run ahead by so much
      }
      watch.Count(step >= kWarmUp);
      model.Step();
      watch.Count(false);
      world.backend().Synchronize();
    }
    CHECK(watch.calls() > 1000);
    CHECK(watch.Forbidden() == "");
  }
}

}  // namespace
}  // namespace lorad::kernels::testing
