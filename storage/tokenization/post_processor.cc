#include "storage/tokenization/post_processor.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage::tokenization {
namespace {

constexpr int kMaxDepth = 8;
constexpr uint64_t kMaxId = (1 << 28) - 1;
constexpr size_t kMaxInserted = 64;
constexpr char32_t kByteLevelSpace = 0x120;

bool IsMargin(char32_t character) {
  return character == kByteLevelSpace || IsWhitespace(character);
}

// `special_tokens` of a TemplateProcessing: the ids of one of them.
absl::Status ReadSpecialToken(const Json& special_tokens, const std::string& where,
                              const std::string& name, std::vector<int32_t>* out) {
  const auto found = special_tokens.find(name);
  if (found == special_tokens.end()) {
    return InvalidTokenizer(where, "special_tokens has no \"" + name + "\"");
  }
  Fields fields(where + ": special_tokens." + name, *found);
  fields.Ignore("id");
  fields.Ignore("tokens");
  const Json* ids = fields.Array("ids");
  for (size_t i = 0; ids != nullptr && i < ids->size(); ++i) {
    const Json& id = (*ids)[i];
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxId) {
      return InvalidTokenizer(fields.where(), "ids must be token ids");
    }
    out->push_back(id.get<int32_t>());
  }
  if (out->size() > kMaxInserted) return InvalidTokenizer(where, "more than 64 special tokens");
  return fields.Finish();
}

absl::Status ReadTemplate(Fields* fields, std::vector<PostProcessor>* out) {
  const Json* single = fields->Array("single");
  const Json* special_tokens = fields->Object("special_tokens");
  fields->Ignore("pair");  // of two texts; we encode one
  if (!fields->ok()) return fields->Finish();
  AddSpecialTokens result;
  bool text_seen = false;
  for (size_t i = 0; i < single->size(); ++i) {
    const std::string where = absl::StrCat(fields->where(), ": single[", i, "]");
    Fields piece(where, (*single)[i]);
    const bool is_text = piece.Any("Sequence") != nullptr;
    const Json* body = piece.Object(is_text ? "Sequence" : "SpecialToken");
    absl::Status status = piece.Finish();
    if (!status.ok()) return status;
    Fields inner(where, *body);
    const std::string id = inner.Text("id");
    inner.Ignore("type_id");
    status = inner.Finish();
    if (!status.ok()) return status;
    if (!is_text) {
      status = ReadSpecialToken(*special_tokens, fields->where(), id,
                                text_seen ? &result.back : &result.front);
      if (!status.ok()) return status;
    } else if (id != "A" || text_seen) {
      return UnsupportedTokenizer(where, "a template of one text must have it once, as A");
    } else {
      text_seen = true;
    }
  }
  if (!text_seen) return InvalidTokenizer(fields->where(), "single has no sequence A");
  out->push_back(std::move(result));
  return fields->Finish();
}

}  // namespace

Margins MarginsOf(std::string_view token_text) {
  Margins out;
  bool leading = true;
  for (size_t at = 0; at < token_text.size();) {
    const bool margin = IsMargin(NextCharacter(token_text, &at));
    leading = leading && margin;
    if (leading) ++out.leading;
    out.trailing = margin ? out.trailing + 1 : 0;
  }
  return out;
}

absl::Status ReadPostProcessor(const Json& json, std::string_view where, int depth,
                               std::vector<PostProcessor>* out) {
  Fields fields(std::string(where), json);
  const std::string type = fields.Text("type");
  if (!fields.ok()) return fields.Finish();
  if (type == "TemplateProcessing") return ReadTemplate(&fields, out);
  if (type == "ByteLevel") {
    const bool add_prefix_space = fields.Bool("add_prefix_space", true);
    const bool trim_offsets = fields.Bool("trim_offsets", true);
    fields.Ignore("use_regex");  // of the pre-tokenizer of that name
    if (trim_offsets) out->push_back(TrimSpans{add_prefix_space});
    return fields.Finish();
  }
  if (type != "Sequence") {
    return UnsupportedTokenizer(where, absl::StrCat("post-processor ", type, " is not supported"));
  }
  if (depth >= kMaxDepth) return InvalidTokenizer(where, "Sequences are nested too deep");
  const Json* steps = fields.Array("processors");
  if (steps != nullptr && steps->size() > 16) return InvalidTokenizer(where, "more than 16 steps");
  for (size_t i = 0; steps != nullptr && i < steps->size() && fields.ok(); ++i) {
    fields.Fail(
        ReadPostProcessor((*steps)[i], absl::StrCat(Absl(where), "[", i, "]"), depth + 1, out));
  }
  return fields.Finish();
}

void Trim(const TrimSpans& trim, std::string_view text, const std::vector<Margins>& margins,
          Encoding* encoding) {
  for (size_t i = 0; i < encoding->spans.size(); ++i) {
    TextSpan& span = encoding->spans[i];
    Margins margin = margins[i];
    if (margin.leading == 1 && trim.add_prefix_space && (i == 0 || span.begin == 0)) {
      margin.leading = 0;  // the space that the pre-tokenizer put there
    }
    for (; margin.leading > 0 && span.begin < span.end; --margin.leading) {
      span.begin += static_cast<uint32_t>(CharacterBytes(text[span.begin]));
    }
    // No span begins within the text and ends before it: too many to take away leaves all.
    uint32_t end = span.end;
    while (margin.trailing > 0 && end > 0) {
      do {
        --end;
      } while (IsContinuation(text[end]));
      --margin.trailing;
    }
    if (margin.trailing == 0) span.end = std::max(end, span.begin);
  }
}

}  // namespace lorad::storage::tokenization
