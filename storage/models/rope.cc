#include "storage/models/rope.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

struct Llama3Scaling {
  float factor = 1;
  float low_freq_factor = 1;
  float high_freq_factor = 1;
  float original_positions = 1;
};

// theta^(-2i/D), in float32 like transformers (the exponent and the power are rounded each).
std::vector<float> InverseFrequencies(double theta, int head_size) {
  std::vector<float> out(static_cast<size_t>(head_size / 2));
  for (size_t i = 0; i < out.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_size);
    out[i] = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  return out;
}

// Llama 3.1's rule: long waves slowed by `factor`, short ones kept, a linear blend between.
float ScaleLlama3(float frequency, const Llama3Scaling& scaling) {
  const float wavelength = static_cast<float>(2 * M_PI) / frequency;
  const float low_wavelength = scaling.original_positions / scaling.low_freq_factor;
  const float high_wavelength = scaling.original_positions / scaling.high_freq_factor;
  if (wavelength < high_wavelength) return frequency;
  if (wavelength > low_wavelength) return frequency / scaling.factor;
  const float smooth = (scaling.original_positions / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0f - smooth) * (frequency / scaling.factor) + smooth * frequency;
}

Llama3Scaling ReadLlama3(ConfigReader& fields) {
  Llama3Scaling scaling;
  scaling.factor = static_cast<float>(fields.Number("factor", 1, 1e6));
  scaling.low_freq_factor = static_cast<float>(fields.Number("low_freq_factor", 1e-3, 1e6));
  scaling.high_freq_factor = static_cast<float>(fields.Number("high_freq_factor", 1e-3, 1e6));
  scaling.original_positions =
      static_cast<float>(fields.Integer("original_max_position_embeddings", 1, 1 << 30));
  if (fields.problems().empty() && scaling.high_freq_factor <= scaling.low_freq_factor) {
    fields.Problem("rope scaling llama3: high_freq_factor must exceed low_freq_factor");
  }
  return scaling;
}

}  // namespace

RopeSpec ReadRope(ConfigReader& config, int head_size) {
  constexpr double kLeast = 1, kMost = 1e12;
  RopeSpec rope;
  rope.type = "default";
  const double top_theta = config.Number("rope_theta", kLeast, kMost, 10000.0);
  const bool has_top_theta = config.Has("rope_theta");
  rope.theta = top_theta;
  const nlohmann::json* parameters = config.Find("rope_parameters");
  const nlohmann::json* scaling = config.Find("rope_scaling");
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    config.Problem("rope_parameters and rope_scaling are both given; keep one");
    return rope;
  }

  const nlohmann::json* table = parameters != nullptr ? parameters : scaling;
  Llama3Scaling llama3;
  if (table != nullptr) {
    const std::string name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
    if (!table->is_object()) {
      config.Problem(absl::StrCat(name, " must be an object"));
      return rope;
    }
    const std::string where = name + ".";
    ConfigReader fields(*table, where);
    // "type" is the older spelling; some configs carry both.
    const std::string older = fields.String("type", "default");
    rope.type = fields.String("rope_type", older);
    rope.theta = fields.Number("rope_theta", kLeast, kMost, top_theta);
    if (has_top_theta && rope.theta != top_theta) {
      fields.Problem(
          absl::StrCat("rope_theta is given twice, as ", top_theta, " and ", rope.theta));
    }
    fields.OnlyNeutral("partial_rotary_factor", 1.0);
    if (rope.type == "llama3") {
      llama3 = ReadLlama3(fields);
    } else if (rope.type != "default") {
      // Its other fields belong to the type; naming that is enough.
      config.Problem(absl::StrCat(where, "rope_type ", Quoted(rope.type),
                                  " is not implemented (default and llama3 are)"));
      return rope;
    }
    fields.RefuseRest();
    config.Append(fields.problems());
    if (!fields.problems().empty()) return rope;
  }

  rope.inverse_frequencies = InverseFrequencies(rope.theta, head_size);
  if (rope.type == "llama3") {
    for (float& frequency : rope.inverse_frequencies) frequency = ScaleLlama3(frequency, llama3);
  }
  return rope;
}

}  // namespace lorad::storage
