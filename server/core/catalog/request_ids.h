// The answers to creates, by their request_id: a repetition is answered the same way, also when
// what was made is gone again. Bounded by age and by number while it runs; a value of the core's
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/core/events/records.pb.h"

namespace lorad::server {

class RequestIds {
 public:
  struct Limits {
    int64_t age_us_max = 0;
    int64_t ids_max = 0;      // the newest are kept
    int64_t answers_max = 0;  // likewise: an older id knows only the name of what it made
  };

  struct Kept {
    std::array<char, 32> content_sha256;
    int64_t time_us = 0;
    std::string name;    // of what was made
    std::string answer;  // serialized; empty where it is not kept

    // Whether a repetition asks for the same as what came first.
    bool IsOf(std::string_view content) const;
  };

  explicit RequestIds(const Limits& limits) : limits_(limits) {}

  // Takes up what was stored, in any order: (key, records::RequestRecord). DATA_LOSS
  // (STORE_CORRUPT) where one cannot be read.
  absl::Status Load(std::vector<std::pair<std::string, std::string>> stored);

  // Null where the key is not kept. `key` is KIND/REQUEST_ID.
  const Kept* Find(const std::string& key) const;

  // A key that is not kept yet. Returns what must be stored, by key: the new record, and one that
  // its answer leaves.
  std::vector<std::pair<std::string, records::RequestRecord>> Keep(const std::string& key,
                                                                   std::string_view content,
                                                                   std::string name,
                                                                   std::string answer,
                                                                   int64_t time_us);

  // Forgets what is too old or too many, and returns their keys.
  std::vector<std::string> Prune(int64_t now_us);

  size_t size() const { return kept_.size(); }

 private:
  using Map = std::unordered_map<std::string, Kept>;
  // The newest. Returns the one whose answer is not kept any more, or null.
  Map::value_type* Add(Map::iterator entry);

  const Limits limits_;
  Map kept_;
  std::deque<Map::value_type*> by_age_;  // oldest first; elements of a map stay where they are
};

}  // namespace lorad::server
