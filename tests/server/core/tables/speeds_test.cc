// How slow workers are beside others of their kind, and what the kind's times learn of them.
#include <catch2/catch.hpp>
#include <random>

#include "server/core/cluster/cluster.h"

namespace lorad::server {
namespace {

constexpr int64_t kTokens = 1000;
constexpr double kMs = 300;  // of a microbatch of so many, as the kind takes
constexpr int kKnown = 24;   // microbatches after which a worker's speed is known
constexpr int64_t kTickMs = 30'000 / 8;

struct House {
  CoreOptions options;
  Turn turn;
  Cluster cluster{options, turn};
  std::mt19937 random{1};
  uint64_t connection = 0;

  House() { turn.Start({1'000'000, 1'000'000}, 0); }

  WorkerState& Connect(const std::string& name, int64_t pid = 1) {
    worker::v1::Hello hello;
    hello.set_worker(name);
    hello.set_device_name("a kind");
    hello.set_pid(pid);
    cluster.Connect(++connection, hello);
    return cluster.At(name);
  }

  void Pass(int64_t ms) {
    turn.Begin({turn.now_us() + ms * 1000, 0});
    turn.End();
  }

  // Microbatches of 500 to 1500 tokens, of which a third is forward.
  void Train(WorkerState& worker, int microbatches, double factor, const std::string& base = "m") {
    for (int i = 0; i < microbatches; ++i) {
      const int64_t tokens = kTokens / 2 + static_cast<int64_t>(random() % kTokens);
      Take(worker, tokens, factor * (100 + 0.2 * static_cast<double>(tokens)), base);
    }
  }
  void Take(WorkerState& worker, int64_t tokens, double ms, const std::string& base = "m") {
    cluster.Observe(base, {}, worker, 2000,
                    {.work = {static_cast<double>(tokens), static_cast<double>(tokens) * 100},
                     .forward_ms = ms / 3,
                     .backward_ms = 2 * ms / 3});
  }
  // Side by side, and a tick after each round.
  void TrainBoth(WorkerState& a, WorkerState& b, int microbatches, double of_a, double of_b) {
    for (int i = 0; i < microbatches; ++i) {
      Train(a, 1, of_a);
      Train(b, 1, of_b);
      Pass(300);
      cluster.CompareSpeeds();
    }
  }

  double KindMs(const std::string& base = "m") {
    const WorkerState& worker = cluster.all().begin()->second;
    return cluster.fits().TimesOf(base, {}, &worker, 2000).TrainMs({kTokens, kTokens * 100}, 1);
  }
};

TEST_CASE("one of two that becomes slow is found after some microbatches, and when it recovers") {
  House house;
  WorkerState& a = house.Connect("a");
  WorkerState& b = house.Connect("b");
  house.TrainBoth(a, b, 200, 1, 1);
  CHECK(a.slowness == 1);
  CHECK(b.slowness == 1);
  house.TrainBoth(a, b, 32, 1, 3);
  CHECK(a.slowness == 1);
  CHECK(b.slowness == Approx(3).epsilon(0.03));
  CHECK(house.KindMs() == Approx(kMs).epsilon(0.15));  // what came before it was found is in it
  house.TrainBoth(a, b, 2000, 1, 3);
  CHECK(b.slowness == Approx(3).epsilon(0.03));
  CHECK(house.KindMs() == Approx(kMs).epsilon(0.01));
  house.TrainBoth(a, b, 32, 1, 1);
  CHECK(a.slowness == 1);
  CHECK(b.slowness == 1);
}

TEST_CASE("one that is slow from the start is found, and the kind's times are the other's") {
  House house;
  WorkerState& a = house.Connect("a");
  WorkerState& b = house.Connect("b");
  house.TrainBoth(a, b, kKnown, 1, 3);
  CHECK(a.slowness == 1);
  CHECK(b.slowness == Approx(3).epsilon(0.03));
  house.TrainBoth(a, b, 2000, 1, 3);
  CHECK(b.slowness == Approx(3).epsilon(0.03));
  CHECK(house.KindMs() == Approx(kMs).epsilon(0.01));
}

TEST_CASE("one that stands still for a part of each second is as slow as it is in the mean") {
  House house;
  WorkerState& a = house.Connect("a");
  WorkerState& b = house.Connect("b");
  for (int i = 0; i < 200; ++i) {
    house.Take(a, kTokens, 100);
    house.Take(b, kTokens, i % 3 == 0 ? 700 : 100);
    house.Pass(100);
    house.cluster.CompareSpeeds();
  }
  CHECK(a.slowness == 1);
  CHECK(b.slowness == Approx(3).epsilon(0.1));
}

TEST_CASE("what happens once, or is little, makes nobody slow") {
  House house;
  WorkerState& a = house.Connect("a");
  WorkerState& b = house.Connect("b");
  const auto both = [&](int microbatches, double of_b) {
    for (int i = 0; i < microbatches; ++i) {
      house.TrainBoth(a, b, 1, 1, of_b);
      REQUIRE(a.slowness == 1);
      REQUIRE(b.slowness == 1);
    }
  };
  SECTION("it is cold") {
    house.Take(b, kTokens, 60 * kMs);
    both(100, 1);
  }
  SECTION("it stops for some seconds") {
    both(100, 1);
    house.Take(b, kTokens, 20'000);
    both(100, 1);
  }
  SECTION("its clock jumps") {
    both(100, 1);
    house.Take(b, kTokens, 1e9);
    both(100, 1);
  }
  SECTION("it is a little slower, or faster") {
    both(200, 1.2);
    both(200, 0.84);
  }
}

TEST_CASE("what nobody can believe is a hundred times as slow") {
  House house;
  WorkerState& a = house.Connect("a");
  WorkerState& b = house.Connect("b");
  house.TrainBoth(a, b, kKnown, 1, 1e9);
  CHECK(a.slowness == 1);
  CHECK(b.slowness == Cluster::kSlownessMax);
}

TEST_CASE("many of a kind are slow beside the fastest quarter, and noise makes none of them slow") {
  House house;
  std::vector<WorkerState*> workers;
  for (int i = 0; i < 16; ++i) workers.push_back(&house.Connect("w" + std::to_string(i)));
  const auto train = [&](int rounds, double last) {
    for (int i = 0; i < rounds; ++i) {
      for (WorkerState* worker : workers) {
        const double factor = worker == workers.back() ? last : 1;
        house.Train(*worker, 1, factor * (0.7 + static_cast<double>(house.random() % 600) / 1000));
      }
      house.cluster.CompareSpeeds();
      for (WorkerState* worker : workers) {
        if (worker != workers.back()) REQUIRE(worker->slowness == 1);
      }
    }
  };
  train(100, 1);
  CHECK(workers.back()->slowness == 1);
  train(40, 2);
  CHECK(workers.back()->slowness == Approx(2).epsilon(0.15));
  train(100, 0.4);
  CHECK(workers.back()->slowness == Approx(0.4).epsilon(0.15));
}

TEST_CASE("who is alone of its kind is never slow: the kind's times are its own") {
  House house;
  WorkerState& a = house.Connect("a");
  house.Train(a, 200, 1);
  for (int i = 0; i < 4000; ++i) {
    house.Train(a, 1, 3);
    house.cluster.CompareSpeeds();
    REQUIRE(a.slowness == 1);
  }
  CHECK(house.KindMs() == Approx(3 * kMs).epsilon(0.01));
  SECTION("and becomes so once the other has gone") {
    WorkerState& b = house.Connect("b");
    house.TrainBoth(a, b, 100, 3, 1);
    CHECK(a.slowness == Approx(3).epsilon(0.03));
    house.cluster.Lose(b);
    house.cluster.CompareSpeeds();
    CHECK(a.slowness == 1);
  }
  SECTION("and others of another kind say nothing of it") {
    WorkerState& b = house.Connect("b");
    b.hello.set_device_name("another kind");
    house.TrainBoth(a, b, 100, 3, 1);
    CHECK(a.slowness == 1);
  }
}

TEST_CASE("one that is slow counts as recovered where nothing was measured for long") {
  House house;
  WorkerState& a = house.Connect("a");
  WorkerState& b = house.Connect("b");
  house.TrainBoth(a, b, 100, 1, 3);
  const auto idle = [&](int64_t ms) {
    for (int64_t passed = 0; passed < ms; passed += kTickMs) {
      house.Train(a, 10, 1);
      house.Pass(kTickMs);
      house.cluster.CompareSpeeds();
    }
  };
  idle(Cluster::kSlowForUs / 1000 - 2 * kTickMs);
  CHECK(b.slowness == Approx(3).epsilon(0.03));
  idle(4 * kTickMs);
  CHECK(b.slowness == 1);
  house.TrainBoth(a, b, kKnown, 1, 3);
  CHECK(b.slowness == Approx(3).epsilon(0.03));
}

TEST_CASE("beside one that is idle a slow one stays as slow for a while, and so the kind's times") {
  House house;
  WorkerState& a = house.Connect("a");
  WorkerState& b = house.Connect("b");
  house.TrainBoth(a, b, 2000, 1, 3);
  const auto alone = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      house.Train(b, 1, 3);
      house.Pass(1000);
      house.cluster.CompareSpeeds();
    }
  };
  alone(890);
  CHECK(a.slowness == 1);
  CHECK(b.slowness == Approx(3).epsilon(0.03));
  CHECK(house.KindMs() == Approx(kMs).epsilon(0.03));
  alone(4000);
  CHECK(b.slowness == 1);
  CHECK(house.KindMs() == Approx(3 * kMs).epsilon(0.03));
}

TEST_CASE("who trains while others do not is not compared with how they were") {
  House house;
  WorkerState& a = house.Connect("a");
  WorkerState& b = house.Connect("b");
  house.TrainBoth(a, b, 200, 2, 2);  // they share a host
  for (int i = 0; i < 200; ++i) {
    house.Train(a, 1, 1);
    house.Pass(300);
    house.cluster.CompareSpeeds();
    REQUIRE(a.slowness == 1);
    REQUIRE(b.slowness == 1);
  }
}

TEST_CASE("where it alone trains a base model a worker stays as slow as it was, for a while") {
  House house;
  WorkerState& a = house.Connect("a");
  WorkerState& b = house.Connect("b");
  house.TrainBoth(a, b, 100, 1, 3);
  for (int i = 0; i < 1000; ++i) {
    house.Train(a, 1, 1);
    house.Train(b, 1, 3, "n");
    house.cluster.CompareSpeeds();
  }
  CHECK(b.slowness == Approx(3).epsilon(0.03));
  CHECK(house.KindMs("n") == Approx(kMs).epsilon(0.03));
  house.Pass(Cluster::kSlowForUs / 1000 + 1);
  house.Train(b, 1, 3, "n");
  house.cluster.CompareSpeeds();
  CHECK(b.slowness == 1);
}

TEST_CASE("a worker that comes again is as slow as it was, another process of its name is not") {
  House house;
  WorkerState& a = house.Connect("a");
  WorkerState& b = house.Connect("b");
  house.TrainBoth(a, b, 100, 1, 3);
  house.cluster.Lose(b);
  house.Connect("b");
  CHECK(b.slowness > 2);
  house.TrainBoth(a, b, 1, 1, 3);
  CHECK(b.slowness > 2);
  house.cluster.Lose(b);
  house.Connect("b", 2);
  CHECK(b.slowness == 1);
  house.TrainBoth(a, b, kKnown / 2, 1, 3);
  CHECK(b.slowness == 1);
  house.TrainBoth(a, b, kKnown / 2, 1, 3);
  CHECK(b.slowness > 2);
}

}  // namespace
}  // namespace lorad::server
