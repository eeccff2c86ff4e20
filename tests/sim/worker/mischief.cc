#include "tests/sim/worker/mischief.h"

#include <optional>
#include <utility>

#include "tests/sim/worker/lies.h"

namespace lorad::sim {

using worker::v1::WorkerMessage;

bool Mischief::CutsHere() {
  if (cut_after < 0) return false;
  return cut_after-- == 0;
}

worker::v1::Hello Mischief::Introduce(const worker::v1::Hello& hello) {
  WorkerMessage message;
  *message.mutable_hello() = hello;
  if (claims > 0 && hello.epoch() != 0) {
    claims--;
    message.mutable_hello()->set_epoch(hello.epoch() + (claims % 2 == 0 ? 1 : -1));
  }
  return Tell(std::move(message)).front().hello();
}

std::vector<WorkerMessage> Mischief::Tell(WorkerMessage message) {
  if (lies > 0) {
    if (std::optional<WorkerMessage> told = Falsify(lie, message)) {
      lies--;
      lies_told_++;
      return {*std::move(told)};
    }
  }
  if (broken && message.report().has_step_done()) {
    const worker::v1::StepDone done = message.report().step_done();
    worker::v1::NotFinite& said = *message.mutable_report()->mutable_not_finite();
    said.set_job(done.job());
    said.set_step(done.step());
    said.set_what("loss");
  }
  if (repeats == 0 || !message.has_report()) return {std::move(message)};
  repeats--;
  return {message, message};
}

std::vector<Mischief::Header> Mischief::Upload(const Header& header) {
  if (lost_uploads > 0) {
    lost_uploads--;
    return {};
  }
  Header told = header;
  if (shard_lies > 0) {
    shard_lies--;
    lies_told_++;
    told = FalsifyShard(shard_lie, header);
  }
  if (repeated_uploads == 0) return {told};
  repeated_uploads--;
  return {told, told};
}

}  // namespace lorad::sim
