// Reads a scenario's JSON and collects every violation, each with its path, instead of stopping at
// the first one. A field that is wrong yields its fallback (or a value inside its range), so that
// reading goes on; whoever reads asks ok() before it computes with what it read.
//
//   absl::StatusOr<Sweep> ReadSweep(const nlohmann::json& scenario) {
//     return ReadScenario<Sweep>(scenario, [](Fields& fields) {
//       Sweep sweep;
//       sweep.gpus = fields.Int64("gpus", {.min = 1, .max = 4096});
//       sweep.least = fields.Int64("least", {.min = 1, .max = 4096});
//       if (fields.ok() && sweep.least > sweep.gpus) fields.Violate("least", "is above gpus",
//       ".."); for (Fields& job : fields.Objects("jobs", {.min = 1, .max = 10000})) {
//         sweep.ranks.push_back(job.Int64("rank", {.min = 1, .max = 512, .fallback = 16}));
//       }
//       return sweep;
//     });
//   }
//
// Fields that nobody asked for are violations too, found when a Fields object dies. Every scenario
// may have "about", a list of lines for its readers: what it is, and where its figures come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorad::planner::scenario {

inline constexpr size_t kScenarioBytesMax = size_t{64} << 20;
inline constexpr int kScenarioDepthMax = 32;
inline constexpr size_t kViolationsShown = 100;  // the rest is counted

struct Violation {
  std::string path;  // "$.jobs[3].rank"
  std::string what;  // "is 0"
  std::string mend;  // "give a whole number from 1 to 512"

  bool operator==(const Violation&) const = default;
};
// "$.jobs[3].rank: is 0; give a whole number from 1 to 512"
std::string ToText(const Violation& violation);

class Violations {
 public:
  void Add(Violation violation);
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  const std::vector<Violation>& shown() const { return shown_; }
  // OK, or INVALID_ARGUMENT: one line for each.
  absl::Status ToStatus() const;

 private:
  std::vector<Violation> shown_;
  size_t count_ = 0;
};

// The text as JSON. INVALID_ARGUMENT where it is none, is empty, is not an object, names a field
// twice, is deeper than kScenarioDepthMax or longer than kScenarioBytesMax, or holds a number that
// overflows.
absl::StatusOr<nlohmann::json> ParseScenario(std::string_view text);

// The range that a value must be in, with both ends. Without `fallback` a field is required.
struct Int64Rule {
  int64_t min = 0;
  int64_t max = int64_t{1} << 53;
  std::optional<int64_t> fallback = std::nullopt;
};
struct NumberRule {
  double min = 0;
  double max = std::numeric_limits<double>::max();
  std::optional<double> fallback = std::nullopt;
  bool above_min = false;  // min itself is not allowed
};
struct StringRule {
  std::vector<std::string> choices = {};  // empty: any text of 1 to 200 bytes
  std::optional<std::string> fallback = std::nullopt;
};
// How many entries a list may have.
struct ListRule {
  size_t min = 0;
  size_t max = 100000;
  bool required = true;  // else a missing list is an empty one
};

// One JSON object being read. Not copied; must die before the Violations and the JSON it reads.
class Fields {
 public:
  Fields(const nlohmann::json& value, std::string path, Violations* violations);
  Fields(Fields&& other) noexcept;
  Fields& operator=(Fields&&) = delete;
  ~Fields();  // fields never asked for become violations

  bool Has(const std::string& name) const;          // asking so does not count as reading
  bool ok() const { return violations_->empty(); }  // of the whole scenario, so far
  // Likewise: how many. A reader that compares values with one another asks whether there are more
  // than before it read these; what is wrong elsewhere must not hide what it finds.
  size_t violations() const { return violations_->count(); }
  bool is_object() const { return value_ != nullptr; }  // else nothing is known of its fields
  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& name) const;

  int64_t Int64(const std::string& name, const Int64Rule& rule = {});
  double Number(const std::string& name, const NumberRule& rule = {});
  bool Bool(const std::string& name, std::optional<bool> fallback = std::nullopt);
  std::string String(const std::string& name, const StringRule& rule = {});
  // The field "name", which no other of its kind ("adapter") may have; `names` collects them.
  std::string OwnName(const std::string& kind, std::set<std::string>* names);

  // Lists; `rule` is of each entry (its fallback is not used).
  std::vector<int64_t> Int64s(const std::string& name, const Int64Rule& rule = {},
                              const ListRule& list = {});
  std::vector<double> Numbers(const std::string& name, const NumberRule& rule = {},
                              const ListRule& list = {});
  std::vector<std::string> Strings(const std::string& name, const StringRule& rule = {},
                                   const ListRule& list = {});
  std::vector<std::vector<int64_t>> Int64Lists(const std::string& name, const Int64Rule& rule = {},
                                               const ListRule& inner = {},
                                               const ListRule& list = {});
  std::vector<std::vector<double>> NumberLists(const std::string& name, const NumberRule& rule = {},
                                               const ListRule& inner = {},
                                               const ListRule& list = {});
  // Objects. A missing one reads as an empty object, so that its own fields' fallbacks hold, or,
  // where it is required, as one violation.
  Fields Object(const std::string& name, bool required = true);
  std::vector<Fields> Objects(const std::string& name, const ListRule& list = {});

  // Passes over the lines of "about".
  void About();

  // A violation that the reader found itself, of a field or (name empty) of the object. A value
  // that is no object gets no further violations.
  void Violate(const std::string& name, std::string what, std::string mend);
  // A violation of an entry of the list `name`; several indices lead to it through the lists in it.
  void ViolateEntry(const std::string& name, size_t index, std::string what, std::string mend) {
    ViolateEntry(name, std::vector<size_t>{index}, std::move(what), std::move(mend));
  }
  void ViolateEntry(const std::string& name, const std::vector<size_t>& indices, std::string what,
                    std::string mend);

 private:
  Fields(std::string path, Violations* violations);  // silent: absorbs what follows an error

  const nlohmann::json* Find(const std::string& name, bool required, const std::string& expected);
  const nlohmann::json* FindList(const std::string& name, const ListRule& list,
                                 const std::string& expected);

  const nlohmann::json* value_ = nullptr;  // nullptr: silent
  std::string path_;
  Violations* violations_;
  std::set<std::string> asked_;
};

// `read` (Fields& -> T) over the whole scenario: T, or every violation.
template <class T, class Read>
absl::StatusOr<T> ReadScenario(const nlohmann::json& scenario, Read read) {
  Violations violations;
  std::optional<T> result;
  {
    Fields fields(scenario, "$", &violations);
    fields.About();
    result.emplace(read(fields));
  }
  if (absl::Status status = violations.ToStatus(); !status.ok()) return status;
  return *std::move(result);
}

}  // namespace lorad::planner::scenario
