#include "client/text/stages.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/text/width.h"

namespace lorad::client {
namespace {

std::string ShareText(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

}  // namespace

std::string LayersText(int first_block, int end_block) {
  const int last_block = end_block - 1;
  const int first = first_block / 2, last = last_block / 2;
  const bool begins = first_block % 2 == 0, ends = last_block % 2 == 1;
  if (first == last && (!begins || !ends)) {
    return absl::StrCat(first, begins ? " (attention)" : " (MLP)");
  }
  if (first == last) return absl::StrCat(first);
  return absl::StrCat(first, begins ? "" : " (MLP)", " to ", last, ends ? "" : " (attention)");
}

StageTable::StageTable()
    : table_({"GROUP", "STAGE", "WORKER", "HOST", "TRANSPORT", "LAYERS", "RESERVED", "BUSY",
              "WAITING", "TRANSFER"}) {}

void StageTable::Add(const std::string& group, int stage, const v1::GroupStage& of) {
  table_.Add({group, absl::StrCat(stage), of.worker(), of.host(), of.transport(),
              LayersText(of.first_block(), of.end_block()), BytesText(of.reserved_bytes()),
              ShareText(of.busy()), ShareText(of.waiting()), ShareText(of.transfer())});
}

void StageTable::Print(std::ostream& out) const {
  table_.PrintFit(out, TerminalColumns(), {0, 1, 2, 5, 8, 3, 6, 4, 7});
}

}  // namespace lorad::client
