#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/inputs/job_formats.h"

namespace lorad::client {
namespace {

using nlohmann::json;

// Reads characters and counts lines, so that the key just parsed can be placed.
struct LineCounter {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  int* line;

  reference operator*() const { return *at; }
  LineCounter& operator++() {
    if (*at++ == '\n') ++*line;
    return *this;
  }
  LineCounter operator++(int) {
    LineCounter before = *this;
    ++*this;
    return before;
  }
  bool operator==(const LineCounter& other) const { return at == other.at; }
  bool operator!=(const LineCounter& other) const { return at != other.at; }
};

// A first pass over the text: the line of every key that is in no list, keys given twice, and the
// parser's own complaint.
class KeyLines : public nlohmann::json_sax<json> {
 public:
  explicit KeyLines(const int& line) : line_(line) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(std::size_t) override {
    ++lists_;
    return Deeper();
  }
  bool end_array() override {
    --lists_;
    --depth_;
    return true;
  }
  bool start_object(std::size_t) override {
    path_.emplace_back();
    return Deeper();
  }
  bool end_object() override {
    --depth_;
    path_.pop_back();
    return true;
  }
  bool key(string_t& key) override {
    path_.back() = key;
    if (lists_ > 0) return true;
    const std::string path = absl::StrJoin(path_, ".");
    if (!lines.emplace(path, absl::StrCat("line ", line_)).second) twice.emplace(path, line_);
    return true;
  }
  bool parse_error(std::size_t, const std::string& token,
                   const nlohmann::detail::exception& e) override {
    constexpr int kTooLarge = 406;  // a number that no double holds
    if (e.id == kTooLarge && !path_.empty()) {
      endless = {absl::StrJoin(path_, "."), absl::StrCat("must be a finite number, got ", token)};
      return false;
    }
    const absl::string_view what(e.what());
    const std::size_t tag = what.find("] ");
    complaint =
        absl::StrCat("not JSON: ", what.substr(tag == absl::string_view::npos ? 0 : tag + 2));
    return false;
  }

  std::map<std::string, std::string> lines;
  std::map<std::string, int> twice;
  std::string complaint;
  std::pair<std::string, std::string> endless;  // the field whose number it is, and what is wrong

 private:
  bool Deeper() {
    if (++depth_ <= kJobDepthMax) return true;
    complaint = absl::StrCat("line ", line_, ": ", TooDeepText());
    return false;
  }

  const int& line_;
  int depth_ = 0;
  int lists_ = 0;  // around this place
  std::vector<std::string> path_;
};

}  // namespace

absl::StatusOr<JobText> ReadJobJson(absl::string_view text) {
  if (absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError("is empty; a job has {\"base_model\": ...}");
  }
  int line = 1;
  KeyLines keys(line);
  const LineCounter begin{text.data(), &line};
  const LineCounter end{text.data() + text.size(), &line};
  JobText job;
  if (!json::sax_parse(begin, end, &keys)) {
    if (keys.endless.first.empty()) return absl::InvalidArgumentError(keys.complaint);
    job.root = json::object();
    job.places = std::move(keys.lines);
    job.mistakes = {keys.endless};
    return job;
  }
  job.root = json::parse(text.begin(), text.end());
  if (!job.root.is_object()) {
    return absl::InvalidArgumentError("must hold one JSON object, {\"base_model\": ...}");
  }
  job.places = std::move(keys.lines);
  for (const auto& [path, second] : keys.twice) {
    job.mistakes.emplace_back(path, absl::StrCat("given again in line ", second));
  }
  return job;
}

}  // namespace lorad::client
