#include "sizes/group.h"

#include <algorithm>
#include <cassert>

namespace lorad::sizes {

const char* ToText(Recomputation recomputation) {
  switch (recomputation) {
    case Recomputation::kNothing:
      return "nothing";
    case Recomputation::kProducts:
      return "products";
    case Recomputation::kBlocks:
      return "blocks";
  }
  assert(false);
  return "";
}

AdapterShape::AdapterShape(int64_t rank, const std::vector<std::string>& targets) {
  for (const std::string& target : targets) parts.push_back({target, rank});
}

int64_t AdapterShape::rank_max() const {
  int64_t most = 0;
  for (const Part& part : parts) most = std::max(most, part.rank);
  return most;
}

std::string AdapterShape::ToText() const {
  std::string text = trains ? "" : "answers:";
  for (const Part& part : parts) {
    if (&part != &parts.front()) text += ",";
    text += part.target + ":" + std::to_string(part.rank);
    if (part.layers > 0) text += "x" + std::to_string(part.layers);
  }
  return text;
}

}  // namespace lorad::sizes
