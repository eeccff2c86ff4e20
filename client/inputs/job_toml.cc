// The parser is Debian's library, not compiled again here.
#define TOML_HEADER_ONLY 0
#include <toml++/toml.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/inputs/job_formats.h"

namespace lorad::client {
namespace {

using nlohmann::json;

// The library makes and ends tables by recursion, a level a dot of a name ("a.b.c = 1"): a line
// has at most so many, which takes 1 MiB of stack.
constexpr int kDotsMax = 4096;

absl::Status CheckDots(absl::string_view text) {
  std::size_t line = 1;
  int dots = 0;
  for (const char c : text) {
    if (c == '.' && ++dots > kDotsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", line, ": more than ", kDotsMax, " dots in a line"));
    }
    if (c == '\n') {
      ++line;
      dots = 0;
    }
  }
  return absl::OkStatus();
}

std::string Place(const toml::source_region& region) {
  return PlaceText(region.begin.line, region.begin.column);
}

// Tables as objects; notes where fields stand.
class Reader {
 public:
  explicit Reader(JobText& job) : job_(job) {}

  // False where it is nested too deep; deep_at() then says where.
  bool Read(const toml::node& node, const std::string& path, int depth, json& value) {
    if (depth > kJobDepthMax) {
      deep_at_ = Place(node.source());
      return false;
    }
    if (const toml::table* table = node.as_table()) {
      value = json::object();
      for (const auto& [key, member] : *table) {
        const std::string at = FieldPath(path, absl::string_view(key.data(), key.length()));
        if (lists_ == 0) job_.places.emplace(at, Place(key.source()));
        if (!Read(member, at, depth + 1, value[std::string(key.str())])) return false;
      }
      return true;
    }
    if (const toml::array* array = node.as_array()) {
      value = json::array();
      ++lists_;
      for (const toml::node& element : *array) {
        if (!Read(element, path, depth + 1, value.emplace_back())) return false;
      }
      --lists_;
      return true;
    }
    ReadScalar(node, path, value);
    return true;
  }

  const std::string& deep_at() const { return deep_at_; }

 private:
  void ReadScalar(const toml::node& node, const std::string& path, json& value) {
    if (const auto* text = node.as_string()) {
      value = text->get();
    } else if (const auto* whole = node.as_integer()) {
      value = whole->get();
    } else if (const auto* truth = node.as_boolean()) {
      value = truth->get();
    } else if (const auto* real = node.as_floating_point()) {
      if (std::isfinite(real->get())) {
        value = real->get();
      } else {
        job_.mistakes.emplace_back(path, "must be a finite number");
      }
    } else {
      job_.mistakes.emplace_back(path, "is a date or a time in TOML; put it in quotes");
    }
  }

  JobText& job_;
  int lists_ = 0;  // around this place
  std::string deep_at_;
};

}  // namespace

absl::StatusOr<JobText> ReadJobToml(absl::string_view text) {
  if (const absl::Status dots = CheckDots(text); !dots.ok()) return dots;
  toml::table root;
  try {
    root = toml::parse(std::string_view(text.data(), text.size()));
  } catch (const toml::parse_error& error) {
    const std::string_view what = error.description();
    return absl::InvalidArgumentError(absl::StrCat("not TOML: ", Place(error.source()), ": ",
                                                   absl::string_view(what.data(), what.size())));
  }
  if (root.empty()) return absl::InvalidArgumentError("is empty; a job has base_model = \"...\"");
  JobText job;
  Reader reader(job);
  if (!reader.Read(root, "", 1, job.root)) {
    return absl::InvalidArgumentError(absl::StrCat(reader.deep_at(), ": ", TooDeepText()));
  }
  return job;
}

}  // namespace lorad::client
