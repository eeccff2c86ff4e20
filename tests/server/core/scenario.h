// What the scenarios share.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/core/rules/job_states.h"
#include "tests/sim/world/world.h"

namespace lorad::server {

using sim::World;
using sim::WorldOptions;
using State = v1::Job::State;

// A world with model "m" (and "m2"), dataset "train" of 12 rows and "valid" of 5; no worker yet.
inline std::unique_ptr<World> MakeWorld(WorldOptions options = {}) {
  auto world = std::make_unique<World>(options);
  world->AddModel("m");
  world->AddModel("m2");
  world->AddDataset("train", 12);
  world->AddDataset("valid", 5);
  return world;
}

inline std::string Reason(const absl::Status& status) {
  const auto payload = status.GetPayload("lorad/reason");
  return payload ? std::string(*payload) : "";
}

template <class Proto>
Proto Named(const std::string& name) {
  Proto request;
  request.set_name(name);
  return request;
}

inline std::vector<State> StatesOf(World& world, const std::string& job) {
  std::vector<State> states;
  for (const v1::Event& event : world.Events(job)) {
    if (event.reason() == "STATE_CHANGED") states.push_back(event.to_state());
  }
  return states;
}

inline int64_t CountEvents(World& world, const std::string& job, const std::string& reason) {
  const auto events = world.Events(job);
  return std::ranges::count(events, reason, [](const v1::Event& event) { return event.reason(); });
}

inline bool HasEvent(World& world, const std::string& job, const std::string& reason) {
  return CountEvents(world, job, reason) > 0;
}

// A process of that name that says nothing more (World::Connect).
inline worker::v1::Hello HelloOf(const std::string& name, int64_t memory_bytes) {
  worker::v1::Hello hello;
  hello.set_protocol_version(1);
  hello.set_worker(name);
  hello.set_device("cpu");
  hello.set_threads(2);
  hello.set_numerics_id("cpu");
  hello.set_memory_bytes(memory_bytes);
  return hello;
}

// Of all starts of the coordinator.
inline int64_t CountNotes(World& world, const std::string& part) {
  return std::ranges::count_if(
      world.notes(), [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

}  // namespace lorad::server
