#include "server/validation/job_filter.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "server/validation/names.h"

namespace lorad::server {
namespace {

// "VALIDATING, QUEUED, .. or FAILED": all but that of no job.
std::string StatesText() {
  const auto& states = *v1::Job::State_descriptor();
  std::vector<std::string> names;
  for (int i = 0; i < states.value_count(); ++i) {
    if (states.value(i)->number() != v1::Job::STATE_UNSPECIFIED) {
      names.emplace_back(states.value(i)->name());
    }
  }
  const std::string last = std::move(names.back());
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " or ", last);
}

constexpr char kLabels[] = "labels.";
constexpr size_t kLabelsBytes = sizeof(kLabels) - 1;

using TextField = const std::string& (v1::Job::*)() const;
struct NamedField {
  const char* name;
  TextField get;
};
constexpr std::array<NamedField, 4> kTextFields = {{
    {"base_model", &v1::Job::base_model},
    {"training_dataset", &v1::Job::training_dataset},
    {"validation_dataset", &v1::Job::validation_dataset},
    {"display_name", &v1::Job::display_name},
}};

bool IsWord(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-' ||
         c == '/' || c == ':';
}

std::string Value(const v1::Job& job, const std::string& field) {
  if (field == "state") return v1::Job::State_Name(job.state());
  for (const NamedField& known : kTextFields) {
    if (field == known.name) return (job.*known.get)();
  }
  const auto label = job.labels().find(field.substr(kLabelsBytes));
  return label == job.labels().end() ? "" : label->second;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  absl::StatusOr<std::vector<JobFilter::Term>> Terms() {
    std::vector<JobFilter::Term> terms;
    SkipBlanks();
    if (AtEnd()) return terms;
    while (true) {
      if (terms.size() == kFilterTermsMax) {
        return Wrong(absl::StrCat("must have at most ", kFilterTermsMax, " terms"));
      }
      JobFilter::Term term;
      if (absl::Status status = ParseTerm(term); !status.ok()) return status;
      terms.push_back(std::move(term));
      SkipBlanks();
      if (AtEnd()) return terms;
      if (Word() != "AND") return WrongBefore("AND must stand between two terms");
      SkipBlanks();
    }
  }

 private:
  absl::Status ParseTerm(JobFilter::Term& term) {
    term.field = Word();
    const bool label = absl::StartsWith(term.field, kLabels) && term.field.size() > kLabelsBytes;
    const bool known = term.field == "state" ||
                       std::any_of(kTextFields.begin(), kTextFields.end(),
                                   [&](const NamedField& f) { return term.field == f.name; });
    if (!label && !known) {
      return WrongBefore(
          "a field must stand here: state, base_model, training_dataset, validation_dataset, "
          "display_name or labels.KEY");
    }
    if (label) {
      const std::string wrong = CheckLabelKey(term.field.substr(kLabelsBytes));
      if (!wrong.empty()) return WrongBefore(wrong);
    }
    SkipBlanks();
    if (!AtEnd() && text_[at_] == '=') {
      at_ += 1;
    } else if (text_.compare(at_, 2, "!=") == 0) {
      term.equal = false;
      at_ += 2;
    } else {
      return Wrong(label ? "= or != must stand here, behind a key of lower-case letters, digits, "
                           "'.', '_', '/' and '-'"
                         : "= or != must stand here");
    }
    SkipBlanks();
    if (absl::Status status = ParseValue(term.value); !status.ok()) return status;
    v1::Job::State state;
    if (term.field == "state" &&
        (!v1::Job::State_Parse(term.value, &state) || state == v1::Job::STATE_UNSPECIFIED)) {
      return WrongBefore(absl::StrCat("a state must stand here: ", StatesText()));
    }
    return absl::OkStatus();
  }

  absl::Status ParseValue(std::string& value) {
    token_ = at_;
    if (AtEnd() || text_[at_] != '"') {
      value = Word();
      return value.empty() ? Wrong("a value must stand here: a word, or text in double quotes")
                           : absl::OkStatus();
    }
    for (at_ += 1; !AtEnd() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      value += text_[at_];
    }
    if (AtEnd()) return WrongBefore("the double quotes that begin here must end");
    at_ += 1;
    return absl::OkStatus();
  }

  bool AtEnd() const { return at_ == text_.size(); }

  void SkipBlanks() {
    while (!AtEnd() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  std::string Word() {
    token_ = at_;
    while (!AtEnd() && IsWord(text_[at_])) ++at_;
    return text_.substr(token_, at_ - token_);
  }

  absl::Status Wrong(const std::string& what) const { return WrongAt(at_, what); }
  absl::Status WrongBefore(const std::string& what) const { return WrongAt(token_, what); }
  static absl::Status WrongAt(size_t at, const std::string& what) {
    return InvalidFields("request", {{"filter", absl::StrCat("column ", at + 1, ": ", what)}});
  }

  const std::string& text_;
  size_t at_ = 0;
  size_t token_ = 0;  // where the last word or value began
};

}  // namespace

absl::StatusOr<JobFilter> JobFilter::Parse(const std::string& text) {
  if (text.size() > kFilterBytesMax) {
    return InvalidFields("request", {{"filter", absl::StrCat("must have at most ", kFilterBytesMax,
                                                             " bytes, got ", text.size())}});
  }
  absl::StatusOr<std::vector<Term>> terms = Parser(text).Terms();
  if (!terms.ok()) return terms.status();
  JobFilter filter;
  filter.terms_ = *std::move(terms);
  return filter;
}

bool JobFilter::MayMatch(v1::Job::State state) const {
  return std::all_of(terms_.begin(), terms_.end(), [&](const Term& term) {
    return term.field != "state" || (v1::Job::State_Name(state) == term.value) == term.equal;
  });
}

bool JobFilter::Matches(const v1::Job& job) const {
  return std::all_of(terms_.begin(), terms_.end(), [&](const Term& term) {
    return (Value(job, term.field) == term.value) == term.equal;
  });
}

}  // namespace lorad::server
