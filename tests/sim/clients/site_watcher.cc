#include "tests/sim/clients/site_watcher.h"

#include <catch2/catch.hpp>
#include <limits>

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: what a watcher asks for

constexpr int64_t kPageJobs = 2;
constexpr int64_t kReadAtOnce = 3;
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

}  // namespace

Watcher::Watcher(Site& site, std::set<std::string> names, int64_t pause_us)
    : site_(site), names_(std::move(names)), pause_us_(pause_us), deaths_(site.deaths()) {}

bool Watcher::settled() const {
  return gone_ || (phase_ == Phase::kFollow && deaths_ == site_.deaths());
}

// It knows what it was sent, no more.
void Watcher::Cut() {
  connection_++;
  asks_ = false;
  phase_ = last_ == 0 ? Phase::kSnapshot : Phase::kResume;
  at_ = last_;
}

void Watcher::Look() {
  if (gone_) return;
  if (std::exchange(deaths_, site_.deaths()) != site_.deaths()) Cut();
  if (site_.serves() && !asks_) {
    if (phase_ == Phase::kSnapshot) {
      AskForPage(at_, kPageJobs);
    } else if (phase_ == Phase::kFollow) {
      Follow(kReadAtOnce);
    } else if (names_.empty()) {
      BeginToFollow(last_);
    } else {
      AskForPage(kAll, 1);  // whether the names are known
    }
  }
  site_.At(site_.now_us() + pause_us_, [this] { Look(); });
}

void Watcher::AskForPage(int64_t after, int64_t limit) {
  asks_ = true;
  site_.Ask(SnapshotJobs{{names_.begin(), names_.end()}, after, limit},
            [this, connection = connection_](const absl::StatusOr<ReplyValue>& reply) {
              if (connection != connection_) return;
              asks_ = false;
              if (absl::IsNotFound(reply.status())) gone_ = true;
              if (reply.ok()) TakePage(std::get<JobSnapshot>(*reply));
            });
}

void Watcher::TakePage(const JobSnapshot& page) {
  if (phase_ == Phase::kResume) return BeginToFollow(last_);
  for (const v1::Job& job : page.jobs) {
    See(job.revision());
    at_ = job.revision();
  }
  if (static_cast<int64_t>(page.jobs.size()) < kPageJobs) BeginToFollow(page.revision);
}

void Watcher::BeginToFollow(int64_t after) {
  phase_ = Phase::kFollow;
  at_ = after;
  if (seen_.empty()) followed_from_ = after;
}

// What it has missed is not kept any more, and it was told so.
void Watcher::BeginAnew() {
  phase_ = Phase::kSnapshot;
  at_ = last_ = 0;
  seen_.clear();
  followed_from_.reset();
}

int64_t Watcher::Follow(int64_t limit) {
  const auto read = site_.revisions().Read(at_, limit);
  if (absl::IsOutOfRange(read.status()) && site_.MayBeGone(at_)) {
    BeginAnew();
    return 0;
  }
  INFO("watched up to " << at_ << ": " << read.status());
  REQUIRE(read.ok());
  for (const auto& revision : *read) {
    at_ = revision->revision;
    if (!names_.empty() && !names_.contains(revision->job)) continue;
    See(revision->revision);
    seen_.push_back(revision->revision);
  }
  return static_cast<int64_t>(read->size());
}

void Watcher::See(int64_t revision) {
  REQUIRE(revision > last_);
  last_ = revision;
}

void Watcher::Check() {
  REQUIRE(settled());
  while (!gone_ && Follow(kAll) > 0) {
  }
  if (!followed_from_) return;  // its jobs went before it had seen them, or what followed did
  std::vector<int64_t> told;
  for (const auto& [revision, job] : site_.told()) {
    const bool wanted = names_.empty() || names_.contains(job);
    if (wanted && revision > *followed_from_ && revision <= at_) told.push_back(revision);
  }
  REQUIRE(seen_ == told);
}

}  // namespace lorad::sim
