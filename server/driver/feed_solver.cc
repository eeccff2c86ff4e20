#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "server/driver/solver.h"
#include "server/feed/feed.h"
#include "spdlog/spdlog.h"

namespace lorad::server {
namespace {

class FeedSolver : public Solver {
 public:
  FeedSolver(const feed::FeedOptions& options, storage::Files& files, Clock& clock)
      : feed_(options, files, [&clock] { return clock.Now().steady_us; }) {}

  absl::StatusOr<records::RowsSummary> CheckRows(const RowSource& source,
                                                 const std::atomic<bool>& cancelled) override {
    return feed_.CheckRows(source, &cancelled);
  }

  void CloseRows(const std::string& dataset_path) override { feed_.Close(dataset_path); }

  absl::StatusOr<SolvedPlan> Plan(const PlanInput& input,
                                  const std::function<bool()>& hurry) override {
    absl::StatusOr<feed::FeedWindow> planned = feed_.Plan(input, hurry);
    if (!planned.ok()) return planned.status();
    const planner::WindowStatistics& found = planned->statistics;
    PackingReport report{found.microbatches, found.bound_microbatches, {}};
    for (const planner::PackResult& packed : planned->packings) {
      report.paths.push_back(planner::Name(packed.path));
    }
    spdlog::debug(
        "epoch {}, window {}: {} microbatches (no packing has fewer than {}), {} tokens, {:.2f} "
        "adapters a microbatch, {:.0f} % full ({})",
        input.epoch, input.window, found.microbatches, found.bound_microbatches, found.tokens,
        found.adapters_per_microbatch, 100 * found.fill, absl::StrJoin(report.paths, ", "));
    return SolvedPlan{std::move(planned->window), std::move(report), std::move(planned->failures),
                      std::move(planned->lines)};
  }

 private:
  feed::Feed feed_;
};

// A quarter of what the process may have open; connections take half of it.
int64_t OpenFilesMax() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return std::clamp<int64_t>(static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20)) / 4,
                             16, feed::FeedOptions().open_files_max);
}

}  // namespace

std::unique_ptr<Solver> MakeFeedSolver(const std::string& data_dir, storage::Files& files,
                                       Clock& clock) {
  feed::FeedOptions options;
  options.data_dir = data_dir;
  options.cache_dir = data_dir + "/cache";
  options.open_files_max = OpenFilesMax();
  return std::make_unique<FeedSolver>(options, files, clock);
}

}  // namespace lorad::server
