#include "planner/window/pack_search.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <numeric>
#include <string>
#include <utility>

namespace lorad::planner {
namespace {

using Status = PackSearchResult::Status;

// Beyond this many the lists of what is left grow too large.
constexpr size_t kSamplesMax = 4096;
constexpr int64_t kNodesBetweenQuestions = 1 << 14;  // to `cancelled`

struct Item {
  int64_t length;
  int job;
  int sample;
};

// How much of the tree a round looks at.
struct Round {
  size_t branches;       // sets tried at a place
  int64_t sets_looked;   // nodes spent on finding them
  int64_t nodes_shares;  // of 16: of all nodes
};
constexpr int64_t kAll = int64_t{1} << 60;
// Beyond this many a place's sets are cut, and the search proves nothing.
constexpr size_t kSetsMax = 20'000;
constexpr Round kRounds[] = {{1, 4'000, 1}, {3, 8'000, 4}, {10, 16'000, 8}, {kSetsMax, kAll, 16}};

// One way to fill a bin.
struct Fill {
  int64_t padded;
  int64_t tokens;
  std::vector<int> places;  // in the list of what is left, rising

  // Fuller first; where equal, the one of longer samples.
  bool operator<(const Fill& other) const {
    if (padded != other.padded) return padded > other.padded;
    if (tokens != other.tokens) return tokens > other.tokens;
    return places < other.places;
  }
};

class Search {
 public:
  Search(const std::vector<Sample>& samples, const PackOptions& options, int64_t bins,
         int64_t last_max, const PackSearchLimits& limits)
      : padding_(options.padding),
        capacity_(options.capacity / options.padding * options.padding),
        last_max_(std::min(capacity_, last_max)),
        last_is_special_(last_max_ < capacity_),
        bins_(bins),
        limits_(limits) {
    std::map<std::string, int> jobs;
    for (const Sample& sample : samples) jobs.emplace(sample.job, 0);
    for (auto& [name, id] : jobs) id = padding_ > 1 ? jobs_++ : 0;
    jobs_ = std::max(1, jobs_);
    for (size_t i = 0; i < samples.size(); ++i) {
      items_.push_back({Tokens(samples[i]), jobs.at(samples[i].job), static_cast<int>(i)});
    }
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
      return a.length != b.length ? a.length > b.length : a.job < b.job;
    });
    in_bin_.resize(static_cast<size_t>(jobs_));
    last_.resize(static_cast<size_t>(jobs_));
  }

  PackSearchResult Run() {
    PackSearchResult result;
    for (const Round& round : kRounds) {
      round_ = round;
      nodes_max_ = limits_.nodes / 16 * round.nodes_shares;
      exhausted_ = true;
      found_.clear();
      if (Descend(items_, bins_ - 1)) {
        result.status = Status::kFound;
        result.packing = found_;
        break;
      }
      if (cancelled_) result.status = Status::kCancelled;
      if (!cancelled_ && exhausted_) result.status = Status::kNone;
      if (cancelled_ || exhausted_) break;
    }
    result.nodes = nodes_;
    return result;
  }

 private:
  int64_t RoundUp(int64_t tokens) const {
    return padding_ == 1 ? tokens : (tokens + padding_ - 1) / padding_ * padding_;
  }
  int64_t PaddedOf(const std::vector<int64_t>& tokens) const {
    int64_t padded = 0;
    for (int64_t of_job : tokens) padded += RoundUp(of_job);
    return padded;
  }

  bool Stop() {
    if (cancelled_ || nodes_ >= nodes_max_) {
      exhausted_ = false;
      return true;
    }
    if (nodes_ >= ask_at_) {
      ask_at_ = nodes_ + kNodesBetweenQuestions;
      cancelled_ = limits_.cancelled && limits_.cancelled();
    }
    return cancelled_;
  }

  // Packs `left` into `bins` full-sized bins and the last one.
  bool Descend(const std::vector<Item>& left, int64_t bins) {
    nodes_ += 1 + static_cast<int64_t>(left.size()) / 2;
    if (Stop()) return false;
    std::vector<int64_t> tokens = last_;
    int64_t sum = 0;
    for (const Item& item : left) tokens[static_cast<size_t>(item.job)] += item.length;
    for (const Item& item : left) sum += item.length;
    const int64_t padded = PaddedOf(tokens);
    if (padded <= last_max_ && bins >= 0) return Finish(left, bins);
    if (bins <= 0 || padded > bins * capacity_ + last_max_) return false;
    // Tokens that the next bin must hold so that the rest can go into the others.
    const int64_t least = sum - (bins - 1) * capacity_ -
                          (last_max_ - std::accumulate(last_.begin(), last_.end(), int64_t{0}));
    for (const Fill& fill : Fills(left, least)) {
      std::vector<Item> rest;
      std::vector<int>& bin = found_.emplace_back();
      auto place = fill.places.begin();
      for (size_t i = 0; i < left.size(); ++i) {
        if (place != fill.places.end() && static_cast<size_t>(*place) == i) {
          bin.push_back(left[i].sample);
          ++place;
        } else {
          rest.push_back(left[i]);
        }
      }
      if (Descend(rest, bins - 1)) return true;
      found_.pop_back();
      if (Stop()) return false;
    }
    return last_is_special_ && IntoLast(left, bins);
  }

  // The longest of what is left goes into the last bin.
  bool IntoLast(const std::vector<Item>& left, int64_t bins) {
    int64_t& tokens = last_[static_cast<size_t>(left[0].job)];
    tokens += left[0].length;
    in_last_.push_back(left[0].sample);
    const bool found =
        PaddedOf(last_) <= last_max_ && Descend({left.begin() + 1, left.end()}, bins);
    if (found) return true;
    in_last_.pop_back();
    tokens -= left[0].length;
    return false;
  }

  bool Finish(const std::vector<Item>& left, int64_t bins) {
    for (const Item& item : left) in_last_.push_back(item.sample);
    found_.resize(found_.size() + static_cast<size_t>(bins));  // not needed
    found_.push_back(in_last_);
    for (std::vector<int>& bin : found_) std::sort(bin.begin(), bin.end());
    return true;
  }

  // The best sets that hold left[0] and at least `least` tokens, and to which nothing can be added.
  std::vector<Fill> Fills(const std::vector<Item>& left, int64_t least) {
    left_ = &left;
    least_ = least;
    after_.assign(left.size() + 1, 0);
    for (size_t i = left.size(); i-- > 0;) after_[i] = after_[i + 1] + left[i].length;
    fills_.clear();
    looked_max_ = round_.sets_looked == kAll ? kAll : nodes_ + round_.sets_looked;
    std::fill(in_bin_.begin(), in_bin_.end(), 0);
    places_ = {0};
    in_bin_[static_cast<size_t>(left[0].job)] = left[0].length;
    full_ = false;
    Extend(1, RoundUp(left[0].length), left[0].length);
    std::vector<Fill> fills = std::move(fills_);
    std::sort(fills.begin(), fills.end());
    return fills;
  }

  int64_t PaddedWith(int64_t padded, const Item& item) const {
    const int64_t before = in_bin_[static_cast<size_t>(item.job)];
    return padded - RoundUp(before) + RoundUp(before + item.length);
  }

  void Extend(size_t from, int64_t padded, int64_t tokens) {
    const std::vector<Item>& left = *left_;
    // With a padding multiple a sample may still fit into what rounding up has left.
    const bool has_room = padding_ > 1 || padded + left.back().length <= capacity_;
    if (padding_ == 1) from = FirstThatFits(from, capacity_ - padded);
    for (size_t i = from; has_room && i < left.size(); ++i) {
      if (tokens + after_[i] < least_) return;  // even with all that follows
      const bool tried =
          i > from && left[i].length == left[i - 1].length && left[i].job == left[i - 1].job;
      const int64_t with = PaddedWith(padded, left[i]);
      if (tried || with > capacity_) continue;
      ++nodes_;
      if (full_ || nodes_ >= looked_max_ || Stop()) {
        exhausted_ = false;
        return;
      }
      in_bin_[static_cast<size_t>(left[i].job)] += left[i].length;
      places_.push_back(static_cast<int>(i));
      Extend(i + 1, with, tokens + left[i].length);
      places_.pop_back();
      in_bin_[static_cast<size_t>(left[i].job)] -= left[i].length;
    }
    if (tokens >= least_ && Maximal(padded)) Keep(Fill{padded, tokens, places_});
  }

  // Lengths fall.
  size_t FirstThatFits(size_t from, int64_t room) const {
    const auto first = std::partition_point(
        left_->begin() + static_cast<std::ptrdiff_t>(std::min(from, left_->size())), left_->end(),
        [&](const Item& item) { return item.length > room; });
    return static_cast<size_t>(first - left_->begin());
  }

  bool Maximal(int64_t padded) {
    if (padding_ == 1) {  // what is not in the bin and shortest decides
      size_t place = left_->size(), inside = places_.size();
      while (inside > 0 && static_cast<size_t>(places_[inside - 1]) + 1 == place) --inside, --place;
      return place == 0 || padded + (*left_)[place - 1].length > capacity_;
    }
    nodes_ += static_cast<int64_t>(left_->size()) / 16;
    size_t next = 0;
    for (size_t i = 0; i < left_->size(); ++i) {
      if (next < places_.size() && static_cast<size_t>(places_[next]) == i) {
        ++next;
      } else if (PaddedWith(padded, (*left_)[i]) <= capacity_) {
        return false;
      }
    }
    return true;
  }

  void Keep(Fill fill) {
    if (fills_.size() < round_.branches) {
      fills_.push_back(std::move(fill));
      std::push_heap(fills_.begin(), fills_.end());
    } else {
      exhausted_ = false;
      if (fill < fills_.front()) {  // the worst that is kept
        std::pop_heap(fills_.begin(), fills_.end());
        fills_.back() = std::move(fill);
        std::push_heap(fills_.begin(), fills_.end());
      }
    }
    // Where only one is wanted, nothing is better than a full bin.
    full_ = round_.branches == 1 && fills_.front().tokens == capacity_;
  }

  const int64_t padding_;
  const int64_t capacity_;
  const int64_t last_max_;
  const bool last_is_special_;
  const int64_t bins_;
  const PackSearchLimits& limits_;
  int jobs_ = 0;
  std::vector<Item> items_;

  Round round_{};
  int64_t nodes_ = 0, nodes_max_ = 0, ask_at_ = 0;
  bool cancelled_ = false;
  bool exhausted_ = true;  // nothing was left out in this round
  Packing found_;          // full bins so far
  std::vector<int> in_last_;
  std::vector<int64_t> last_;  // tokens of each job in the last bin

  // The bin being filled:
  const std::vector<Item>* left_ = nullptr;
  int64_t least_ = 0;
  int64_t looked_max_ = 0;
  std::vector<int64_t> after_;  // tokens from each place on
  std::vector<int64_t> in_bin_;
  std::vector<int> places_;
  std::vector<Fill> fills_;
  bool full_ = false;  // and one is enough
};

}  // namespace

PackSearchResult SearchPacking(const std::vector<Sample>& samples, const PackOptions& options,
                               int64_t bins, int64_t last_max, const PackSearchLimits& limits) {
  assert(bins >= 1);
  if (samples.size() > kSamplesMax) return {};
  return Search(samples, options, bins, last_max, limits).Run();
}

}  // namespace lorad::planner
