#pragma once

#include <ostream>
#include <string>

#include "client/text/table.h"
#include "lorad/v1/cluster.pb.h"

namespace lorad::client {

// A line for each stage of groups: where it is, and how its time went.
class StageTable {
 public:
  StageTable();
  void Add(const std::string& group, int stage, const v1::GroupStage& of);
  void Print(std::ostream& out) const { table_.Print(out); }

 private:
  Table table_;
};

}  // namespace lorad::client
