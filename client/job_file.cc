#include "client/job_file.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/calls/error.h"
#include "client/inputs/job_names.h"
#include "client/inputs/job_text.h"
#include "client/inputs/needless_names.h"
#include "client/text/nearest.h"

namespace lorad::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;

// The fields of a job that a client may set; the rest of the message is the service's.
constexpr std::array<absl::string_view, 8> kInputFields = {
    "display_name", "base_model", "training_dataset", "validation_dataset",
    "adapter",      "training",   "priority",         "labels"};

bool MayBeEpoch(const FieldDescriptor& field) {
  return field.containing_type() == lorad::v1::TrainingConfig::descriptor() &&
         (field.name() == "checkpoint_every_steps" || field.name() == "eval_every_steps");
}

// Fills a message from JSON and notes every mistake by field.
class Filler {
 public:
  // `by_epoch` may be null.
  Filler(const JobText& text, JobFormat format, EpochFields* by_epoch)
      : text_(text), format_(format), by_epoch_(by_epoch) {}

  // Passes over what only the service sets.
  void AllowOutput() { output_allowed_ = true; }
  // Lists and null replace what the message has; maps are added to.
  void Replace() { replaces_ = true; }

  void Fill(json object, const std::string& path, Message& message) {
    TakeCamelCase(*message.GetDescriptor(), path, object);
    const auto taken = TakeNames(
        path, object, [&](const std::string& at, const std::string& what) { Note(at, what); });
    written_.insert(taken.begin(), taken.end());
    for (const auto& [name, value] : object.items()) {
      const std::string at = path.empty() ? name : absl::StrCat(path, ".", name);
      const FieldDescriptor* field = FindField(*message.GetDescriptor(), name);
      if (field == nullptr) {
        Note(at, absl::StrCat("no such field", Nearest(*message.GetDescriptor(), path, name)));
      } else if (path.empty() && !Contains(field->name())) {
        if (!value.is_null() && !output_allowed_) Note(at, OutputText(name));
      } else {
        const bool list = field->is_repeated() && !field->is_map();
        if (replaces_ && (list || value.is_null())) {
          message.GetReflection()->ClearField(&message, field);
        }
        const bool may_be_epoch = by_epoch_ != nullptr && MayBeEpoch(*field);
        if (may_be_epoch) by_epoch_->erase(field->name());
        if (may_be_epoch && value == "epoch") {
          message.GetReflection()->ClearField(&message, field);
          by_epoch_->insert(field->name());
        } else if (!value.is_null()) {
          Set(value, at, *field, message);
        }
      }
    }
  }

  // A field that was given by another library's name is told by that name. Of two names, as in
  // "training.a x b", the first one's line is told.
  void Note(const std::string& field, absl::string_view what) {
    const auto written = written_.find(field);
    const std::string& path = written == written_.end() ? field : written->second;
    // What is written wrong has no value that could be of the wrong type.
    if (told_.contains(path)) return;
    const auto place = text_.places.find(path.substr(0, path.find(' ')));
    violations_.push_back(place == text_.places.end()
                              ? absl::StrCat(path, ": ", what)
                              : absl::StrCat(path, ": ", place->second, ": ", what));
  }

  // What is wrong with how the file is written.
  void NoteMistakes() {
    for (const auto& [path, what] : text_.mistakes) Note(path, what);
    for (const auto& [path, what] : text_.mistakes) told_.insert(path);
  }

  const std::vector<std::string>& violations() const { return violations_; }

  static bool Contains(absl::string_view name) {
    return std::find(kInputFields.begin(), kInputFields.end(), name) != kInputFields.end();
  }

  static const FieldDescriptor* FindField(const Descriptor& type, const std::string& name) {
    const FieldDescriptor* field = type.FindFieldByName(name);
    return field != nullptr ? field : type.FindFieldByCamelcaseName(name);
  }

 private:
  // The proto's names in the place of their camelCase, so that they meet other names of the field.
  void TakeCamelCase(const Descriptor& type, const std::string& path, json& object) {
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const auto camel = object.find(field.camelcase_name());
      if (camel == object.end() || field.camelcase_name() == field.name()) continue;
      const std::string begin = path.empty() ? "" : absl::StrCat(path, ".");
      const std::string at = absl::StrCat(begin, field.camelcase_name());
      if (object.contains(field.name())) Note(at, absl::StrCat("is ", field.name(), " again"));
      written_.emplace(absl::StrCat(begin, field.name()), at);
      json value = *camel;
      object.erase(camel);
      object[field.name()] = std::move(value);
    }
  }

  // The field that is meant: by a name that is near, ours or another library's, or in another
  // section.
  static std::string Nearest(const Descriptor& type, absl::string_view section,
                             absl::string_view name) {
    std::string best;
    std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
    const auto consider = [&](absl::string_view candidate, absl::string_view meant) {
      const std::size_t distance = EditDistance(name, candidate);
      if (distance >= best_distance) return;
      best_distance = distance;
      best = std::string(meant);
    };
    for (const JobName& likely : LikelyNames()) {
      if (likely.name == name) {
        return absl::StrCat("; did you mean ", likely.section == section ? "" : likely.section,
                            likely.section == section ? "" : ".", likely.field, "?");
      }
    }
    for (const absl::string_view other : {"adapter", "training", ""}) {
      if (other == section) continue;
      const std::string meant = FieldOf(other, name);
      if (!meant.empty()) return absl::StrCat("; did you mean ", meant, "?");
    }
    for (int i = 0; i < type.field_count(); ++i) {
      const std::string& field = type.field(i)->name();
      if (!section.empty() || Contains(field)) consider(field, field);
    }
    // A name of one or two letters is near to everything short.
    for (const JobName& other : JobNames()) {
      if (other.section == section && other.name.size() > 2) consider(other.name, other.field);
    }
    return best.empty() ? "" : absl::StrCat("; did you mean ", best, "?");
  }

  static std::string OutputText(const std::string& name) {
    for (const absl::string_view section : {"adapter", "training"}) {
      const std::string meant = FieldOf(section, name);
      if (!meant.empty()) {
        return absl::StrCat("is set by the service; did you mean ", meant, "?");
      }
    }
    return "is set by the service; leave it out";
  }

  // The path of the field that has this very name in the section, or ""
  static std::string FieldOf(absl::string_view section, absl::string_view name) {
    const Descriptor* type = lorad::v1::Job::descriptor();
    if (!section.empty()) type = type->FindFieldByName(std::string(section))->message_type();
    std::string field;
    if (type->FindFieldByName(std::string(name)) != nullptr &&
        (!section.empty() || Contains(name))) {
      field = std::string(name);
    }
    for (const JobName& other : JobNames()) {
      if (other.section == section && other.name == name) field = std::string(other.field);
    }
    for (const NeedlessName& other : NeedlessNames()) {
      if (other.section == section && other.name == name) field = std::string(name);
    }
    if (field.empty() || section.empty()) return field;
    return absl::StrCat(absl::string_view(section), ".", field);
  }

  void Set(const json& value, const std::string& at, const FieldDescriptor& field,
           Message& message) {
    if (field.is_map()) return SetMap(value, at, field, message);
    if (!field.is_repeated()) return SetValue(value, at, field, message);
    if (!value.is_array()) return Wrong(at, "a list", value);
    for (const json& element : value) SetValue(element, at, field, message);
  }

  void SetMap(const json& value, const std::string& at, const FieldDescriptor& field,
              Message& message) {
    const FieldDescriptor& entry_value = *field.message_type()->map_value();
    const bool numbers = entry_value.cpp_type() != FieldDescriptor::CPPTYPE_STRING;
    if (!value.is_object()) {
      return Wrong(at, numbers ? "an object of numbers" : "an object of strings", value);
    }
    for (const auto& [key, item] : value.items()) {
      Message* entry = message.GetReflection()->AddMessage(&message, &field);
      entry->GetReflection()->SetString(entry, field.message_type()->map_key(), key);
      SetValue(item, absl::StrCat(at, ".", key), entry_value, *entry);
    }
  }

  void SetValue(const json& value, const std::string& at, const FieldDescriptor& field,
                Message& message) {
    const auto& reflection = *message.GetReflection();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32: {
        const auto number = Integer<std::int32_t>(value);
        if (!number) return Wrong(at, WholeText(field, value), value);
        if (field.is_repeated()) return reflection.AddInt32(&message, &field, *number);
        return reflection.SetInt32(&message, &field, *number);
      }
      case FieldDescriptor::CPPTYPE_UINT64: {
        const auto number = Integer<std::uint64_t>(value);
        if (!number) return Wrong(at, "a whole number from 0 to 2^64 - 1", value);
        return reflection.SetUInt64(&message, &field, *number);
      }
      case FieldDescriptor::CPPTYPE_DOUBLE:
        if (double number = 0;
            value.is_string() && absl::SimpleAtod(value.get<std::string>(), &number)) {
          return reflection.SetDouble(&message, &field, number);
        }
        if (!value.is_number()) return Wrong(at, "a number", value);
        return reflection.SetDouble(&message, &field, value.get<double>());
      case FieldDescriptor::CPPTYPE_BOOL:
        if (!value.is_boolean()) return Wrong(at, "true or false", value);
        return reflection.SetBool(&message, &field, value.get<bool>());
      case FieldDescriptor::CPPTYPE_STRING:
        if (!value.is_string()) return WrongString(at, value);
        if (field.is_repeated()) {
          return reflection.AddString(&message, &field, value.get<std::string>());
        }
        return reflection.SetString(&message, &field, value.get<std::string>());
      case FieldDescriptor::CPPTYPE_ENUM:
        return SetEnum(value, at, field, message);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (!value.is_object()) return Wrong(at, "an object", value);
        return Fill(value, at,
                    field.is_repeated() ? *reflection.AddMessage(&message, &field)
                                        : *reflection.MutableMessage(&message, &field));
      default:
        return Note(at, "cannot be given in a job file");
    }
  }

  static absl::string_view WholeText(const FieldDescriptor& field, const json& value) {
    const bool part = field.name() == "epochs" && value.is_number();
    if (MayBeEpoch(field)) return "a whole number of 32 bits, or \"epoch\"";
    return part ? "a whole number (max_steps ends a job within an epoch)"
                : "a whole number of 32 bits";
  }

  void SetEnum(const json& value, const std::string& at, const FieldDescriptor& field,
               Message& message) {
    const google::protobuf::EnumDescriptor& type = *field.enum_type();
    const google::protobuf::EnumValueDescriptor* found = nullptr;
    if (value.is_string()) {
      found = type.FindValueByName(absl::AsciiStrToUpper(value.get<std::string>()));
    }
    if (found == nullptr) {
      std::vector<std::string> names;
      for (int i = 0; i < type.value_count(); ++i) {
        if (type.value(i)->number() != 0) names.push_back(type.value(i)->name());
      }
      return Wrong(at, absl::StrCat("one of ", absl::StrJoin(names, ", ")), value);
    }
    message.GetReflection()->SetEnum(&message, &field, found);
  }

  // Whole numbers, also as proto3 JSON may write them: 1e3, 5.0, "5".
  template <typename T>
  static std::optional<T> Integer(const json& value) {
    T number = 0;
    if (value.is_string()) {
      return absl::SimpleAtoi(value.get<std::string>(), &number) ? std::optional<T>(number)
                                                                 : std::nullopt;
    }
    if (value.is_number_unsigned()) {
      const auto wide = value.get<std::uint64_t>();
      if (wide > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) return std::nullopt;
      return static_cast<T>(wide);
    }
    if (!value.is_number()) return std::nullopt;
    const double real = value.get<double>();
    // 2^digits is exact as a double, max() of 64 bits is not.
    const double limit = std::ldexp(1.0, std::numeric_limits<T>::digits);
    if (real != std::floor(real) || real >= limit ||
        real < static_cast<double>(std::numeric_limits<T>::min())) {
      return std::nullopt;
    }
    return static_cast<T>(real);
  }

  void Wrong(const std::string& at, absl::string_view wanted, const json& value) {
    std::string given = value.dump(-1, ' ', false, json::error_handler_t::replace);
    if (given.size() > 40) given = absl::StrCat(given.substr(0, 37), "...");
    Note(at, absl::StrCat("must be ", wanted, ", got ", given));
  }

  // What has no quotes is text in YAML until it looks like something else.
  void WrongString(const std::string& at, const json& value) {
    const bool quotes = format_ == JobFormat::kYaml && value.is_primitive();
    Wrong(at, quotes ? "a string, in quotes" : "a string", value);
  }

  const JobText& text_;
  const JobFormat format_;
  EpochFields* const by_epoch_;
  bool output_allowed_ = false;
  bool replaces_ = false;
  std::map<std::string, std::string> written_;  // a field's path -> as the user wrote it
  std::set<std::string> told_;
  std::vector<std::string> violations_;
};

// A job as `lora show --json` prints it, in whole.
bool IsShown(const json& root) {
  return root.contains("etag") && root.contains("create_time") && root.contains("state");
}

absl::Status BadFields(absl::string_view where, const std::vector<std::string>& violations) {
  if (violations.empty()) return absl::OkStatus();
  return Error("BAD_JOB_FILE",
               absl::StrCat(where, ": ", violations.size(),
                            violations.size() == 1 ? " field is wrong" : " fields are wrong"),
               absl::StrJoin(violations, "\n"));
}

// What is text needs no quotes, all else is JSON, or text for who reads it to judge.
json SettingValue(const std::string& text, bool is_text) {
  if (is_text) return text;
  json value = json::parse(text, nullptr, false);
  return value.is_discarded() ? json(text) : value;
}

// Puts the value at its path. The key of a map is all that follows its name, dots as well.
void PutSetting(std::string path, const std::string& text, json* root) {
  const Descriptor* type = lorad::v1::Job::descriptor();
  json* object = root;
  std::string section;
  while (true) {
    const std::size_t dot = path.find('.');
    const std::string name = path.substr(0, dot);
    const FieldDescriptor* field = type == nullptr ? nullptr : Filler::FindField(*type, name);
    if (field == nullptr) {
      for (const JobName& other : JobNames()) {
        if (type == nullptr || other.section != section || other.name != name) continue;
        field = type->FindFieldByName(std::string(other.field));
      }
    }
    if (dot == std::string::npos) {
      const bool is_text = field != nullptr && !field->is_repeated() &&
                           field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
      (*object)[name] = SettingValue(text, is_text);
      return;
    }
    path.erase(0, dot + 1);
    object = &(*object)[name];
    if (!object->is_object()) *object = json::object();
    if (field != nullptr && field->is_map()) {
      const bool is_text =
          field->message_type()->map_value()->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
      (*object)[path] = SettingValue(text, is_text);
      return;
    }
    const bool is_section = field != nullptr && !field->is_repeated() &&
                            field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    type = is_section ? field->message_type() : nullptr;
    section = name;
  }
}

}  // namespace

absl::StatusOr<lorad::v1::Job> ParseJob(absl::string_view text, absl::string_view file_name,
                                        JobFormat format, EpochFields* by_epoch) {
  absl::StatusOr<JobText> read = ReadJobText(format, text, file_name);
  if (!read.ok()) return read.status();
  lorad::v1::Job job;
  Filler filler(*read, format, by_epoch);
  const bool shown = IsShown(read->root);
  if (shown) filler.AllowOutput();
  filler.NoteMistakes();
  filler.Fill(read->root, "", job);
  if (absl::Status status = BadFields(file_name, filler.violations()); !status.ok()) return status;
  if (shown) return InputOf(job);
  return job;
}

lorad::v1::Job InputOf(lorad::v1::Job job) {
  const Descriptor& type = *lorad::v1::Job::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    if (Filler::Contains(type.field(i)->name())) continue;
    job.GetReflection()->ClearField(&job, type.field(i));
  }
  job.mutable_adapter()->clear_modules();
  return job;
}

absl::Status SetFields(const std::vector<std::string>& settings, lorad::v1::Job& job,
                       EpochFields* by_epoch) {
  if (settings.empty()) return absl::OkStatus();
  JobText text;
  text.root = json::object();
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return Error("USAGE", absl::StrCat("--set wants FIELD=VALUE, as in "
                                         "training.learning_rate=1e-3, got '",
                                         setting, "'"));
    }
    PutSetting(setting.substr(0, equals), setting.substr(equals + 1), &text.root);
  }
  Filler filler(text, JobFormat::kJson, by_epoch);
  filler.Replace();
  filler.Fill(text.root, "", job);
  return BadFields("--set", filler.violations());
}

}  // namespace lorad::client
