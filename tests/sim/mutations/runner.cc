// Runs histories of a site, seed after seed, until one of them fails: with a mutation in the code
// one must (the test passes then), without it (--control) none may.
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cassert>
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "tests/sim/history.h"
#include "third_party/catch_main.h"

namespace lorad::sim {

// The mutated code says that it runs (apply.py).
bool ReachMutation();

namespace {

constexpr int kSecondsOfSeed = 20;  // of the processor; one takes a fraction of a second

// Of the child that runs the histories, for the parent that outlives it.
struct Progress {
  std::atomic<uint64_t> seed = 0;
  std::atomic<uint64_t> reached = 0;  // the first seed that did; 0 = none
};
Progress* progress = nullptr;

uint64_t seeds = 1334;  // 1,000 of them of groups of one worker
uint64_t first = 0;     // one that noticed when it was listed (BUILD.bazel); 0 = none
bool control = false;
const bool added[] = {
    testing::AddFlag(&seeds, "--seeds", "count", "at most"),
    testing::AddFlag(&first, "--first", "seed", "played before 1, 2, 3, ..."),
    testing::AddFlag(&control, "--control", "", "none may fail"),
};

void PlaySeed(uint64_t seed) {
  progress->seed = seed;
  const itimerval limit = {.it_interval = {}, .it_value = {.tv_sec = kSecondsOfSeed, .tv_usec = 0}};
  setitimer(ITIMER_PROF, &limit, nullptr);  // ends us
  Play(DrawHistory(seed));
}

TEST_CASE("histories of a site") {
  if (first != 0) PlaySeed(first);
  for (uint64_t seed = 1; seed <= seeds; ++seed) PlaySeed(seed);
  for (const uint64_t seed : kFailedOnce) PlaySeed(seed);
}

// What noticed, of all that the child has written.
std::string Noticed(const std::string& output, int status) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF) return "it goes on for ever";
  std::istringstream lines(output);
  std::string noticed, line;
  while (std::getline(lines, line)) {
    if (line.find(": Assertion `") != std::string::npos) return line;
    if (!noticed.empty() || !line.ends_with(": FAILED:")) continue;
    noticed = line.substr(0, line.size() - 7);
    if (std::getline(lines, line)) noticed += line;
  }
  return noticed.empty() ? "its end, status " + std::to_string(status) : noticed;
}

int Judge(const std::string& output, int status) {
  std::cout << output;
  const bool failed = status != 0;
  if (progress->reached == 0) {
    std::cout << "mutation: NEVER REACHED by " << progress->seed << " seeds\n";
    return 1;
  }
  std::cout << "mutation: reached first by seed " << progress->reached << ", ";
  if (failed) {
    std::cout << "caught by seed " << progress->seed << ": " << Noticed(output, status) << "\n";
  } else {
    std::cout << (control ? "and rightly not caught" : "NOT CAUGHT") << " by " << seeds
              << " seeds\n";
  }
  return failed == control ? 1 : 0;
}

int RunAndJudge(const std::function<int()>& run) {
  void* shared =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert(shared != MAP_FAILED);
  progress = new (shared) Progress;
  std::FILE* file = std::tmpfile();
  assert(file != nullptr);
  const pid_t child = fork();
  assert(child >= 0);
  if (child == 0) {
    dup2(fileno(file), STDOUT_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    return run();
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::string output;
  std::rewind(file);
  for (int c; (c = std::fgetc(file)) != EOF;) output += static_cast<char>(c);
  std::fclose(file);
  return Judge(output, status);
}

const bool runs = testing::RunTestsBy(RunAndJudge);

}  // namespace

bool ReachMutation() {
  if (progress->reached == 0) progress->reached = progress->seed.load();
  return true;
}

}  // namespace lorad::sim
