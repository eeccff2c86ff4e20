#include "storage/jinja/evaluator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/jinja/operators.h"
#include "storage/jinja/state.h"

namespace lorad::storage::jinja {
namespace {

constexpr int kMaxValueDepth = 50;
// Of statements and expressions in each other, macros that call themselves included: each takes a
// few hundred bytes of the thread's stack.
constexpr int kMaxLevels = 2000;

}  // namespace

Evaluator::Evaluator(Variables variables, const Limits& limits) : limits_(limits) {
  scopes_.push_back(std::move(variables));
}

absl::StatusOr<Printed> Evaluator::Run(const Program& program) {
  Execute(program.statements, &printed_.text);
  if (failed()) return status_;
  return std::move(printed_);
}

Value Evaluator::Fail(std::string_view what) {
  Stop("TEMPLATE_FAILED", what);
  return Value();
}

bool Evaluator::Charge(uint64_t bytes) {
  if (failed()) return false;
  steps_ += 1 + static_cast<int64_t>(std::min<uint64_t>(bytes / kBytesPerStep, INT64_MAX / 4));
  if (steps_ <= limits_.steps) return true;
  Stop("TEMPLATE_LIMIT", absl::StrCat("it takes more than ", limits_.steps, " steps"));
  return false;
}

void Evaluator::Stop(std::string_view reason, std::string_view what) {
  if (failed()) return;
  status_ = Refuse(reason, absl::StrCat("chat template, line ", line_, ": ", Absl(what)));
}

Evaluator::Level::Level(Evaluator* evaluator) : evaluator_(*evaluator) {
  if (++evaluator_.level_ > kMaxLevels) {
    evaluator_.Stop("TEMPLATE_LIMIT", "its macros call each other too deep");
  }
}

Value Context::Keep(Value value) {
  const Extent extent = value.extent();
  if (extent.depth > kMaxValueDepth) return Fail("lists and dicts are nested too deep");
  if (extent.weight > max_text_bytes()) {
    Charge(UINT64_MAX);
    return Value();
  }
  const uint64_t items = value.is_list()   ? value.list().items.size()
                         : value.is_dict() ? value.dict().items.size()
                                           : 0;
  return Charge(items * kBytesPerStep) ? std::move(value) : Value();
}

Value Context::KeepText(std::string text) {
  if (text.size() > max_text_bytes()) Charge(UINT64_MAX);
  if (!Charge(text.size())) return Value();
  return Value::MakeText(std::move(text));
}

std::string Context::Text(const Value& value) {
  if (!Charge(value.extent().weight)) return "";
  return ToText(value);
}

absl::StatusOr<Printed> Run(const Program& program, Variables variables, const Limits& limits) {
  return Evaluator(std::move(variables), limits).Run(program);
}

}  // namespace lorad::storage::jinja
