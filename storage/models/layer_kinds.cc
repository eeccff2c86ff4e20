#include "storage/models/layer_kinds.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace lorad::storage {
namespace {

using Windows = Family::Windows;

constexpr int64_t kLayersMost = 1 << 20;

std::string Shown(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 100);
}

// The list of a layer each under `key`; null if there is none, or another length (a problem).
// `longer`: it may go on, about layers that are not there.
const nlohmann::json* ListOf(ConfigReader& config, std::string_view key, int layers, bool longer) {
  const nlohmann::json* list = config.Find(key);
  if (list == nullptr) return nullptr;
  const auto wanted = static_cast<size_t>(layers);
  if (list->is_array() && (list->size() == wanted || (longer && list->size() > wanted))) {
    return list;
  }
  config.Problem(list->is_array()
                     ? absl::StrCat(std::string(key), " has ", list->size(),
                                    " entries, num_hidden_layers is ", layers)
                     : absl::StrCat(std::string(key), " must be a list of an entry a layer"));
  return nullptr;
}

void ReadNoPe(ConfigReader& config, std::vector<LayerKind>& kinds) {
  const int64_t interval = config.Integer("no_rope_layer_interval", 1, kLayersMost, 4);
  const nlohmann::json* list =
      ListOf(config, "no_rope_layers", static_cast<int>(kinds.size()), true);
  for (size_t i = 0; i < kinds.size(); ++i) {
    kinds[i].rope = (static_cast<int64_t>(i) + 1) % interval != 0;
    if (list == nullptr) continue;
    const nlohmann::json& turns = (*list)[i];
    if (turns != 0 && turns != 1) {
      config.Problem(absl::StrCat("no_rope_layers: ", Shown(turns),
                                  "; an entry is 1 where the layer has rope, else 0"));
      return;
    }
    kinds[i].rope = turns == 1;
  }
}

// Which layers slide where layer_types does not say so. `window`: there is one.
void SetDefaultKinds(ConfigReader& config, const Family& family, bool window,
                     std::vector<LayerKind>& kinds) {
  int64_t first = 0;
  int64_t pattern = 0;
  if (family.windows == Windows::kSwitched) {
    first = config.Integer("max_window_layers", 0, kLayersMost, 0);
  }
  if (family.windows == Windows::kPattern) {
    pattern = config.Integer("_sliding_window_pattern", 1, kLayersMost, family.window_pattern);
    pattern = config.Integer("sliding_window_pattern", 1, kLayersMost, pattern);
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    switch (family.windows) {
      case Windows::kNone:
        break;
      case Windows::kAll:
        kinds[i].sliding = window;
        break;
      case Windows::kSwitched:
        kinds[i].sliding = window && layer >= first;
        break;
      case Windows::kPattern:
        kinds[i].sliding = (layer + 1) % pattern != 0;
        break;
      case Windows::kNoPe:
        kinds[i].sliding = window && !kinds[i].rope;
        break;
    }
  }
}

void ReadLayerTypes(ConfigReader& config, std::vector<LayerKind>& kinds) {
  const nlohmann::json* list = ListOf(config, "layer_types", static_cast<int>(kinds.size()), false);
  if (list == nullptr) return;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const nlohmann::json& type = (*list)[i];
    kinds[i].sliding = type == "sliding_attention";
    if (kinds[i].sliding || type == "full_attention") continue;
    config.Problem(absl::StrCat("layer_types: ", Shown(type),
                                " is not implemented (full_attention and sliding_attention are)"));
    return;
  }
}

}  // namespace

std::vector<LayerKind> ReadLayerKinds(ConfigReader& config, const Family& family, int layers,
                                      int64_t max_positions) {
  std::vector<LayerKind> kinds(static_cast<size_t>(layers));
  if (family.windows == Windows::kNoPe) ReadNoPe(config, kinds);
  const bool switched = family.windows == Windows::kSwitched || family.windows == Windows::kNoPe;
  const bool used = config.Boolean("use_sliding_window", !switched);
  const bool there = config.Has("sliding_window");
  int64_t window = 0;
  if (there) window = config.Integer("sliding_window", 1, int64_t{1} << 40, 1);
  if (!used) window = 0;
  if (family.windows == Windows::kNone && window > 0 && window < max_positions) {
    config.Problem(absl::StrCat("sliding_window = ", window,
                                ": this architecture has no window (null is accepted)"));
  }
  SetDefaultKinds(config, family, window > 0, kinds);
  ReadLayerTypes(config, kinds);
  for (LayerKind& kind : kinds) {
    if (!kind.sliding) continue;
    if (window == 0) {
      config.Problem("layer_types names sliding_attention, but there is no sliding_window");
      break;
    }
    if (family.windows == Windows::kNone) {
      config.Problem("layer_types: \"sliding_attention\": this architecture has no window");
      break;
    }
    if (window < max_positions) kind.window = window;
  }
  return kinds;
}

}  // namespace lorad::storage
