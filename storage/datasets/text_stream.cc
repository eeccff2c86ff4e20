#include "storage/datasets/text_stream.h"

#include <algorithm>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorad::storage {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes at the end that may be the beginning of `stop`.
size_t BeginsAtEnd(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::string TextStream::Add(const std::vector<int32_t>& tokens, bool last) {
  if (tokenizer_ == nullptr || stopped_) return "";
  for (const int32_t token : tokens) {
    // A model may have more rows in its head than its tokenizer has tokens: those say nothing.
    if (tokenizer_->Decode({token}, true).ok()) tokens_.push_back(token);
  }
  const absl::StatusOr<std::string> decoded = tokenizer_->Decode(tokens_, true);
  if (!decoded.ok()) return "";
  std::string_view text = *decoded;
  size_t first_stop = std::string_view::npos;
  for (const std::string& stop : stops_) first_stop = std::min(first_stop, text.find(stop));
  if (first_stop != std::string_view::npos) {
    stopped_ = true;
    text = text.substr(0, first_stop);
  } else if (!last) {
    while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
    size_t held = 0;
    for (const std::string& stop : stops_) held = std::max(held, BeginsAtEnd(text, stop));
    text.remove_suffix(held);
  }
  if (!text.starts_with(given_)) {
    if (!last && !stopped_) return "";  // it reads otherwise for now
    // What was given out stays: only what lies behind it is added.
    if (text.size() <= given_.size()) return "";
  }
  size_t from = given_.size();
  while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
  const std::string piece(text.substr(from));
  given_ = std::string(text);
  return piece;
}

}  // namespace lorad::storage
