#include "storage/models/rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/models/rope_frequencies.h"

namespace lorad::storage {
namespace {

constexpr double kThetaLeast = 1, kThetaMost = 1e12;
constexpr int64_t kPositionsMost = 1 << 30;

// What the rest of the config says of a rope.
struct Surroundings {
  const Family& family;
  int head_size = 0;
  int64_t max_positions = 0;
  double theta = 10000;
  bool theta_given = false;
  double partial = 1;  // of a head's features, how many turn
  bool partial_given = false;
  std::optional<int64_t> original_positions = std::nullopt;
};

// original_max_position_embeddings: at the config's top before the table's own.
int64_t OriginalPositions(ConfigReader& fields, const Surroundings& around) {
  const int64_t own =
      fields.Integer("original_max_position_embeddings", 1, kPositionsMost, around.max_positions);
  return around.original_positions.value_or(own);
}

// How many times longer than before sequences may be.
double ScaleOf(ConfigReader& fields, const Surroundings& around, int64_t original) {
  const double ratio = static_cast<double>(around.max_positions) / static_cast<double>(original);
  return fields.Number("factor", 1e-6, 1e9, ratio);
}

void ReadLlama3(ConfigReader& fields, const Surroundings& around, RopeSpec& rope) {
  Llama3Scaling scaling;
  scaling.factor = static_cast<float>(fields.Number("factor", 1, 1e6));
  scaling.low_freq_factor = static_cast<float>(fields.Number("low_freq_factor", 1e-3, 1e6));
  scaling.high_freq_factor = static_cast<float>(fields.Number("high_freq_factor", 1e-3, 1e6));
  scaling.original_positions = static_cast<float>(OriginalPositions(fields, around));
  if (fields.problems().empty() && scaling.high_freq_factor <= scaling.low_freq_factor) {
    fields.Problem("rope scaling llama3: high_freq_factor must exceed low_freq_factor");
  }
  for (float& frequency : rope.inverse_frequencies) frequency = ScaleLlama3(frequency, scaling);
}

void ReadYarn(ConfigReader& fields, const Surroundings& around, RopeSpec& rope) {
  YarnScaling scaling;
  scaling.original_positions = OriginalPositions(fields, around);
  scaling.factor = ScaleOf(fields, around, scaling.original_positions);
  scaling.beta_fast = fields.Number("beta_fast", 1e-3, 1e6, 32.0);
  scaling.beta_slow = fields.Number("beta_slow", 1e-3, 1e6, 1.0);
  scaling.truncate = fields.Boolean("truncate", true);
  const double m = fields.Number("mscale", 0, 1e6, 0.0);
  const double m_all = fields.Number("mscale_all_dim", 0, 1e6, 0.0);
  const double usual = m > 0 && m_all > 0
                           ? YarnFactor(scaling.factor, m) / YarnFactor(scaling.factor, m_all)
                           : YarnFactor(scaling.factor);
  rope.factor = fields.Number("attention_factor", 1e-6, 1e6, usual);
  const int features = static_cast<int>(2 * rope.inverse_frequencies.size());
  rope.inverse_frequencies = YarnFrequencies(rope.theta, features, scaling);
}

// A number for each pair of features.
std::vector<float> ReadFactors(ConfigReader& fields, const std::string& key, size_t count) {
  std::vector<float> factors(count, 1.0f);
  const nlohmann::json* list = fields.Find(key);
  const bool numbers =
      list != nullptr && list->is_array() && list->size() == count &&
      std::all_of(list->begin(), list->end(), [](const nlohmann::json& entry) {
        return entry.is_number() && entry.get<double>() > 0 && entry.get<double>() < 1e9;
      });
  if (!numbers) {
    fields.Problem(absl::StrCat("rope scaling longrope: ", key, " must be a list of ", count,
                                " numbers over 0, one for each pair of features that turns"));
    return factors;
  }
  for (size_t i = 0; i < count; ++i) factors[i] = (*list)[i].get<float>();
  return factors;
}

void ReadLongRope(ConfigReader& fields, const Surroundings& around, RopeSpec& rope) {
  const size_t pairs = rope.inverse_frequencies.size();
  rope.original_positions = OriginalPositions(fields, around);
  rope.inverse_frequencies =
      DividedFrequencies(rope.theta, ReadFactors(fields, "short_factor", pairs));
  rope.long_frequencies = DividedFrequencies(rope.theta, ReadFactors(fields, "long_factor", pairs));
  const double scale = ScaleOf(fields, around, rope.original_positions);
  rope.factor =
      fields.Number("attention_factor", 1e-6, 1e6, LongRopeFactor(scale, rope.original_positions));
  if (rope.long_frequencies == rope.inverse_frequencies) rope.long_frequencies.clear();
}

// "type" is the older spelling; some configs carry both.
std::string TypeOf(ConfigReader& fields, const Surroundings& around) {
  const std::string older = fields.String("type", "default");
  const std::string type = fields.String("rope_type", older);
  const bool longrope = around.family.takes_longrope && (type == "su" || type == "yarn");
  return longrope ? "longrope" : type;
}

// `table`: rope_scaling or rope_parameters, or null.
RopeSpec ReadRope(ConfigReader& config, const nlohmann::json* table, const std::string& where,
                  const Surroundings& around) {
  RopeSpec rope;
  const nlohmann::json none = nlohmann::json::object();
  if (table == nullptr) table = &none;
  if (!table->is_object()) {
    config.Problem(absl::StrCat(where, " must be an object"));
    return rope;
  }
  ConfigReader fields(*table, where + ".");
  rope.type = TypeOf(fields, around);
  rope.theta = fields.Number("rope_theta", kThetaLeast, kThetaMost, around.theta);
  if (around.theta_given && rope.theta != around.theta) {
    fields.Problem(
        absl::StrCat("rope_theta is given twice, as ", around.theta, " and ", rope.theta));
  }
  const double partial = fields.Number("partial_rotary_factor", 1e-3, 1, around.partial);
  if (around.partial_given && partial != around.partial) {
    fields.Problem(absl::StrCat("partial_rotary_factor is given twice, as ", around.partial,
                                " and ", partial));
  }
  if (partial != 1 && !around.family.turns_part) {
    fields.Problem(absl::StrCat("partial_rotary_factor = ", partial,
                                ": heads of this architecture turn whole (1 is accepted)"));
  }
  const int features = static_cast<int>(around.head_size * partial);
  if (features < 2 || features % 2 != 0) {
    fields.Problem(absl::StrCat("partial_rotary_factor: ", features, " of a head's ",
                                around.head_size, " features cannot turn in pairs"));
  }
  rope.inverse_frequencies = InverseFrequencies(rope.theta, features);
  if (rope.type == "linear") {
    const auto factor = static_cast<float>(fields.Number("factor", 1e-6, 1e9));
    for (float& frequency : rope.inverse_frequencies) frequency /= factor;
  } else if (rope.type == "llama3") {
    ReadLlama3(fields, around, rope);
  } else if (rope.type == "yarn") {
    ReadYarn(fields, around, rope);
  } else if (rope.type == "longrope") {
    ReadLongRope(fields, around, rope);
  } else if (rope.type != "default") {
    // Its other fields belong to the type; naming that is enough.
    config.Problem(absl::StrCat(where, ".rope_type ", Quoted(rope.type),
                                " is not implemented (default, linear, llama3, yarn and longrope"
                                " are)"));
    return rope;
  }
  // Beside another type it says nothing.
  if (around.family.takes_longrope) fields.Ignore({"original_max_position_embeddings"});
  fields.RefuseRest();
  config.Append(fields.problems());
  return rope;
}

Surroundings ReadSurroundings(ConfigReader& config, const Family& family, int head_size,
                              int64_t max_positions) {
  Surroundings around{.family = family, .head_size = head_size, .max_positions = max_positions};
  around.theta_given = config.Has("rope_theta");
  around.theta = config.Number("rope_theta", kThetaLeast, kThetaMost, family.rope_theta);
  around.partial_given = config.Has("partial_rotary_factor");
  around.partial = config.Number("partial_rotary_factor", 1e-3, 1, 1.0);
  if (config.Has("original_max_position_embeddings")) {
    around.original_positions =
        config.Integer("original_max_position_embeddings", 1, kPositionsMost, 1);
  }
  return around;
}

// Of a family whose kinds of layers turn otherwise.
Ropes ReadByLayerType(ConfigReader& config, Surroundings around) {
  const nlohmann::json* parameters = config.Find("rope_parameters");
  const nlohmann::json* scaling = config.Find("rope_scaling");
  Surroundings local = around;
  // Without one of its own a sliding layer turns as transformers' default does; OLMo 3's as all do.
  const double usual = around.theta_given && !config.Has("rope_local_base_freq") &&
                               around.family.rope_local_theta == around.family.rope_theta
                           ? around.theta
                           : around.family.rope_local_theta;
  local.theta = config.Number("rope_local_base_freq", kThetaLeast, kThetaMost, usual);
  local.theta_given = false;
  if (parameters == nullptr) {
    return {ReadRope(config, scaling, "rope_scaling", around),
            ReadRope(config, nullptr, "rope_scaling", local)};
  }
  if (!parameters->is_object()) {
    config.Problem("rope_parameters must be an object");
    return {};
  }
  ConfigReader kinds(*parameters, "rope_parameters.");
  const nlohmann::json* full = kinds.Find("full_attention");
  const nlohmann::json* sliding = kinds.Find("sliding_attention");
  kinds.RefuseRest();
  config.Append(kinds.problems());
  return {ReadRope(config, full, "rope_parameters.full_attention", around),
          ReadRope(config, sliding, "rope_parameters.sliding_attention", local)};
}

}  // namespace

Ropes ReadRopes(ConfigReader& config, const Family& family, int head_size, int64_t max_positions) {
  Surroundings around = ReadSurroundings(config, family, head_size, max_positions);
  const nlohmann::json* parameters = config.Find("rope_parameters");
  const nlohmann::json* scaling = config.Find("rope_scaling");
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    config.Problem("rope_parameters and rope_scaling are both given; keep one");
    return {};
  }
  if (family.rope_by_layer_type) return ReadByLayerType(config, around);
  const RopeSpec rope = parameters != nullptr
                            ? ReadRope(config, parameters, "rope_parameters", around)
                            : ReadRope(config, scaling, "rope_scaling", around);
  return {rope, rope};
}

}  // namespace lorad::storage
