#pragma once

#include <ostream>
#include <string>

#include "client/text/table.h"
#include "lorad/v1/cluster.pb.h"

namespace lorad::client {

// The layers of a range of blocks; a block is half a layer, attention or MLP: "0 to 29", "3 (MLP)
// to 6 (attention)".
std::string LayersText(int first_block, int end_block);

// A line for each stage of groups: where it is, and how its time went.
class StageTable {
 public:
  StageTable();
  void Add(const std::string& group, int stage, const v1::GroupStage& of);
  // On a terminal in its width.
  void Print(std::ostream& out) const;

 private:
  Table table_;
};

}  // namespace lorad::client
