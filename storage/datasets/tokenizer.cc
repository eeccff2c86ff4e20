#include "storage/datasets/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/files/json.h"
#include "storage/tokenization/added_tokens.h"
#include "storage/tokenization/aligned_text.h"
#include "storage/tokenization/bpe.h"
#include "storage/tokenization/decoder.h"
#include "storage/tokenization/fields.h"
#include "storage/tokenization/normalizer.h"
#include "storage/tokenization/post_processor.h"
#include "storage/tokenization/pre_tokenizer.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage {
namespace {

using tokenization::AddedToken;
using tokenization::AddedTokenFinder;
using tokenization::AlignedText;
using tokenization::Bpe;
using tokenization::BpeOptions;
using tokenization::Fields;
using tokenization::InvalidTokenizer;
using tokenization::Json;
using tokenization::Margins;
using tokenization::TextView;
using tokenization::UnsupportedTokenizer;

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
constexpr uint64_t kMaxId = (1 << 28) - 1;

absl::Status ReadVocabulary(const Json& vocabulary, BpeOptions* out) {
  out->vocabulary.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxId) {
      return InvalidTokenizer("model", "the id of token \"" + token + "\" is not a token id");
    }
    out->vocabulary.emplace_back(token, id.get<int32_t>());
  }
  return absl::OkStatus();
}

// Merges are "left right" or ["left", "right"].
absl::Status ReadMerges(const Json& merges, BpeOptions* out) {
  out->merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json& merge = merges[i];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      out->merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    if (text.starts_with("#version")) continue;
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return InvalidTokenizer(absl::StrCat("model: merges[", i, "]"),
                              "must be two tokens with a space between, or a list of two tokens");
    }
    out->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const Bpe>> ReadModel(const Json& json, bool byte_level) {
  Fields fields("model", json);
  BpeOptions options;
  const std::string type = fields.OptionalText("type").value_or("BPE");
  if (type != "BPE") return UnsupportedTokenizer("model", "model " + type + " is not supported");
  if (const Json* dropout = fields.Any("dropout"); dropout != nullptr && *dropout != 0.0) {
    return UnsupportedTokenizer("model", "dropout is not supported: it must be null");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!fields.OptionalText(affix).value_or("").empty()) {
      return UnsupportedTokenizer("model", std::string(affix) + " is not supported");
    }
  }
  options.unk_token = fields.OptionalText("unk_token");
  options.fuse_unk = fields.Bool("fuse_unk", false);
  options.byte_fallback = fields.Bool("byte_fallback", false);
  options.ignore_merges = fields.Bool("ignore_merges", false);
  options.byte_level = byte_level;
  if (byte_level && options.byte_fallback) {
    return UnsupportedTokenizer("model", "byte_fallback behind ByteLevel is not supported");
  }
  const Json* vocabulary = fields.Object("vocab");
  const Json* merges = fields.Array("merges");
  absl::Status status = fields.Finish();
  if (status.ok()) status = ReadVocabulary(*vocabulary, &options);
  if (status.ok()) status = ReadMerges(*merges, &options);
  if (!status.ok()) return status;
  return Bpe::Create(std::move(options));
}

class BpeTokenizer : public Tokenizer {
 public:
  absl::Status Read(const Json& json, const std::vector<std::string>& special_tokens);

  absl::StatusOr<Encoding> Encode(std::string_view text, bool add_special_tokens) const override;
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                     bool skip_special_tokens) const override;
  std::optional<int32_t> TokenToId(std::string_view token) const override;
  int32_t vocabulary_size() const override { return vocabulary_size_; }

 private:
  struct TokenInfo {
    std::string text;  // what decoding begins with
    bool special = false;
    Margins margins;
  };
  // An encoding that grows, and the margins of its tokens (if some step trims).
  struct Work {
    Encoding encoding;
    std::vector<Margins> margins;
    std::vector<tokenization::WordToken> word;
  };

  absl::Status IndexTokens();
  absl::Status AddPart(const TextView& text, Work* work) const;
  void AddToken(const AddedToken& token, const TextView& text, Work* work) const;
  void AddWord(const TextView& word, Work* work) const;
  void SetSpansOfLossyWord(const TextView& word, Work* work) const;
  void AddSpecialTokens(const tokenization::AddSpecialTokens& tokens, Work* work) const;

  tokenization::Normalizers normalizers_;
  tokenization::PreTokenizers pre_tokenizers_;
  std::unique_ptr<const Bpe> model_;
  std::vector<tokenization::PostProcessor> post_processors_;
  std::vector<tokenization::DecoderStep> decoders_;
  bool has_decoder_ = false;
  bool trims_ = false;
  std::vector<AddedToken> added_tokens_;
  std::optional<AddedTokenFinder> raw_finder_;         // in the text as given
  std::optional<AddedTokenFinder> normalized_finder_;  // in the normalized text
  absl::flat_hash_map<int32_t, TokenInfo> tokens_;
  int32_t vocabulary_size_ = 0;
};

absl::Status BpeTokenizer::Read(const Json& json, const std::vector<std::string>& special_tokens) {
  Fields fields("", json);
  fields.Ignore("version");
  fields.Ignore("truncation");  // what an Encode call of the library would do by default;
  fields.Ignore("padding");     // transformers sets both for itself on every call
  const auto read = [&](const char* name, auto reader) {
    const Json* part = fields.Any(name);
    if (part != nullptr && fields.ok()) fields.Fail(reader(*part));
  };
  read("normalizer", [&](const Json& part) {
    return tokenization::ReadNormalizer(part, "normalizer", 0, &normalizers_);
  });
  read("pre_tokenizer", [&](const Json& part) {
    return tokenization::ReadPreTokenizer(part, "pre_tokenizer", 0, &pre_tokenizers_);
  });
  read("post_processor", [&](const Json& part) {
    return tokenization::ReadPostProcessor(part, "post_processor", 0, &post_processors_);
  });
  read("decoder", [&](const Json& part) {
    has_decoder_ = true;
    return tokenization::ReadDecoder(part, "decoder", 0, &decoders_);
  });
  read("added_tokens", [&](const Json& part) {
    return tokenization::ReadAddedTokens(part, normalizers_, &added_tokens_);
  });
  const Json* model = fields.Object("model");
  const absl::Status status = fields.Finish();
  if (!status.ok()) return status;
  auto bpe = ReadModel(*model, pre_tokenizers_.byte_level);
  if (!bpe.ok()) return bpe.status();
  model_ = *std::move(bpe);
  for (const std::string& text : special_tokens) {
    const bool listed = std::any_of(added_tokens_.begin(), added_tokens_.end(),
                                    [&](const AddedToken& token) { return token.content == text; });
    const std::optional<int32_t> id = model_->TokenToId(text);
    if (!listed && id.has_value()) {
      added_tokens_.push_back({.id = *id, .content = text, .pattern = text, .special = true});
    }
  }
  return IndexTokens();
}

absl::Status BpeTokenizer::IndexTokens() {
  for (const auto& step : post_processors_) {
    trims_ |= std::holds_alternative<tokenization::TrimSpans>(step);
  }
  tokens_.reserve(model_->vocabulary().size() + added_tokens_.size());
  for (const auto& [token, id] : model_->vocabulary()) {
    tokens_[id] = {token, false, tokenization::MarginsOf(token)};
    vocabulary_size_ = std::max(vocabulary_size_, id + 1);
  }
  std::vector<const AddedToken*> raw;
  std::vector<const AddedToken*> normalized;
  for (size_t i = 0; i < added_tokens_.size(); ++i) {
    const AddedToken& token = added_tokens_[i];
    const std::optional<int32_t> known = model_->TokenToId(token.content);
    const auto [place, is_new] =
        tokens_.try_emplace(token.id, TokenInfo{token.pattern, token.special, {}});
    if (known.has_value() ? *known != token.id : !is_new) {
      return InvalidTokenizer(absl::StrCat("added_tokens[", i, "]"),
                              absl::StrCat("id ", token.id, " of \"", token.content,
                                           "\" is not its id in the vocabulary, or another's"));
    }
    place->second.text = token.pattern;
    place->second.special |= token.special;
    vocabulary_size_ = std::max(vocabulary_size_, token.id + 1);
    (token.normalized ? normalized : raw).push_back(&token);
  }
  if (!raw.empty()) raw_finder_.emplace(std::move(raw));
  if (!normalized.empty()) normalized_finder_.emplace(std::move(normalized));
  for (const auto& step : post_processors_) {
    const auto* special = std::get_if<tokenization::AddSpecialTokens>(&step);
    if (special == nullptr) continue;
    for (const auto* side : {&special->front, &special->back}) {
      for (const int32_t id : *side) {
        if (!tokens_.contains(id)) {
          return InvalidTokenizer("post_processor", absl::StrCat("no token has the id ", id));
        }
      }
    }
  }
  return absl::OkStatus();
}

void BpeTokenizer::AddToken(const AddedToken& token, const TextView& text, Work* work) const {
  if (text.text.empty()) return;
  work->encoding.ids.push_back(token.id);
  work->encoding.spans.push_back(text.SpanOf(0, text.text.size()));
  if (trims_) work->margins.push_back(tokenization::MarginsOf(text.text));
}

void BpeTokenizer::AddWord(const TextView& word, Work* work) const {
  work->word.clear();
  model_->Tokenize(word.text, &work->word);
  size_t at = 0;
  for (const tokenization::WordToken& token : work->word) {
    work->encoding.ids.push_back(token.id);
    work->encoding.spans.push_back(word.SpanOf(at, at + token.bytes));
    if (trims_) work->margins.push_back(tokens_.find(token.id)->second.margins);
    at += token.bytes;
  }
  if (at < word.text.size() && pre_tokenizers_.byte_level) SetSpansOfLossyWord(word, work);
}

// SmolLM2's vocabulary lacks some bytes, and a model without unk_token drops them. The library then
// places the word's tokens one behind the other, counted in bytes of GPT-2's alphabet.
void BpeTokenizer::SetSpansOfLossyWord(const TextView& word, Work* work) const {
  std::vector<size_t> byte_of;  // of every byte of the word as it is spelled in that alphabet
  for (size_t at = 0; at < word.text.size(); ++at) {
    const bool one = tokenization::ByteCharacter(static_cast<uint8_t>(word.text[at])) < 0x80;
    byte_of.insert(byte_of.end(), one ? 1 : 2, at);
  }
  TextSpan* span = work->encoding.spans.data() + work->encoding.spans.size() - work->word.size();
  size_t at = 0;
  for (const tokenization::WordToken& token : work->word) {
    const size_t end = at + tokens_.find(token.id)->second.text.size();
    *span++ = word.SpanOf(byte_of[std::min(at, byte_of.size() - 1)],
                          byte_of[std::min(end, byte_of.size()) - 1] + 1);
    at = end;
  }
}

absl::Status BpeTokenizer::AddPart(const TextView& text, Work* work) const {
  AlignedText storage;
  const absl::StatusOr<TextView> normal = tokenization::Normalize(normalizers_, text, &storage);
  if (!normal.ok()) return normal.status();
  const auto add_text = [&](const TextView& part) {
    return tokenization::PreTokenize(pre_tokenizers_, part, [&](const TextView& word) {
      AddWord(word, work);
      return absl::OkStatus();
    });
  };
  if (!normalized_finder_.has_value()) return add_text(*normal);
  for (const AddedTokenFinder::Part& part : normalized_finder_->Find(normal->text)) {
    const TextView slice = normal->Slice(part.begin, part.end);
    if (part.token != nullptr) {
      AddToken(*part.token, slice, work);
      continue;
    }
    const absl::Status status = add_text(slice);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void BpeTokenizer::AddSpecialTokens(const tokenization::AddSpecialTokens& tokens,
                                    Work* work) const {
  const auto insert = [&](const std::vector<int32_t>& ids, size_t at) {
    const auto place = static_cast<ptrdiff_t>(at);
    Encoding& encoding = work->encoding;
    encoding.ids.insert(encoding.ids.begin() + place, ids.begin(), ids.end());
    encoding.spans.insert(encoding.spans.begin() + place, ids.size(), TextSpan{});
    if (trims_) work->margins.insert(work->margins.begin() + place, ids.size(), Margins{});
  };
  insert(tokens.front, 0);
  insert(tokens.back, work->encoding.ids.size());
  work->encoding.inserted_front += tokens.front.size();
  work->encoding.inserted_back += tokens.back.size();
}

absl::StatusOr<Encoding> BpeTokenizer::Encode(std::string_view text,
                                              bool add_special_tokens) const {
  if (text.size() > kMaxTextBytes) {
    return Refuse("TEXT_INVALID", absl::StrCat("a text of ", text.size(),
                                               " bytes is too long: at most 1 GiB is tokenized"));
  }
  if (!tokenization::IsUtf8(text)) return Refuse("TEXT_INVALID", "the text is not UTF-8");
  Work work;
  work.encoding.ids.reserve(text.size() / 3);
  work.encoding.spans.reserve(text.size() / 3);
  const TextView whole{text};
  if (!raw_finder_.has_value()) {
    const absl::Status status = AddPart(whole, &work);
    if (!status.ok()) return status;
  } else {
    for (const AddedTokenFinder::Part& part : raw_finder_->Find(text)) {
      const TextView slice = whole.Slice(part.begin, part.end);
      if (part.token != nullptr) {
        AddToken(*part.token, slice, &work);
        continue;
      }
      const absl::Status status = AddPart(slice, &work);
      if (!status.ok()) return status;
    }
  }
  for (const tokenization::PostProcessor& step : post_processors_) {
    if (const auto* trim = std::get_if<tokenization::TrimSpans>(&step)) {
      tokenization::Trim(*trim, text, work.margins, &work.encoding);
    } else if (add_special_tokens) {
      AddSpecialTokens(std::get<tokenization::AddSpecialTokens>(step), &work);
    }
  }
  return std::move(work.encoding);
}

absl::StatusOr<std::string> BpeTokenizer::Decode(const std::vector<int32_t>& ids,
                                                 bool skip_special_tokens) const {
  std::vector<std::string> texts;
  texts.reserve(ids.size());
  for (const int32_t id : ids) {
    const auto found = tokens_.find(id);
    if (found == tokens_.end()) {
      return Refuse("TOKEN_UNKNOWN", absl::StrCat("no token has the id ", id));
    }
    if (!(skip_special_tokens && found->second.special)) texts.push_back(found->second.text);
  }
  for (const tokenization::DecoderStep& step : decoders_) {
    const absl::Status status = step(&texts);
    if (!status.ok()) return status;
  }
  std::string out;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0 && !has_decoder_) out += ' ';
    out += texts[i];
  }
  return out;
}

std::optional<int32_t> BpeTokenizer::TokenToId(std::string_view token) const {
  for (const AddedToken& added : added_tokens_) {
    if (added.content == token) return added.id;
  }
  return model_->TokenToId(token);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(
    std::string_view tokenizer_json, const std::vector<std::string>& special_tokens) {
  if (tokenizer_json.size() > kMaxTokenizerBytes) {
    return Refuse("TOKENIZER_INVALID", "longer than 256 MiB");
  }
  const absl::StatusOr<Json> json = ParseJson(tokenizer_json, "TOKENIZER_INVALID");
  if (!json.ok()) return json.status();
  auto tokenizer = std::make_unique<BpeTokenizer>();
  const absl::Status status = tokenizer->Read(*json, special_tokens);
  if (!status.ok()) return status;
  return tokenizer;
}

}  // namespace lorad::storage
