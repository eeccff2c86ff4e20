#include "server/core/catalog/request_ids.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"
#include "storage/files/sha256.h"

namespace lorad::server {
namespace {

std::array<char, 32> Digest(std::string_view content) {
  const std::string bytes = absl::HexStringToBytes(storage::Sha256::Of(content));
  std::array<char, 32> digest;
  assert(bytes.size() == digest.size());
  std::ranges::copy(bytes, digest.begin());
  return digest;
}

records::RequestRecord ToRecord(const RequestIds::Kept& kept) {
  records::RequestRecord record;
  record.set_content_sha256(kept.content_sha256.data(), kept.content_sha256.size());
  record.set_time_us(kept.time_us);
  record.set_name(kept.name);
  record.set_answer(kept.answer);
  return record;
}

}  // namespace

bool RequestIds::Kept::IsOf(std::string_view content) const {
  return Digest(content) == content_sha256;
}

absl::Status RequestIds::Load(std::vector<std::pair<std::string, std::string>> stored) {
  kept_.reserve(stored.size());
  records::RequestRecord record;
  for (const auto& [key, bytes] : stored) {
    const bool parsed = record.ParseFromString(bytes);
    const size_t digest_bytes = record.content_sha256().size();
    if (!parsed || (digest_bytes != 0 && digest_bytes != 32)) {
      return StoreCorrupt(absl::StrCat("request '", key, "'"));
    }
    Kept& kept = kept_[key];
    if (digest_bytes == 0) {
      kept.content_sha256 = Digest(record.content());
    } else {
      std::ranges::copy(record.content_sha256(), kept.content_sha256.begin());
    }
    kept.time_us = record.time_us();
    kept.name = record.name();
    kept.answer = record.answer();
  }
  std::vector<Map::iterator> entries;
  for (auto entry = kept_.begin(); entry != kept_.end(); ++entry) entries.push_back(entry);
  std::ranges::sort(entries, [](const auto& a, const auto& b) {
    return std::tie(a->second.time_us, a->first) < std::tie(b->second.time_us, b->first);
  });
  for (const Map::iterator& entry : entries) Add(entry);
  return absl::OkStatus();
}

RequestIds::Map::value_type* RequestIds::Add(Map::iterator entry) {
  by_age_.push_back(&*entry);
  const int64_t without = static_cast<int64_t>(by_age_.size()) - 1 - limits_.answers_max;
  if (without < 0 || by_age_[without]->second.answer.empty()) return nullptr;
  by_age_[without]->second.answer = std::string();
  return by_age_[without];
}

const RequestIds::Kept* RequestIds::Find(const std::string& key) const {
  const auto found = kept_.find(key);
  return found == kept_.end() ? nullptr : &found->second;
}

std::vector<std::pair<std::string, records::RequestRecord>> RequestIds::Keep(
    const std::string& key, std::string_view content, std::string name, std::string answer,
    int64_t time_us) {
  const auto [entry, is_new] = kept_.try_emplace(key);
  assert(is_new);
  Kept& kept = entry->second;
  kept.content_sha256 = Digest(content);
  kept.time_us = time_us;
  kept.name = std::move(name);
  kept.answer = std::move(answer);
  std::vector<std::pair<std::string, records::RequestRecord>> changed = {{key, ToRecord(kept)}};
  if (const auto* without = Add(entry)) {
    changed.emplace_back(without->first, ToRecord(without->second));
  }
  return changed;
}

std::vector<std::string> RequestIds::Prune(int64_t now_us) {
  std::vector<std::string> gone;
  while (!by_age_.empty() && (static_cast<int64_t>(by_age_.size()) > limits_.ids_max ||
                              by_age_.front()->second.time_us < now_us - limits_.age_us_max)) {
    gone.push_back(by_age_.front()->first);
    by_age_.pop_front();
    kept_.erase(gone.back());
  }
  return gone;
}

}  // namespace lorad::server
