// Token ids to text as they come.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "storage/datasets/tokenizer.h"

namespace lorad::storage {

// The text of an answer, given out in pieces of whole characters. Joined they are what the
// tokenizer makes of all its tokens (special ones left out), but for what was given out before a
// stop text. A token may change how those before it read, or be a part of a character, so all of
// them are decoded each time, and an end that may yet change is held back.
class TextStream {
 public:
  // `tokenizer` may be null: no text. It must outlive the stream. `stops`: texts, none of them
  // empty, before the first of which the answer ends.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops)
      : tokenizer_(tokenizer), stops_(std::move(stops)) {}

  // The text that is certain now. `last`: no token follows, so all of it is.
  std::string Add(const std::vector<int32_t>& tokens, bool last);
  // A stop text has come: the answer is over.
  bool stopped() const { return stopped_; }

 private:
  const Tokenizer* const tokenizer_;
  const std::vector<std::string> stops_;
  std::vector<int32_t> tokens_;
  std::string given_;
  bool stopped_ = false;
};

}  // namespace lorad::storage
