#include "client/text/stages.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lorad::client {
namespace {

std::string ShareText(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

}  // namespace

StageTable::StageTable()
    : table_({"GROUP", "STAGE", "WORKER", "HOST", "TRANSPORT", "BLOCKS", "RESERVED", "BUSY",
              "WAITING", "TRANSFER"}) {}

void StageTable::Add(const std::string& group, int stage, const v1::GroupStage& of) {
  table_.Add({group, absl::StrCat(stage), of.worker(), of.host(), of.transport(),
              absl::StrCat(of.first_block(), "..", of.end_block() - 1),
              BytesText(of.reserved_bytes()), ShareText(of.busy()), ShareText(of.waiting()),
              ShareText(of.transfer())});
}

}  // namespace lorad::client
