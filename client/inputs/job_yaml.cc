#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/inputs/job_formats.h"

namespace lorad::client {
namespace {

using nlohmann::json;

std::string Place(const YAML::Mark& mark) {
  return PlaceText(static_cast<std::size_t>(mark.line) + 1,
                   static_cast<std::size_t>(mark.column) + 1);
}

// What is YAML, and no job.
class Refusal : public YAML::ParserException {
 public:
  using YAML::ParserException::ParserException;
};

// How many of the first characters are digits.
std::size_t Digits(absl::string_view text) {
  std::size_t count = 0;
  while (count < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[count]))) {
    ++count;
  }
  return count;
}

enum class Number { kNone, kWhole, kReal, kEndless };

// Of a decimal number without its sign, by the core schema:
//   [0-9]+ | ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )? | \.inf | \.nan
Number KindOf(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  if (lower == ".inf" || lower == ".nan") return Number::kEndless;
  const std::size_t whole = Digits(text);
  text.remove_prefix(whole);
  if (text.empty()) return whole > 0 ? Number::kWhole : Number::kNone;
  if (text[0] == '.') {
    text.remove_prefix(1);
    const std::size_t fraction = Digits(text);
    text.remove_prefix(fraction);
    if (whole + fraction == 0) return Number::kNone;
  } else if (whole == 0) {
    return Number::kNone;
  }
  if (text.empty()) return Number::kReal;
  if (text[0] != 'e' && text[0] != 'E') return Number::kNone;
  text.remove_prefix(1);
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return !text.empty() && Digits(text) == text.size() ? Number::kReal : Number::kNone;
}

// 0x1f, 0o17: 64 bits; else nothing.
bool ReadOtherBase(absl::string_view text, json& value) {
  const bool hex = absl::StartsWith(text, "0x");
  if (!hex && !absl::StartsWith(text, "0o")) return false;
  text.remove_prefix(2);
  const std::uint64_t base = hex ? 16 : 8;
  std::uint64_t number = 0;
  for (const char c : text) {
    const std::size_t digit = absl::string_view("0123456789abcdef").find(absl::ascii_tolower(c));
    if (digit >= base || number > UINT64_MAX / base) return false;
    number = number * base + digit;
  }
  if (text.empty()) return false;
  value = number;
  return true;
}

// What a value without quotes means. "" or why it may not stand so.
std::string ReadPlain(const std::string& text, json& value) {
  value = text;
  if (text == "true" || text == "True" || text == "TRUE") value = true;
  if (text == "false" || text == "False" || text == "FALSE") value = false;
  if (value.is_boolean() || ReadOtherBase(text, value)) return "";
  absl::string_view digits = text;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.remove_prefix(1);
  const Number kind = KindOf(digits);
  if (kind == Number::kNone) return "";
  double real = 0;
  if (kind == Number::kEndless || !absl::SimpleAtod(text, &real) || !std::isfinite(real)) {
    return absl::StrCat("must be a finite number, got ", text);
  }
  if (kind == Number::kWhole && digits.size() > 1 && digits[0] == '0') {
    return absl::StrCat("is octal in YAML 1.1 and decimal in YAML 1.2, got ", text,
                        "; leave the 0 out, or put it in quotes");
  }
  std::int64_t whole = 0;
  std::uint64_t positive = 0;
  value = real;
  if (kind == Number::kWhole && absl::SimpleAtoi(text, &whole)) {
    value = whole;
  } else if (kind == Number::kWhole && absl::SimpleAtoi(text, &positive)) {
    value = positive;
  }
  return "";
}

// What a value takes and how deep it is; a scalar is 1 deep.
struct Extent {
  std::size_t bytes = 0;
  int depth = 0;
};

Extent ExtentOf(const json& value) {
  Extent extent{sizeof(json), 0};
  if (value.is_string()) extent.bytes += value.get_ref<const std::string&>().size();
  if (value.is_structured()) {
    for (const auto& [key, member] : value.items()) {
      const Extent of_member = ExtentOf(member);
      extent.bytes += of_member.bytes + (value.is_object() ? key.size() : 0);
      extent.depth = std::max(extent.depth, of_member.depth);
    }
  }
  ++extent.depth;
  return extent;
}

// Builds the job from the parser's events. What it throws, the parser's own kind, ends in
// ReadJobYaml.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(JobText& job) : job_(job) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (WantsKey()) throw Refusal(mark, "a field without a name");
    Add(mark, json(), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (WantsKey()) throw Refusal(mark, "an alias in the place of a name");
    const auto meant = anchors_.find(anchor);
    if (meant == anchors_.end()) {
      throw Refusal(mark, "an alias inside of what it stands for");
    }
    const Extent extent = ExtentOf(meant->second);
    alias_bytes_ += extent.bytes;
    if (alias_bytes_ > kAliasBytesMax) {
      throw Refusal(mark,
                    "aliases make more than 1 MiB of this; write out what the "
                    "job needs");
    }
    if (static_cast<int>(open_.size()) + extent.depth - 1 > kJobDepthMax) {
      throw Refusal(mark, TooDeepText());
    }
    Add(mark, meant->second, YAML::NullAnchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    if (WantsKey()) return TakeKey(mark, tag, text);
    json value = text;
    const bool plain = tag == "?" || tag == "tag:yaml.org,2002:int" ||
                       tag == "tag:yaml.org,2002:float" || tag == "tag:yaml.org,2002:bool";
    if (!plain && tag != "!" && tag != "tag:yaml.org,2002:str") RefuseTag(mark, tag);
    std::string mistake;
    if (plain) mistake = ReadPlain(text, value);
    if (!mistake.empty()) job_.mistakes.emplace_back(PathHere(), mistake);
    // No second mistake for its type.
    Add(mark, mistake.empty() ? std::move(value) : json(), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    if (tag != "?" && tag != "!" && tag != "tag:yaml.org,2002:seq") RefuseTag(mark, tag);
    Open(mark, json::array(), anchor);
    ++lists_;
  }
  void OnSequenceEnd() override {
    --lists_;
    Close();
  }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    if (tag != "?" && tag != "!" && tag != "tag:yaml.org,2002:map") RefuseTag(mark, tag);
    Open(mark, json::object(), anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  // A list or an object whose end has not come.
  struct Level {
    json value;
    YAML::anchor_t anchor = YAML::NullAnchor;
    YAML::Mark mark = {};
    std::string path = {};    // of the value that comes next
    std::string prefix = {};  // of the level itself
    std::string key = {};
    bool key_known = false;
  };

  [[noreturn]] static void RefuseTag(const YAML::Mark& mark, const std::string& tag) {
    throw Refusal(mark, absl::StrCat("the tag ", tag, " is not read; leave it out"));
  }

  bool WantsKey() const {
    return !open_.empty() && open_.back().value.is_object() && !open_.back().key_known;
  }

  std::string PathHere() const { return open_.empty() ? "" : open_.back().path; }

  void TakeKey(const YAML::Mark& mark, const std::string& tag, const std::string& key) {
    if (tag == "?" && key == "<<") {
      throw Refusal(mark, "a merge key (<<) is not read; write its fields out");
    }
    Level& level = open_.back();
    level.key = key;
    level.key_known = true;
    level.path = FieldPath(level.prefix, key);
    if (lists_ == 0) job_.places.emplace(level.path, Place(mark));
    if (level.value.contains(key)) {
      job_.mistakes.emplace_back(level.path, absl::StrCat("given again in ", Place(mark)));
    }
  }

  void Open(const YAML::Mark& mark, json value, YAML::anchor_t anchor) {
    if (WantsKey()) throw Refusal(mark, "a list or a mapping in the place of a name");
    if (static_cast<int>(open_.size()) >= kJobDepthMax) {
      throw Refusal(mark, TooDeepText());
    }
    const std::string path = PathHere();
    open_.push_back({std::move(value), anchor, mark, path, path});
  }

  void Close() {
    Level level = std::move(open_.back());
    open_.pop_back();
    Add(level.mark, std::move(level.value), level.anchor);
  }

  void Add(const YAML::Mark& mark, json value, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = value;
    if (open_.empty()) {
      if (!value.is_object()) {
        throw Refusal(
            mark, absl::StrCat("must hold one job, with names and values (base_model: ...), not ",
                               value.is_array()  ? "a list"
                               : value.is_null() ? "nothing"
                                                 : "a value"));
      }
      job_.root = std::move(value);
      return;
    }
    Level& level = open_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
      return;
    }
    level.value[level.key] = std::move(value);
    level.key_known = false;
  }

  JobText& job_;
  std::vector<Level> open_;
  int lists_ = 0;  // among them
  std::map<YAML::anchor_t, json> anchors_;
  std::size_t alias_bytes_ = 0;
};

// Of a second document.
class Refuser : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    throw Refusal(mark, "a second document begins; a file holds one job");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

bool IsUtf8(absl::string_view text) {
  try {
    (void)json(text).dump();
    return true;
  } catch (const json::exception&) {
    return false;
  }
}

bool IsControl(char c) {
  return (static_cast<unsigned char>(c) < ' ' && c != '\t' && c != '\r') || c == 0x7f;
}

// The library takes bytes as they come, and the byte 4 for the end of the text.
absl::Status CheckText(absl::string_view text) {
  std::size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const auto control = std::ranges::find_if(line, IsControl);
    if (control != line.end()) {
      const auto column = static_cast<std::size_t>(control - line.begin()) + 1;
      return absl::InvalidArgumentError(
          absl::StrCat("not YAML: ", PlaceText(number, column),
                       ": a control character; is this text in UTF-8?"));
    }
    if (!IsUtf8(line)) {
      return absl::InvalidArgumentError(
          absl::StrCat("not YAML: line ", number,
                       ": is not UTF-8; iconv -f LATIN1 -t UTF-8 makes it from Latin-1"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobText> ReadJobYaml(absl::string_view text) {
  if (const absl::Status checked = CheckText(text); !checked.ok()) return checked;
  JobText job;
  std::istringstream in{std::string(text)};
  try {
    YAML::Parser parser(in);
    Builder builder(job);
    if (!parser.HandleNextDocument(builder)) {
      return absl::InvalidArgumentError("is empty; a job has base_model: ...");
    }
    Refuser refuser;
    parser.HandleNextDocument(refuser);
  } catch (const Refusal& refusal) {
    return absl::InvalidArgumentError(absl::StrCat(Place(refusal.mark), ": ", refusal.msg));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("not YAML: ", Place(error.mark), ": ", error.msg));
  }
  return job;
}

}  // namespace lorad::client
