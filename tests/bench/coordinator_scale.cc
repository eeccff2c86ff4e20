// What the coordinator costs as it grows: with many finished jobs, its start, memory, lists and
// reads (through the driver, on the real store); per step, the bytes it writes; over many steps,
// while jobs come and go, the memory of the core. Prints the figures beside their bars; fails where
// an answer is wrong or a count does not hold, and with --bars where a bar is missed.
//
//   bazel run -c opt //tests/bench:coordinator_scale -- --bars [--jobs N] [--steps N]
//                                                       [--memory-steps N] [--memory-guests N]
//                                                       [--directory DIR]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "server/driver/driver.h"
#include "storage/files/files.h"
#include "tests/bench/finished_jobs.h"
#include "tests/bench/one_worker.h"
#include "worker/host/process.h"

namespace lorad::bench {
namespace {

namespace fs = std::filesystem;
using namespace server;  // NOLINT: the coordinator is the server's

constexpr double kMB = 1e6;

struct Options {
  int64_t jobs = 100'000;
  int64_t steps = 2'000;
  int64_t memory_steps = 1'000'000;
  int64_t memory_guests = 400'000;
  std::string directory = "/tmp";
  bool bars = false;
};

class Verdict {
 public:
  explicit Verdict(bool bars) : bars_(bars) {}
  // A figure of this machine.
  void Figure(const std::string& what, double value, double bar, const char* unit) {
    const bool met = value <= bar;
    std::printf("%-56s %10.2f %-3s bar %g%s\n", what.c_str(), value, unit, bar,
                met ? "" : "  MISSED");
    std::fflush(stdout);
    if (bars_ && !met) failed_ = true;
  }
  // What must hold on every machine.
  void Require(bool holds, const std::string& what) {
    if (holds) return;
    std::printf("FAILED: %s\n", what.c_str());
    failed_ = true;
  }
  bool failed() const { return failed_; }

 private:
  const bool bars_;
  bool failed_ = false;
};

double Seconds(const std::function<void()>& what) {
  const auto start = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class NoSolver : public Solver {
 public:
  absl::StatusOr<records::RowsSummary> CheckRows(const RowSource&,
                                                 const std::atomic<bool>&) override {
    return absl::UnimplementedError("no rows here");
  }
  void CloseRows(const std::string&) override {}
  absl::StatusOr<SolvedPlan> Plan(const PlanInput&, const std::function<bool()>&) override {
    return absl::UnimplementedError("no rows here");
  }
};

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// In a process of its own, whose memory does not count.
bool MakeStore(const std::string& directory, int64_t jobs) {
  fs::create_directories(directory);
  const pid_t child = fork();
  if (child == 0) {
    auto store = storage::JobStore::Open(directory);
    bool good = store.ok() && StoreFinishedJobs(**store, jobs, NowUs() - jobs).ok();
    for (const char* dataset : {"gsm8k-train", "gsm8k-test"}) {
      fs::create_directories(directory + "/datasets");
      std::ofstream(absl::StrCat(directory, "/datasets/", dataset, "-1-1.jsonl")) << "{}\n";
    }
    for (int64_t i = 0; good && i < jobs; ++i) {
      good = fs::create_directories(
          absl::StrCat(directory, "/checkpoints/", FinishedJobName(i), "/10"));
    }
    store->reset();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

// ---- lists and reads ----

// All pages of a list; the longest took `ms_max`.
int64_t ListAll(Driver& driver, v1::ListJobsRequest request, double* ms_max) {
  int64_t found = 0;
  request.set_page_size(100);
  do {
    absl::StatusOr<v1::ListJobsResponse> page;
    const double seconds = Seconds([&] { page = driver.Ask<v1::ListJobsResponse>(request); });
    *ms_max = std::max(*ms_max, seconds * 1e3);
    if (!page.ok()) return -1;
    found += page->jobs_size();
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return found;
}

void MeasureLists(Driver& driver, int64_t jobs, Verdict& verdict) {
  const int64_t failed = (jobs + kFailedEvery - 1) / kFailedEvery;
  struct List {
    const char* what;
    const char* filter;
    v1::ListJobsRequest::View view;
    int64_t found;
  };
  std::atomic<bool> done = false;
  std::vector<double> get_ms;
  std::thread reader([&] {
    v1::GetJobRequest get;
    for (int64_t i = 0; !done; i = (i + 7919) % jobs) {
      get.set_name(FinishedJobName(i));
      absl::StatusOr<v1::Job> job;
      get_ms.push_back(1e3 * Seconds([&] { job = driver.Ask<v1::Job>(get); }));
      if (!job.ok() || job->display_name() != absl::StrCat("sweep-", i)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (const List& list : {
           List{"ListJobs, slowest page of 100", "", v1::ListJobsRequest::FULL, jobs},
           List{"  SUMMARY", "", v1::ListJobsRequest::SUMMARY, jobs},
           List{"  state = FAILED", "state = FAILED", v1::ListJobsRequest::FULL, failed},
           List{"  display_name = (one job)", "display_name = sweep-1", v1::ListJobsRequest::FULL,
                1},
           List{"  labels.team = nobody", "labels.team = nobody", v1::ListJobsRequest::FULL, 0},
       }) {
    v1::ListJobsRequest request;
    request.set_filter(list.filter);
    request.set_view(list.view);
    double ms_max = 0;
    const int64_t found = ListAll(driver, request, &ms_max);
    verdict.Require(found == list.found,
                    absl::StrCat(list.what, " finds ", found, " jobs, not ", list.found));
    verdict.Figure(list.what, ms_max, 20, "ms");
  }
  done = true;
  reader.join();
  std::ranges::sort(get_ms);
  verdict.Figure("GetJob meanwhile, p99", get_ms[get_ms.size() * 99 / 100], 20, "ms");
}

void MeasureJobs(const std::string& directory, int64_t jobs, Verdict& verdict) {
  if (!MakeStore(directory, jobs)) return verdict.Require(false, "the store can be made");
  const double before_mb = static_cast<double>(worker::ResidentBytes()) / kMB;
  DriverOptions options;
  options.data_dir = directory;
  absl::StatusOr<std::unique_ptr<Driver>> driver;
  const std::clock_t cpu_before = std::clock();
  const double seconds = Seconds([&] {
    driver = Driver::Start(options, storage::RealFiles(), {}, std::make_unique<NoSolver>());
  });
  if (!driver.ok()) return verdict.Require(false, driver.status().ToString());
  const double cpu_seconds =
      static_cast<double>(std::clock() - cpu_before) / static_cast<double>(CLOCKS_PER_SEC);
  const double after_mb = static_cast<double>(worker::ResidentBytes()) / kMB;
  std::printf("%lld finished jobs; %.0f MB resident before\n", static_cast<long long>(jobs),
              before_mb);
  verdict.Figure("start", seconds, 2, "s");
  std::printf("  of which this process computed %.2f s\n", cpu_seconds);
  verdict.Figure("resident", after_mb, 150, "MB");
  MeasureLists(**driver, jobs, verdict);
  const double read_mb = static_cast<double>(worker::ResidentBytes()) / kMB;
  verdict.Figure("resident after the lists", read_mb, 150, "MB");
}

// ---- steps ----

struct Written {
  int64_t calls_bytes = 0;  // handed to the kernel
  int64_t disk_bytes = 0;   // pages that the kernel is to write; 0 on a file system in memory
};

Written WrittenSoFar() {
  Written written;
  std::ifstream io("/proc/self/io");
  for (std::string name; io >> name;) {
    int64_t value = 0;
    io >> value;
    if (name == "wchar:") written.calls_bytes = value;
    if (name == "write_bytes:") written.disk_bytes = value;
  }
  return written;
}

void MeasureSteps(const std::string& directory, int64_t steps, Verdict& verdict) {
  fs::create_directories(directory);
  auto store = storage::JobStore::Open(directory);
  if (!store.ok()) return verdict.Require(false, store.status().ToString());
  bool durable = true;
  OneWorker house(steps + 1, [&](const std::vector<storage::Mutation>& mutations) {
    durable = durable && (*store)->Apply(mutations).ok();
  });
  const Written before = WrittenSoFar();
  house.RunUntil(steps);
  const Written after = WrittenSoFar();
  verdict.Require(durable, "every turn is durable");
  const auto per_step = [&](int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(steps);
  };
  // A count, not a figure: it does not depend on the machine.
  const double bytes = per_step(after.calls_bytes - before.calls_bytes);
  verdict.Figure("bytes a step, handed to the kernel", bytes, 10'000, "B");
  verdict.Require(bytes < 10'000, "a step writes less than 10 kB");
  verdict.Figure("bytes a step, pages for the disk", per_step(after.disk_bytes - before.disk_bytes),
                 10'000, "B");
}

// Steps of one job; meanwhile others come and go. The core's limits are so low that what it keeps
// is full at the first look: of a million events, as they are.
void MeasureMemory(int64_t steps, int64_t guests, Verdict& verdict) {
  CoreOptions options;
  options.request_ids_max = std::min(options.request_ids_max, guests / 4);
  options.rows_max = std::min(options.rows_max, guests / 40);
  options.request_answers_max = std::min(options.request_answers_max, guests / 40);
  OneWorker house(
      steps + 1, [](const std::vector<storage::Mutation>&) {}, options);
  int64_t come = 0;
  const auto run_until = [&](int64_t step) {
    for (int64_t at = house.step(); at < step; ++at) {
      for (; come * steps < at * guests; ++come) house.ComeAndGo();
      house.RunUntil(at + 1);
    }
    return static_cast<double>(worker::ResidentBytes()) / kMB;
  };
  const double early_mb = run_until(steps * 2 / 5);
  const double late_mb = run_until(steps);
  verdict.Require(house.Job().step() >= steps - 1, "the steps are done");
  std::printf(
      "%lld steps of one job without a checkpoint, %lld jobs of others created, cancelled and "
      "deleted: %lld events, %.1f MB, then %.1f MB resident\n",
      static_cast<long long>(steps), static_cast<long long>(come),
      static_cast<long long>(house.events()), early_mb, late_mb);
  verdict.Figure("growth from two fifths of them on", (late_mb / early_mb - 1) * 100, 5, "%");
}

int Run(const Options& options) {
  std::string directory = options.directory + "/coordinator_scale_XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    std::printf("no directory can be made in %s\n", options.directory.c_str());
    return 1;
  }
  Verdict verdict(options.bars);
  if (options.jobs > 0) MeasureJobs(directory + "/jobs", options.jobs, verdict);
  if (options.steps > 0) MeasureSteps(directory + "/steps", options.steps, verdict);
  if (options.memory_steps > 0) MeasureMemory(options.memory_steps, options.memory_guests, verdict);
  fs::remove_all(directory);
  return verdict.failed() ? 1 : 0;
}

}  // namespace
}  // namespace lorad::bench

int main(int argc, char** argv) {
  lorad::bench::Options options;
  CLI::App app("The coordinator's costs with many jobs and many steps");
  app.add_option("--jobs", options.jobs, "Finished jobs in the store; 0: leave it out");
  app.add_option("--steps", options.steps, "Steps on a store; 0: leave it out");
  app.add_option("--memory-steps", options.memory_steps, "Steps without one; 0: leave it out");
  app.add_option("--memory-guests", options.memory_guests, "Jobs that come and go meanwhile");
  app.add_option("--directory", options.directory, "Where the stores are made");
  app.add_flag("--bars", options.bars, "Fail where a bar is missed");
  CLI11_PARSE(app, argc, argv);
  return lorad::bench::Run(options);
}
