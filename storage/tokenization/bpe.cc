#include "storage/tokenization/bpe.h"

#include <algorithm>
#include <cassert>
#include <cctype>
#include <limits>
#include <queue>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/tokenization/unicode.h"
#include "storage/tokenization/word_cache.h"

namespace lorad::storage::tokenization {
namespace {

// Up to here scanning for the lowest rank beats a heap.
constexpr size_t kFewUnits = 64;
constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

absl::Status Invalid(const std::string& message) {
  return Refuse("TOKENIZER_INVALID", "model: " + message);
}

// The bytes that a token of a byte-level vocabulary spells, if all its characters are bytes.
std::optional<std::string> SpelledBytes(std::string_view token) {
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const int byte = CharacterByte(NextCharacter(token, &at));
    if (byte < 0) return std::nullopt;
    out.push_back(static_cast<char>(byte));
  }
  return out;
}

}  // namespace

Bpe::Bpe(BpeOptions options)
    : options_(std::move(options)), cache_(std::make_unique<WordCache>()) {}

Bpe::~Bpe() = default;

absl::StatusOr<std::unique_ptr<const Bpe>> Bpe::Create(BpeOptions options) {
  std::unique_ptr<Bpe> bpe(new Bpe(std::move(options)));
  const absl::Status status = bpe->Build();
  if (!status.ok()) return status;
  return bpe;
}

absl::Status Bpe::Build() {
  ids_.reserve(options_.vocabulary.size());
  absl::flat_hash_map<int32_t, absl::string_view> tokens;
  tokens.reserve(options_.vocabulary.size());
  for (const auto& [token, id] : options_.vocabulary) {
    ids_.emplace(absl::string_view(token), id);
    const auto [place, is_new] = tokens.emplace(id, absl::string_view(token));
    if (!is_new) {
      return Invalid(
          absl::StrCat("tokens \"", place->second, "\" and \"", token, "\" share the id ", id));
    }
  }
  if (options_.unk_token.has_value()) {
    unk_id_ = TokenToId(*options_.unk_token);
    if (!unk_id_.has_value()) {
      return Invalid(
          absl::StrCat("unk_token \"", *options_.unk_token, "\" is not in the vocabulary"));
    }
  }
  absl::Status status = FindUnitIds();
  if (status.ok()) status = AddMerges();
  if (!status.ok() || !options_.ignore_merges) return status;
  for (const auto& [token, id] : options_.vocabulary) {
    if (!options_.byte_level) {
      whole_words_.emplace(token, id);
    } else if (std::optional<std::string> bytes = SpelledBytes(token); bytes.has_value()) {
      whole_words_.emplace(*std::move(bytes), id);
    }
  }
  return absl::OkStatus();
}

absl::Status Bpe::FindUnitIds() {
  byte_ids_.fill(-1);
  fallback_ids_.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    if (options_.byte_level) {
      AppendCharacter(ByteCharacter(static_cast<uint8_t>(byte)), &character);
    } else if (byte < 0x80) {
      character.push_back(static_cast<char>(byte));
    }
    if (!character.empty()) byte_ids_[byte] = TokenToId(character).value_or(-1);
    if (!options_.byte_fallback) continue;
    const std::string name = absl::StrCat("<0x", absl::Hex(byte, absl::kZeroPad2), ">");
    std::string upper = name;
    for (size_t at = 3; at < 5; ++at) {
      upper[at] = static_cast<char>(std::toupper(static_cast<unsigned char>(upper[at])));
    }
    fallback_ids_[byte] = TokenToId(upper).value_or(-1);
    if (fallback_ids_[byte] < 0) {
      return Invalid(absl::StrCat("byte_fallback is on, but the vocabulary has no token ", upper));
    }
  }
  return absl::OkStatus();
}

std::optional<int32_t> Bpe::LastUnit(std::string_view token) const {
  size_t begin = token.size() - 1;
  while (begin > 0 && IsContinuation(token[begin])) --begin;
  return TokenToId(token.substr(begin));
}

std::optional<int32_t> Bpe::FirstUnit(std::string_view token) const {
  return TokenToId(token.substr(0, CharacterBytes(token[0])));
}

absl::Status Bpe::AddMerges() {
  merges_.reserve(options_.merges.size());
  absl::flat_hash_set<int32_t> special;
  if (unk_id_.has_value()) special.insert(*unk_id_);
  if (options_.byte_fallback) special.insert(fallback_ids_.begin(), fallback_ids_.end());
  for (size_t rank = 0; rank < options_.merges.size(); ++rank) {
    const auto& [left, right] = options_.merges[rank];
    const std::string joined = left + right;
    const std::optional<int32_t> left_id = TokenToId(left);
    const std::optional<int32_t> right_id = TokenToId(right);
    const std::optional<int32_t> id = TokenToId(joined);
    if (left.empty() || right.empty() || !left_id || !right_id || !id) {
      const std::string& missing = !left_id ? left : !right_id ? right : joined;
      return Invalid(absl::StrCat("merge ", rank, " (\"", left, "\" and \"", right,
                                  "\"): the vocabulary has no token \"", missing, "\""));
    }
    merges_.insert_or_assign(PairKey(*left_id, *right_id), Merge{static_cast<uint32_t>(rank), *id});
    const std::optional<int32_t> last = LastUnit(left);
    const std::optional<int32_t> first = FirstUnit(right);
    // Units that stand for something else than their text: where words fall apart is not known.
    if (special.contains(*left_id) || special.contains(*right_id)) seams_ = false;
    if (last.has_value() && first.has_value()) joinable_.insert(PairKey(*last, *first));
  }
  options_.merges = {};
  return absl::OkStatus();
}

std::optional<int32_t> Bpe::TokenToId(std::string_view token) const {
  const auto found = ids_.find(Absl(token));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::AppendUnknown(uint32_t bytes, bool* after_unknown, std::vector<WordToken>* units) const {
  if (!unk_id_.has_value()) return;  // the text is lost, as in the library
  if (*after_unknown && options_.fuse_unk) {
    units->back().bytes += bytes;
  } else {
    units->push_back({*unk_id_, bytes});
  }
  *after_unknown = true;
}

void Bpe::AppendUnits(std::string_view word, std::vector<WordToken>* units) const {
  bool after_unknown = false;
  for (size_t at = 0; at < word.size();) {
    const auto byte = static_cast<uint8_t>(word[at]);
    if (byte_ids_[byte] >= 0) {
      units->push_back({byte_ids_[byte], 1});
      after_unknown = false;
      ++at;
      continue;
    }
    const size_t bytes = options_.byte_level ? 1 : CharacterBytes(word[at]);
    const std::string_view character = word.substr(at, bytes);
    at += bytes;
    if (!options_.byte_level) {
      if (const std::optional<int32_t> id = TokenToId(character); id.has_value()) {
        units->push_back({*id, static_cast<uint32_t>(bytes)});
        after_unknown = false;
        continue;
      }
      if (options_.byte_fallback) {
        for (const char c : character)
          units->push_back({fallback_ids_[static_cast<uint8_t>(c)], 1});
        continue;
      }
    }
    AppendUnknown(static_cast<uint32_t>(bytes), &after_unknown, units);
  }
}

void Bpe::Tokenize(std::string_view word, std::vector<WordToken>* out) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    if (const auto found = whole_words_.find(Absl(word)); found != whole_words_.end()) {
      out->push_back({found->second, static_cast<uint32_t>(word.size())});
      return;
    }
  }
  const bool cached = word.size() <= WordCache::kMaxWordBytes;
  if (cached && cache_->Find(word, out)) return;
  const size_t out_begin = out->size();
  std::vector<WordToken> units;
  units.reserve(word.size());
  AppendUnits(word, &units);
  size_t text = 0;  // where the part's text begins in the word
  for (size_t begin = 0; begin < units.size();) {
    size_t end = begin + 1;
    size_t bytes = units[begin].bytes;
    while (end < units.size() &&
           (!seams_ || joinable_.contains(PairKey(units[end - 1].id, units[end].id)))) {
      bytes += units[end++].bytes;
    }
    // The parts of a long word repeat as words do. (Without a token for the unknown, text may have
    // been lost among them, and a part's place is not known.)
    const bool part_cached = !cached && seams_ && (unk_id_.has_value() || options_.byte_fallback) &&
                             end - begin > 2 && bytes <= WordCache::kMaxWordBytes;
    const std::string_view part = part_cached ? word.substr(text, bytes) : std::string_view();
    if (!part_cached || !cache_->Find(part, out)) {
      const size_t part_begin = out->size();
      MergeUnits(units.data() + begin, end - begin, out);
      if (part_cached) {
        cache_->Insert(part, out->data() + part_begin, out->size() - part_begin);
      }
    }
    text += bytes;
    begin = end;
  }
  if (cached) cache_->Insert(word, out->data() + out_begin, out->size() - out_begin);
}

void Bpe::MergeUnits(const WordToken* units, size_t count, std::vector<WordToken>* out) const {
  if (count == 1) {
    out->push_back(*units);
  } else if (count <= kFewUnits) {
    MergeFew(units, count, out);
  } else {
    MergeMany(units, count, out);
  }
}

void Bpe::MergeFew(const WordToken* units, size_t count, std::vector<WordToken>* out) const {
  std::array<WordToken, kFewUnits> tokens;
  std::array<Merge, kFewUnits> merges;  // of token i with token i + 1
  std::copy(units, units + count, tokens.begin());
  const auto look_up = [&](size_t at) {
    const Merge* merge = at + 1 < count ? FindMerge(tokens[at].id, tokens[at + 1].id) : nullptr;
    merges[at] = merge == nullptr ? Merge{kNoRank, 0} : *merge;
  };
  for (size_t at = 0; at < count; ++at) look_up(at);
  while (true) {
    size_t best = 0;
    for (size_t at = 1; at < count; ++at) {
      if (merges[at].rank < merges[best].rank) best = at;
    }
    if (merges[best].rank == kNoRank) break;
    tokens[best] = {merges[best].id, tokens[best].bytes + tokens[best + 1].bytes};
    std::copy(tokens.begin() + best + 2, tokens.begin() + count, tokens.begin() + best + 1);
    std::copy(merges.begin() + best + 2, merges.begin() + count, merges.begin() + best + 1);
    --count;
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  out->insert(out->end(), tokens.begin(), tokens.begin() + count);
}

void Bpe::MergeMany(const WordToken* units, size_t count, std::vector<WordToken>* out) const {
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
  struct Node {
    WordToken token;
    uint32_t previous;
    uint32_t next;
  };
  struct Candidate {
    uint32_t rank;
    uint32_t at;
    int32_t id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  std::vector<Node> nodes(count);
  std::vector<Candidate> first;
  for (uint32_t at = 0; at < count; ++at) {
    nodes[at] = {units[at], at == 0 ? kEnd : at - 1, at + 1 < count ? at + 1 : kEnd};
    if (at + 1 == count) continue;
    const Merge* merge = FindMerge(units[at].id, units[at + 1].id);
    if (merge != nullptr) first.push_back({merge->rank, at, merge->id});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(first));
  const auto push = [&](uint32_t left, uint32_t right) {
    const Merge* merge = FindMerge(nodes[left].token.id, nodes[right].token.id);
    if (merge != nullptr) queue.push({merge->rank, left, merge->id});
  };
  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Node& left = nodes[candidate.at];
    if (left.token.bytes == 0 || left.next == kEnd) continue;
    Node& right = nodes[left.next];
    // The pair may have changed since it was queued.
    const Merge* merge = FindMerge(left.token.id, right.token.id);
    if (merge == nullptr || merge->id != candidate.id) continue;
    left.token = {candidate.id, left.token.bytes + right.token.bytes};
    right.token.bytes = 0;
    left.next = right.next;
    if (left.next != kEnd) nodes[left.next].previous = candidate.at;
    if (left.previous != kEnd) push(left.previous, candidate.at);
    if (left.next != kEnd) push(candidate.at, left.next);
  }
  for (uint32_t at = 0; at != kEnd; at = nodes[at].next) out->push_back(nodes[at].token);
}

}  // namespace lorad::storage::tokenization
