#include "planner/scenario/fields.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;

// For messages: what stands there, cut short.
std::string Shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return absl::StrCat("a list of ", value.size());
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

bool IsPlain(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
}

std::string Child(const std::string& path, const std::string& name) {
  if (IsPlain(name)) return absl::StrCat(path, ".", name);
  return absl::StrCat(path, "[", Shown(json(name)), "]");
}

std::string Entry(const std::string& path, size_t index) {
  return absl::StrCat(path, "[", index, "]");
}

std::string Expected(const Int64Rule& rule) {
  return absl::StrCat("a whole number from ", rule.min, " to ", rule.max);
}

std::string Expected(const NumberRule& rule) {
  const bool bounded = rule.max < std::numeric_limits<double>::max();
  std::string text = rule.above_min ? absl::StrCat("a number above ", rule.min)
                                    : absl::StrCat("a number from ", rule.min, " on");
  if (bounded && rule.above_min) return absl::StrCat(text, ", up to ", rule.max);
  return bounded ? absl::StrCat("a number from ", rule.min, " to ", rule.max) : text;
}

std::string Expected(const StringRule& rule) {
  if (rule.choices.empty()) return "a text of 1 to 200 bytes";
  return absl::StrCat("one of \"", absl::StrJoin(rule.choices, "\", \""), "\"");
}

bool Accept(const json& value, const Int64Rule& rule, int64_t* out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  const int64_t number = value.get<int64_t>();
  if (number < rule.min || number > rule.max) return false;
  *out = number;
  return true;
}

bool Accept(const json& value, const NumberRule& rule, double* out) {
  if (!value.is_number()) return false;
  const double number = value.get<double>();
  if (!std::isfinite(number) || number < rule.min || number > rule.max) return false;
  if (rule.above_min && number == rule.min) return false;
  *out = number;
  return true;
}

bool Accept(const json& value, const StringRule& rule, std::string* out) {
  if (!value.is_string()) return false;
  const std::string& text = value.get_ref<const std::string&>();
  const bool fine = rule.choices.empty() ? !text.empty() && text.size() <= 200
                                         : std::find(rule.choices.begin(), rule.choices.end(),
                                                     text) != rule.choices.end();
  if (fine) *out = text;
  return fine;
}

template <class T, class Rule>
std::vector<T> Entries(const json& list, const Rule& rule, const std::string& path, T instead,
                       Violations* violations) {
  std::vector<T> values(list.size(), instead);
  for (size_t i = 0; i < list.size(); ++i) {
    if (Accept(list[i], rule, &values[i])) continue;
    violations->Add({Entry(path, i), "is " + Shown(list[i]), "give " + Expected(rule)});
  }
  return values;
}

// Follows the parser through the text: depth, and fields named twice.
class Structure : public nlohmann::json_sax<json> {
 public:
  explicit Structure(Violations* violations) : violations_(violations) {}

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(json::number_integer_t) override { return Value(); }
  bool number_unsigned(json::number_unsigned_t) override { return Value(); }
  bool number_float(json::number_float_t, const std::string&) override { return Value(); }
  bool string(std::string&) override { return Value(); }
  bool binary(json::binary_t&) override { return Value(); }
  bool start_object(std::size_t) override { return Open(); }
  bool start_array(std::size_t) override { return Open(true); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    Level& level = levels_.back();
    level.path = Child(level.base, name);
    if (!level.names.insert(name).second) {
      violations_->Add({level.path, "stands there twice", "keep one"});
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const std::string text = error.what();
    const size_t cut = text.find("] ");
    violations_->Add(
        {"$",
         absl::StrCat("is no JSON: ",
                      cut == std::string::npos ? text : text.substr(cut + 2).substr(0, 300)),
         "mend the text"});
    return false;
  }

 private:
  struct Level {
    std::string base, path;
    bool list = false;
    size_t index = 0;
    std::set<std::string> names = {};
  };

  bool Value() {
    if (!levels_.empty() && levels_.back().list) ++levels_.back().index;
    return true;
  }

  bool Open(bool list = false) {
    std::string path = "$";
    if (!levels_.empty()) {
      const Level& above = levels_.back();
      path = above.list ? Entry(above.base, above.index) : above.path;
    }
    if (levels_.size() == kScenarioDepthMax) {
      violations_->Add({path, absl::StrCat("is deeper than ", kScenarioDepthMax, " levels"),
                        "nest less; no scenario needs it"});
      return false;
    }
    levels_.push_back({path, path, list});
    return true;
  }

  bool Close() {
    levels_.pop_back();
    return Value();
  }

  std::vector<Level> levels_;
  Violations* violations_;
};

const json& EmptyObject() {
  static const json empty = json::object();
  return empty;
}

}  // namespace

std::string ToText(const Violation& violation) {
  return absl::StrCat(violation.path, ": ", violation.what, "; ", violation.mend);
}

void Violations::Add(Violation violation) {
  if (count_++ < kViolationsShown) shown_.push_back(std::move(violation));
}

absl::Status Violations::ToStatus() const {
  if (empty()) return absl::OkStatus();
  std::string text = absl::StrJoin(shown_, "\n", [](std::string* out, const Violation& violation) {
    out->append(ToText(violation));
  });
  if (count_ > shown_.size()) absl::StrAppend(&text, "\nand ", count_ - shown_.size(), " more");
  return absl::InvalidArgumentError(text);
}

absl::StatusOr<json> ParseScenario(std::string_view text) {
  Violations violations;
  if (text.size() > kScenarioBytesMax) {
    violations.Add({"$", absl::StrCat("has ", text.size(), " bytes"),
                    absl::StrCat("give at most ", kScenarioBytesMax)});
    return violations.ToStatus();
  }
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    violations.Add({"$", "is empty",
                    "write a scenario there, as examples/plans has of each kind; `lora cluster "
                    "--record FILE` writes one for schedule"});
    return violations.ToStatus();
  }
  Structure structure(&violations);
  json::sax_parse(text, &structure);
  if (!violations.empty()) return violations.ToStatus();
  json value = json::parse(text, nullptr, false);
  if (!value.is_object()) {
    violations.Add({"$", "is " + Shown(value), "give one JSON object"});
    return violations.ToStatus();
  }
  return value;
}

Fields::Fields(const json& value, std::string path, Violations* violations)
    : value_(&value), path_(std::move(path)), violations_(violations) {
  if (value.is_object()) return;
  violations_->Add({path_, "is " + Shown(value), "give an object"});
  value_ = nullptr;
}

Fields::Fields(std::string path, Violations* violations)
    : path_(std::move(path)), violations_(violations) {}

Fields::Fields(Fields&& other) noexcept
    : value_(std::exchange(other.value_, nullptr)),
      path_(std::move(other.path_)),
      violations_(other.violations_),
      asked_(std::move(other.asked_)) {}

Fields::~Fields() {
  if (value_ == nullptr) return;
  for (const auto& [name, value] : value_->items()) {
    if (asked_.contains(name)) continue;
    violations_->Add({Child(path_, name), "is not known here",
                      asked_.empty()
                          ? std::string("remove it")
                          : absl::StrCat("remove it; there are ", absl::StrJoin(asked_, ", "))});
  }
}

bool Fields::Has(const std::string& name) const {
  return value_ != nullptr && value_->contains(name);
}

std::string Fields::PathOf(const std::string& name) const {
  return name.empty() ? path_ : Child(path_, name);
}

void Fields::About() {
  const json* found = Find("about", false, "");
  if (found == nullptr) return;
  const bool lines = found->is_array() && std::all_of(found->begin(), found->end(),
                                                      [](const json& l) { return l.is_string(); });
  if (!lines) Violate("about", "is " + Shown(*found), "give a list of lines of text");
}

void Fields::Violate(const std::string& name, std::string what, std::string mend) {
  if (value_ == nullptr) return;
  violations_->Add({PathOf(name), std::move(what), std::move(mend)});
}

void Fields::ViolateEntry(const std::string& name, const std::vector<size_t>& indices,
                          std::string what, std::string mend) {
  if (value_ == nullptr) return;
  std::string path = PathOf(name);
  for (const size_t index : indices) path = Entry(path, index);
  violations_->Add({std::move(path), std::move(what), std::move(mend)});
}

// nullptr: not there, which is a violation where it is required.
const json* Fields::Find(const std::string& name, bool required, const std::string& expected) {
  if (value_ == nullptr) return nullptr;
  asked_.insert(name);
  const auto found = value_->find(name);
  if (found != value_->end()) return &*found;
  if (required) Violate(name, "is missing", "give " + expected);
  return nullptr;
}

int64_t Fields::Int64(const std::string& name, const Int64Rule& rule) {
  int64_t value = rule.fallback.value_or(rule.min);
  const json* found = Find(name, !rule.fallback.has_value(), Expected(rule));
  if (found != nullptr && !Accept(*found, rule, &value)) {
    Violate(name, "is " + Shown(*found), "give " + Expected(rule));
  }
  return value;
}

double Fields::Number(const std::string& name, const NumberRule& rule) {
  double value = rule.fallback.value_or(rule.min);
  const json* found = Find(name, !rule.fallback.has_value(), Expected(rule));
  if (found != nullptr && !Accept(*found, rule, &value)) {
    Violate(name, "is " + Shown(*found), "give " + Expected(rule));
  }
  return value;
}

bool Fields::Bool(const std::string& name, std::optional<bool> fallback) {
  const json* found = Find(name, !fallback.has_value(), "true or false");
  if (found == nullptr) return fallback.value_or(false);
  if (found->is_boolean()) return found->get<bool>();
  Violate(name, "is " + Shown(*found), "give true or false");
  return fallback.value_or(false);
}

std::string Fields::String(const std::string& name, const StringRule& rule) {
  std::string value =
      rule.fallback.value_or(rule.choices.empty() ? std::string("?") : rule.choices.front());
  const json* found = Find(name, !rule.fallback.has_value(), Expected(rule));
  if (found != nullptr && !Accept(*found, rule, &value)) {
    Violate(name, "is " + Shown(*found), "give " + Expected(rule));
  }
  return value;
}

std::string Fields::OwnName(const std::string& kind, std::set<std::string>* names) {
  const size_t before = violations();
  std::string name = String("name");
  if (value_ == nullptr || violations() > before) return name;
  if (!names->insert(name).second) {
    Violate("name", absl::StrCat("is another ", kind, "'s too"), "give each its own name");
  }
  return name;
}

const json* Fields::FindList(const std::string& name, const ListRule& list,
                             const std::string& expected) {
  const std::string what =
      absl::StrCat("a list of ", list.min, " to ", list.max, " entries, each ", expected);
  const json* found = Find(name, list.required, what);
  if (found == nullptr) return nullptr;
  if (found->is_array() && found->size() >= list.min && found->size() <= list.max) return found;
  Violate(name, "is " + Shown(*found), "give " + what);
  return nullptr;
}

std::vector<int64_t> Fields::Int64s(const std::string& name, const Int64Rule& rule,
                                    const ListRule& list) {
  const json* found = FindList(name, list, Expected(rule));
  if (found == nullptr) return {};
  return Entries<int64_t>(*found, rule, PathOf(name), rule.min, violations_);
}

std::vector<double> Fields::Numbers(const std::string& name, const NumberRule& rule,
                                    const ListRule& list) {
  const json* found = FindList(name, list, Expected(rule));
  if (found == nullptr) return {};
  return Entries<double>(*found, rule, PathOf(name), rule.min, violations_);
}

std::vector<std::string> Fields::Strings(const std::string& name, const StringRule& rule,
                                         const ListRule& list) {
  const json* found = FindList(name, list, Expected(rule));
  if (found == nullptr) return {};
  return Entries<std::string>(*found, rule, PathOf(name),
                              rule.choices.empty() ? std::string("?") : rule.choices.front(),
                              violations_);
}

namespace {

template <class T, class Rule>
std::vector<std::vector<T>> Lists(const json& lists, const Rule& rule, const ListRule& inner,
                                  const std::string& path, Violations* violations) {
  std::vector<std::vector<T>> values(lists.size());
  for (size_t i = 0; i < lists.size(); ++i) {
    const json& list = lists[i];
    if (!list.is_array() || list.size() < inner.min || list.size() > inner.max) {
      violations->Add({Entry(path, i), "is " + Shown(list),
                       absl::StrCat("give a list of ", inner.min, " to ", inner.max,
                                    " entries, each ", Expected(rule))});
      continue;
    }
    values[i] = Entries<T>(list, rule, Entry(path, i), rule.min, violations);
  }
  return values;
}

}  // namespace

std::vector<std::vector<int64_t>> Fields::Int64Lists(const std::string& name, const Int64Rule& rule,
                                                     const ListRule& inner, const ListRule& list) {
  const json* found = FindList(name, list, "a list of numbers");
  if (found == nullptr) return {};
  return Lists<int64_t>(*found, rule, inner, PathOf(name), violations_);
}

std::vector<std::vector<double>> Fields::NumberLists(const std::string& name,
                                                     const NumberRule& rule, const ListRule& inner,
                                                     const ListRule& list) {
  const json* found = FindList(name, list, "a list of numbers");
  if (found == nullptr) return {};
  return Lists<double>(*found, rule, inner, PathOf(name), violations_);
}

Fields Fields::Object(const std::string& name, bool required) {
  const json* found = Find(name, required, "an object");
  if (found != nullptr) return Fields(*found, PathOf(name), violations_);
  if (value_ == nullptr || required) return Fields(PathOf(name), violations_);
  return Fields(EmptyObject(), PathOf(name), violations_);
}

std::vector<Fields> Fields::Objects(const std::string& name, const ListRule& list) {
  std::vector<Fields> objects;
  const json* found = FindList(name, list, "an object");
  if (found == nullptr) return objects;
  objects.reserve(found->size());
  for (size_t i = 0; i < found->size(); ++i) {
    objects.emplace_back((*found)[i], Entry(PathOf(name), i), violations_);
  }
  return objects;
}

}  // namespace lorad::planner::scenario
