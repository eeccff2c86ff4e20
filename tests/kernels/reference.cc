#include "tests/kernels/reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/philox.h"

namespace lorad::kernels::testing {

namespace {

double Dot(const double* x, const double* y, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

}  // namespace

Matrix AttentionReference(const BatchData& data, const AttentionShape& shape, const Matrix& qkv,
                          Matrix* lse) {
  const int64_t d = shape.head_size;
  const double scale = static_cast<double>(shape.scale);
  const double cap = static_cast<double>(shape.cap);
  Matrix out(qkv.rows, shape.heads * d);
  std::vector<double> weights;  // of the keys that a query sees
  const auto row_of = [&](int64_t t, int64_t head) {
    return &qkv.values[t * qkv.columns + head * d];
  };
  for (const Segment& segment : data.segments) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t k = shape.heads + head / (shape.heads / shape.kv_heads);
      const int64_t v = k + shape.kv_heads;
      for (int64_t row = 0; row < segment.rows; ++row) {
        const int64_t t = segment.first_row + row;
        const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(row - shape.window + 1, 0);
        weights.clear();
        for (int64_t key = first; key <= row; ++key) {
          const double dot = Dot(row_of(t, head), row_of(segment.first_row + key, k), d) * scale;
          weights.push_back(cap == 0 ? dot : cap * std::tanh(dot / cap));
        }
        const double largest = std::ranges::max(weights);
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        double* const to = &out.at(t, head * d);
        for (int64_t key = first; key <= row; ++key) {
          const double weight = weights[key - first] / sum;
          const double* const from = row_of(segment.first_row + key, v);
          for (int64_t i = 0; i < d; ++i) to[i] += weight * from[i];
        }
        if (lse != nullptr) lse->at(t, head) = largest + std::log(sum);
      }
    }
  }
  return out;
}

bool Kept(const DropoutKey& key, const Target& target, int64_t position, int64_t feature) {
  const uint32_t block = static_cast<uint32_t>(feature / 8);
  const PhiloxCounter random =
      Philox(key.seed, {{static_cast<uint32_t>(target.layer) << 22 |
                             static_cast<uint32_t>(target.target) << 16 | block,
                         static_cast<uint32_t>(position), key.sequence, key.step}});
  const uint32_t word = random.word[feature % 8 / 2];
  const uint32_t lane = feature % 2 == 0 ? word & 0xFFFF : word >> 16;
  return lane >= static_cast<uint32_t>(std::lround(65536 * target.dropout));
}

Matrix LoraReference(const BatchData& data, const Matrix& x, const Matrix& weight,
                     const Matrix& bias, const std::vector<Adapter>& adapters) {
  Matrix y(x.rows, weight.rows);
  for (const Segment& segment : data.segments) {
    for (int64_t row = 0; row < segment.rows; ++row) {
      const int64_t t = segment.first_row + row;
      for (int64_t o = 0; o < weight.rows; ++o) {
        double sum = bias.rows > 0 ? bias.at(0, o) : 0;
        for (int64_t i = 0; i < x.columns; ++i) sum += x.at(t, i) * weight.at(o, i);
        y.at(t, o) = sum;
      }
      if (segment.slot < 0 || segment.mode == Mode::kReference) continue;
      for (const Target& target : adapters[static_cast<size_t>(segment.slot)]) {
        const bool drops = segment.mode == Mode::kTrain && target.dropout > 0;
        for (int64_t r = 0; r < target.rank; ++r) {
          double s = 0;
          for (int64_t i = 0; i < x.columns; ++i) {
            if (drops && !Kept(segment.dropout, target, segment.first_position + row, i)) continue;
            s += x.at(t, i) * target.a.at(r, i);
          }
          s *= target.scale / (drops ? 1 - target.dropout : 1);
          for (int64_t o = 0; o < target.outputs; ++o) {
            y.at(t, target.first_output + o) += s * target.b.at(o, r);
          }
        }
      }
    }
  }
  return y;
}

Matrix LogitsReference(const Matrix& x, const std::vector<int32_t>& rows, const Matrix& head,
                       double cap) {
  Matrix logits(static_cast<int64_t>(rows.size()), head.rows);
  for (size_t index = 0; index < rows.size(); ++index) {
    for (int64_t word = 0; word < head.rows; ++word) {
      double dot = 0;
      for (int64_t i = 0; i < x.columns; ++i) dot += x.at(rows[index], i) * head.at(word, i);
      logits.at(static_cast<int64_t>(index), word) = cap == 0 ? dot : cap * std::tanh(dot / cap);
    }
  }
  return logits;
}

Matrix LossReference(const BatchData& data, const Matrix& x, const Matrix& head, double cap) {
  Matrix log_p(1, static_cast<int64_t>(data.loss_rows.size()));
  std::vector<double> score(static_cast<size_t>(head.rows));
  for (size_t index = 0; index < data.loss_rows.size(); ++index) {
    const LossRow& row = data.loss_rows[index];
    for (int64_t word = 0; word < head.rows; ++word) {
      double dot = 0;
      for (int64_t i = 0; i < x.columns; ++i) dot += x.at(row.row, i) * head.at(word, i);
      score[static_cast<size_t>(word)] = cap == 0 ? dot : cap * std::tanh(dot / cap);
    }
    const double largest = *std::max_element(score.begin(), score.end());
    double sum = 0;
    for (const double value : score) sum += std::exp(value - largest);
    log_p.values[index] = score[static_cast<size_t>(row.target)] - largest - std::log(sum);
  }
  return log_p;
}

}  // namespace lorad::kernels::testing
