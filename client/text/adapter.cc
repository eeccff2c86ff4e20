#include "client/text/adapter.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace lorad::client {
namespace {

std::string LayersText(const v1::AdapterModules& modules) {
  if (modules.layers().empty()) return "all layers";
  return absl::StrCat(modules.layers_size() == 1 ? "layer " : "layers ",
                      absl::StrJoin(modules.layers(), ", "));
}

// "q_proj: 9, v_proj: 4", sorted by pattern: the order in which PEFT's files have them.
template <class Pattern>
std::string PatternText(const Pattern& pattern) {
  using Key = typename Pattern::key_type;
  using Value = typename Pattern::mapped_type;
  const std::map<Key, Value> sorted(pattern.begin(), pattern.end());
  return absl::StrJoin(sorted, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppendFormat(out, "%s: %g", entry.first, static_cast<double>(entry.second));
  });
}

// "  q_proj", "rank 9, alpha 8, in layers 0, 2".
void AddModules(const v1::AdapterConfig& adapter, Table& table) {
  for (const v1::AdapterModules& modules : adapter.modules()) {
    table.Add({"  " + modules.target(), absl::StrFormat("rank %d, alpha %g, in %s", modules.rank(),
                                                        modules.alpha(), LayersText(modules))});
  }
}

}  // namespace

std::string TargetsText(const v1::AdapterConfig& adapter) {
  std::string text =
      adapter.target_regex().empty()
          ? JoinText({adapter.target_modules().begin(), adapter.target_modules().end()})
          : adapter.target_regex();
  if (adapter.exclude_modules_size() > 0) {
    absl::StrAppend(&text, ", without ",
                    JoinText({adapter.exclude_modules().begin(), adapter.exclude_modules().end()}));
  }
  if (!adapter.exclude_regex().empty())
    absl::StrAppend(&text, ", without ", adapter.exclude_regex());
  return text;
}

void AddPatterns(const v1::AdapterConfig& adapter, Table& table) {
  if (!adapter.layers_to_transform().empty()) {
    table.Add({"layers", absl::StrJoin(adapter.layers_to_transform(), ", ")});
  }
  if (!adapter.rank_pattern().empty()) {
    table.Add({"rank pattern", PatternText(adapter.rank_pattern())});
  }
  if (!adapter.alpha_pattern().empty()) {
    table.Add({"alpha pattern", PatternText(adapter.alpha_pattern())});
  }
  AddModules(adapter, table);
}

void AddAdapter(const v1::AdapterConfig& adapter, Table& table) {
  table.Add(
      {"adapter",
       absl::StrFormat("rank %d, alpha %g, scaled by alpha / %s, dropout %g, on %s", adapter.rank(),
                       adapter.alpha(), adapter.use_rslora() ? "sqrt(rank)" : "rank",
                       adapter.dropout(), TargetsText(adapter))});
  table.Add({"begins as", absl::StrCat(adapter.init_from().empty() ? "PEFT's initialization"
                                                                   : adapter.init_from(),
                                       ", seed ", adapter.seed())});
  AddPatterns(adapter, table);
}

}  // namespace lorad::client
