#include "storage/datasets/value_builder.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace lorad::storage {

using jinja::Value;

void ValueBuilder::Fail(std::string what) {
  if (error_.empty()) error_ = std::move(what);
}

void ValueBuilder::Add(Value value) {
  if (++values_ > limits_.values) {
    Fail(absl::StrCat(" has more than ", limits_.values, " values"));
  }
  if (!error_.empty()) return;
  if (open_.empty()) {
    done_ = std::move(value);
  } else if (open_.back().object) {
    open_.back().dict.Append(std::move(open_.back().key), std::move(value));
  } else {
    open_.back().items.push_back(std::move(value));
  }
}

void ValueBuilder::Begin(bool object) { open_.emplace_back().object = object; }

void ValueBuilder::Key(const std::string& key) {
  Open& open = open_.back();
  if (!open.keys.insert(key).second) {
    // The item of the list that is the whole value: a message, a tool.
    const std::string item =
        open_.size() > 1 && !open_[0].object ? absl::StrCat("[", open_[0].items.size(), "]") : "";
    Fail(absl::StrCat(item, " has \"", key.substr(0, 40), "\" twice"));
  }
  if (static_cast<int>(open.keys.size()) > limits_.keys) {
    Fail(absl::StrCat(" has an object of more than ", limits_.keys, " keys"));
  }
  open.key = key;
}

void ValueBuilder::End() {
  Open open = std::move(open_.back());
  open_.pop_back();
  Add(open.object ? Value::MakeDict(std::move(open.dict)) : Value::MakeList(std::move(open.items)));
}

namespace {

constexpr size_t kDepthMax = 32;

// Hands a whole text to a builder.
class ValueHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit ValueHandler(ValueBuilder* builder) : builder_(*builder) {}

  bool null() override { return Add(Value::MakeNone()); }
  bool boolean(bool value) override { return Add(Value::MakeBool(value)); }
  bool number_integer(int64_t value) override { return Add(Value::MakeInt(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) return false;
    return Add(Value::MakeInt(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string&) override {
    return Add(Value::MakeFloat(value));
  }
  bool binary(binary_t&) override { return false; }
  bool string(std::string& value) override { return Add(Value::MakeText(std::move(value))); }
  bool key(std::string& value) override {
    builder_.Key(value);
    return builder_.error().empty();
  }
  bool start_object(size_t) override { return Begin(true); }
  bool start_array(size_t) override { return Begin(false); }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  bool Add(Value value) {
    builder_.Add(std::move(value));
    return builder_.error().empty();
  }
  bool Begin(bool object) {
    builder_.Begin(object);
    return ++depth_ <= kDepthMax;
  }
  bool End() {
    --depth_;
    builder_.End();
    return builder_.error().empty();
  }

  ValueBuilder& builder_;
  size_t depth_ = 0;
};

}  // namespace

absl::StatusOr<Value> ParseValue(std::string_view text, const ValueLimits& limits) {
  ValueBuilder builder(limits);
  ValueHandler handler(&builder);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &handler)) return builder.Take();
  return absl::InvalidArgumentError(builder.error().empty() ? "not JSON" : builder.error());
}

}  // namespace lorad::storage
