// Values that take long to make, kept as long as they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace lorad::server::feed {

// By key. A value that nothing has used for `idle_us` need not be kept any more, and while all of
// them together are more than `bytes_max`, the one that was used longest ago need not. A value that
// somebody holds is in use, and stays. Not thread-safe, but for values that are let go.
template <class Key, class Value>
class KeptByUse {
 public:
  using Values = std::vector<std::shared_ptr<Value>>;

  KeptByUse(int64_t bytes_max, int64_t idle_us) : bytes_max_(bytes_max), idle_us_(idle_us) {}

  // The value of that key, used now; made as Value(), of no bytes, where there is none.
  std::shared_ptr<Value> Use(const Key& key, int64_t now_us) {
    const auto [place, is_new] = places_.try_emplace(key);
    if (is_new) {
      kept_.push_back({key, std::make_shared<Value>()});
      place->second = std::prev(kept_.end());
    } else {
      kept_.splice(kept_.end(), kept_, place->second);
    }
    kept_.back().used_us = now_us;
    return kept_.back().value;
  }

  // The value of that key takes so much from here on; nothing, where it is not kept.
  void Weigh(const Key& key, int64_t bytes) {
    const auto place = places_.find(key);
    if (place == places_.end()) return;
    bytes_ += bytes - std::exchange(place->second->bytes, bytes);
  }

  // Those that need not be kept, and are not: to be let go where that may take its time.
  Values TakeUnused(int64_t now_us) {
    Values taken;
    for (auto next = kept_.begin(); next != kept_.end();) {
      if (bytes_ <= bytes_max_ && now_us - next->used_us < idle_us_) break;
      next = next->value.use_count() > 1 ? std::next(next) : Take(next, &taken);
    }
    return taken;
  }

  // Those whose key is so, in use or not.
  template <class Predicate>
  Values TakeIf(const Predicate& is_so) {
    Values taken;
    for (auto next = kept_.begin(); next != kept_.end();) {
      next = is_so(next->key) ? Take(next, &taken) : std::next(next);
    }
    return taken;
  }

  size_t size() const { return kept_.size(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Kept {
    Key key;
    std::shared_ptr<Value> value;  // shared with those who use it
    int64_t used_us = 0;
    int64_t bytes = 0;
  };
  using Place = typename std::list<Kept>::iterator;

  Place Take(Place kept, Values* taken) {
    bytes_ -= kept->bytes;
    taken->push_back(std::move(kept->value));
    places_.erase(kept->key);
    return kept_.erase(kept);
  }

  const int64_t bytes_max_;
  const int64_t idle_us_;
  std::list<Kept> kept_;  // the one used longest ago first
  std::map<Key, Place> places_;
  int64_t bytes_ = 0;
};

}  // namespace lorad::server::feed
