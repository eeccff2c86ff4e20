#include "tests/sim/clients/site_watcher.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <utility>

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: what a watcher asks for

constexpr int64_t kPageJobs = 2;
constexpr int64_t kReadAtOnce = 3;
constexpr int64_t kAll = 1 << 20;

}  // namespace

Watcher::Watcher(Site& site, std::set<std::string> names, int64_t pause_us)
    : site_(site),
      names_(std::move(names)),
      pause_us_(pause_us),
      bookmarks_(pause_us % 2 == 0),
      deaths_(site.deaths()) {}

bool Watcher::settled() const {
  return gone_ || (phase_ == Phase::kFollow && deaths_ == site_.deaths());
}

// It knows what it was told, no more.
void Watcher::Cut(int64_t away_us) {
  away_until_us_ = std::max(away_until_us_, site_.now_us() + away_us);
  connection_++;
  asks_ = false;
  changed_.reset();  // nothing is said of what it resumes behind
  if (bookmarks_ && phase_ == Phase::kFollow) last_ = at_;
  last_ > 0 ? BeginToFollow(last_) : BeginAnew();
}

void Watcher::Look() {
  if (gone_) return;
  if (std::exchange(deaths_, site_.deaths()) != site_.deaths()) Cut();
  if (site_.serves() && !asks_ && site_.now_us() >= away_until_us_) {
    const std::string& store = site_.revisions().store();
    REQUIRE((store_.empty() || store == store_));
    store_ = store;
    phase_ == Phase::kFollow ? void(Follow(kReadAtOnce)) : AskForPage();
  }
  site_.At(site_.now_us() + pause_us_, [this] { Look(); });
}

void Watcher::AskForPage() {
  if (at_ == 0) present_ = site_.revisions().newest();
  asks_ = true;
  site_.Ask(SnapshotJobs{{names_.begin(), names_.end()}, at_, kPageJobs, present_},
            [this, connection = connection_](const absl::StatusOr<ReplyValue>& reply) {
              if (connection != connection_) return;
              asks_ = false;
              if (absl::IsNotFound(reply.status())) gone_ = true;
              if (reply.ok()) TakePage(std::get<JobSnapshot>(*reply));
            });
}

void Watcher::TakePage(const JobSnapshot& page) {
  for (const v1::Job& job : page.jobs) {
    told_of_.insert(job.name());
    See(job.revision());
    REQUIRE(last_ <= present_);
    at_ = last_;
  }
  if (static_cast<int64_t>(page.jobs.size()) == kPageJobs) return;
  changed_.emplace(page.changed.begin(), page.changed.end());
  BeginToFollow(present_);
  CheckPresent();
}

// Who waits until no job lives believes it: each that lives, and was there by then, was told.
void Watcher::CheckPresent() {
  if (!changed_ || !std::ranges::includes(told_of_, *changed_)) return;
  changed_.reset();
  site_.Ask(SnapshotJobs{{}, 0, kAll, kAll, true},
            [this, told_of = told_of_, up_to = at_](const absl::StatusOr<ReplyValue>& reply) {
              if (!reply.ok()) return;
              std::map<std::string, int64_t> came;
              for (const auto& [revision, news] : site_.told()) came.emplace(news.job, revision);
              for (const v1::Job& job : std::get<JobSnapshot>(*reply).jobs) {
                if (!names_.empty() && !names_.contains(job.name())) continue;
                if (!came.contains(job.name()) || came[job.name()] > up_to) continue;
                INFO("all was said to be told up to " << up_to << ", but " << job.name());
                REQUIRE(told_of.contains(job.name()));
              }
            });
}

void Watcher::BeginToFollow(int64_t after) {
  phase_ = Phase::kFollow;
  at_ = after;
  // Cut before it was told of anything since, it goes back behind the last job of its snapshot.
  followed_from_ = std::min(followed_from_.value_or(after), after);
}

// What it has missed is not kept any more, and it was told so; or it was told nothing yet.
void Watcher::BeginAnew() {
  phase_ = Phase::kSnapshot;
  at_ = last_ = present_ = 0;
  seen_.clear();
  told_of_.clear();
  followed_from_.reset();
  changed_.reset();
}

bool Watcher::Follow(int64_t limit) {
  const auto found = site_.ReadRevisions(at_, limit);
  if (absl::IsOutOfRange(found.status()) && site_.MayBeGone(at_)) {
    BeginAnew();
    return false;
  }
  if (site_.disk_was_ill() && !found.ok() && !absl::IsOutOfRange(found.status())) return false;
  INFO("watched up to " << at_ << ": " << found.status());
  REQUIRE(found.ok());
  for (const auto& revision : found->revisions) {
    REQUIRE(revision->revision > at_);
    at_ = revision->revision;
    if (!names_.empty() && !names_.contains(revision->job)) continue;
    See(revision->revision);
    told_of_.insert(revision->job);
    seen_.push_back(revision->revision);
  }
  REQUIRE(found->up_to >= at_);
  const bool more = found->up_to > at_ || !found->revisions.empty();
  at_ = found->up_to;
  CheckPresent();
  return more;
}

void Watcher::See(int64_t revision) {
  REQUIRE(revision > last_);
  last_ = revision;
}

// It saw nothing but what was told; every change; and of each job the newest.
void Watcher::Check() {
  REQUIRE(settled());
  while (!gone_ && Follow(kAll)) {
  }
  if (!followed_from_) return;  // its jobs went before it had seen them, or what followed did
  std::set<int64_t> told, wanted;
  std::map<std::string, int64_t> newest;
  for (const auto& [revision, news] : site_.told()) {
    if (revision <= *followed_from_ || revision > at_) continue;
    if (!names_.empty() && !names_.contains(news.job)) continue;
    told.insert(revision);
    if (!news.progress) wanted.insert(revision);
    newest[news.job] = revision;
  }
  for (const auto& [job, revision] : newest) wanted.insert(revision);
  for (const int64_t revision : seen_) {
    INFO("nobody told of revision " << revision << ", behind " << *followed_from_);
    REQUIRE(told.contains(revision));
  }
  for (const int64_t revision : wanted) {
    INFO("it missed revision " << revision << ", behind " << *followed_from_ << ", up to " << at_);
    REQUIRE(std::ranges::binary_search(seen_, revision));
  }
}

}  // namespace lorad::sim
