#include "sizes/group.h"

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

}  // namespace lorad::sizes
