#include "tests/sim/group_promises.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "server/core/catalog/model_shape.h"

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: the promises are the server's

// Silence is looked at every eighth of a lease; a broken group waits 2 s for the news of a worker.
constexpr int64_t kTicksOfLease = 8;
constexpr int64_t kBrokenUs = 2'000'000;
// From the coordinator's decision until its mail is out.
constexpr int64_t kMailUs = 1'000'000;
// A window that did not come to its worker is one of the newest.
constexpr size_t kWindowsKept = 8;

planner::Recomputation RecomputationOf(const worker::v1::FormGroup& order) {
  using Order = worker::v1::FormGroup;
  if (order.recomputation() == Order::NOTHING) return planner::Recomputation::kNothing;
  return order.recomputation() == Order::BLOCKS ? planner::Recomputation::kBlocks
                                                : planner::Recomputation::kProducts;
}

planner::StageRange RangeOf(const worker::v1::FormGroup& order, const BaseModel& model) {
  if (order.stages() <= 1) return planner::WholeModel(model.shape);
  return {order.first_block(), order.end_block()};
}

}  // namespace

// ---- groups ----

void GroupPromises::OnFormGroup(uint64_t connection, const worker::v1::FormGroup& order,
                                const worker::v1::Hello* hello, int64_t now_us) {
  INFO("epoch " << order.epoch() << " after " << newest_epoch_ << ", stage " << order.stage()
                << " of " << order.stages());
  Epoch& epoch = epochs_[order.epoch()];
  if (order.stage() == 0) {
    REQUIRE(order.epoch() > newest_epoch_);  // also of coordinators that are dead
    newest_epoch_ = order.epoch();
    epoch.model = &ModelAt(order.model_path());
  }
  Part part;
  part.range = RangeOf(order, *epoch.model);
  part.since_us = now_us;
  if (hello != nullptr) part.worker = hello->worker();
  CheckStage(epoch, part, order);
  portions_[{order.epoch(), order.stage()}] = {epoch.model, part.range};
  const bool there = hello != nullptr && !ended_.contains(connection);
  if (there) {
    for (const auto& [number, other] : epochs_) {
      for (const Part& taken : other.parts) REQUIRE(taken.connection != connection);
    }
    if (epoch.numerics_id.empty()) epoch.numerics_id = hello->numerics_id();
    REQUIRE(epoch.numerics_id == hello->numerics_id());
    part.connection = connection;
    part.device = DeviceOf(*hello);
    part.budget_bytes = hello->memory_bytes();
    planner::GroupShape shape;
    shape.capacity_tokens = order.capacity_tokens();
    shape.longest_sequence = order.longest_sequence();
    shape.device = part.device;
    shape.recomputation = RecomputationOf(order);
    shape.rank_max = order.rank_max();
    shape.slots_max = order.slots_max();
    shape.in_flight = std::max(order.microbatches_in_flight(), 1);
    part.group_bytes = planner::BytesOfGroup(epoch.model->shape, shape, part.range).total();
    CheckBudget(part);
  } else if (epoch.over_us < 0) {
    // The coordinator does not know yet: the news is in its mailbox.
    epoch.over_us = now_us + lease_us_;
  }
  epoch.parts.push_back(std::move(part));
  if (std::ssize(epoch.parts) == std::max(order.stages(), 1)) Forget(order.epoch());
}

void GroupPromises::CheckStage(const Epoch& epoch, const Part& part,
                               const worker::v1::FormGroup& order) const {
  REQUIRE(order.epoch() == newest_epoch_);
  REQUIRE(order.stage() == std::ssize(epoch.parts));
  REQUIRE(order.stage() < std::max(order.stages(), 1));
  REQUIRE(epoch.model == &ModelAt(order.model_path()));
  REQUIRE(part.range.first_block < part.range.end_block);
  const int32_t begin = epoch.parts.empty() ? 0 : epoch.parts.back().range.end_block;
  REQUIRE(part.range.first_block == begin);
  const bool last = order.stage() + 1 == std::max(order.stages(), 1);
  REQUIRE(last == part.range.has_head(2 * epoch.model->shape.layers));
  for (const Part& other : epoch.parts) {
    INFO("worker " << part.worker << " has two stages");
    REQUIRE((part.worker.empty() || other.worker != part.worker));
  }
}

void GroupPromises::CheckBudget(const Part& part) {
  int64_t bytes = part.group_bytes;
  for (const auto& [job, slot] : part.slots) bytes += slot.bytes;
  INFO(part.slots.size() << " slots and their group take " << bytes << " bytes of "
                         << part.budget_bytes << " of worker " << part.worker);
  REQUIRE(planner::Fits(bytes, part.budget_bytes));
}

// All of its stages are told.
void GroupPromises::OnDissolve(uint64_t connection, int64_t epoch, int64_t now_us) {
  const auto found = epochs_.find(epoch);
  if (found == epochs_.end()) return;
  Epoch& over = found->second;
  if (over.over_us < 0) over.over_us = now_us;
  for (Part& part : over.parts) {
    if (part.connection == connection) part.connection = 0;
  }
  Forget(epoch);
}

void GroupPromises::Forget(int64_t epoch) {
  const std::vector<Part>& parts = epochs_.at(epoch).parts;
  if (std::ranges::all_of(parts, [](const Part& part) { return part.connection == 0; })) {
    auto node = epochs_.extract(epoch);
    if (!node.mapped().dissolved) asleep_.insert(std::move(node));
  }
}

void GroupPromises::LetGo(uint64_t connection, int64_t now_us) {
  std::vector<int64_t> of;
  for (const auto& [number, epoch] : epochs_) {
    for (const Part& part : epoch.parts) {
      if (part.connection == connection) of.push_back(number);
    }
  }
  for (const int64_t number : of) OnDissolve(connection, number, now_us);
}

GroupPromises::Part* GroupPromises::FindPart(int64_t epoch, uint64_t connection) {
  const auto found = epochs_.find(epoch);
  if (found == epochs_.end() || found->second.over_us >= 0) return nullptr;
  for (Part& part : found->second.parts) {
    if (part.connection == connection) return &part;
  }
  return nullptr;
}

const GroupPromises::Portion* GroupPromises::Find(int64_t epoch, int32_t stage) const {
  const auto found = portions_.find({epoch, stage});
  return found == portions_.end() ? nullptr : &found->second;
}

bool GroupPromises::IsOver(int64_t epoch) const {
  const auto found = epochs_.find(epoch);
  return found == epochs_.end() || found->second.over_us >= 0;
}

// A worker goes on with what it holds: that is a stage of a group which the coordinator of before has
// formed there, and nobody was told to let go of it.
void GroupPromises::OnWelcome(uint64_t connection, const worker::v1::Welcome& welcome,
                              const worker::v1::Hello* hello, int64_t now_us) {
  if (!welcome.adopted()) return;
  const worker::v1::FormGroup& order = welcome.group();
  INFO("stage " << order.stage() << " of epoch " << order.epoch() << " is adopted");
  if (auto node = asleep_.extract(order.epoch())) epochs_.insert(std::move(node));
  const auto found = epochs_.find(order.epoch());
  REQUIRE(found != epochs_.end());
  Epoch& epoch = found->second;
  REQUIRE(order.stage() < std::ssize(epoch.parts));
  Part& part = epoch.parts[order.stage()];
  REQUIRE(part.range == RangeOf(order, *epoch.model));
  REQUIRE_FALSE(part.back);
  part.back = true;
  if (hello == nullptr || ended_.contains(connection)) {
    // The coordinator does not know yet: the news is in its mailbox.
    epoch.over_us = now_us + lease_us_;
    return;
  }
  REQUIRE(part.worker == hello->worker());
  const worker::v1::Hello& said = hellos_.at(connection);
  INFO("it said " << said.ShortDebugString());
  REQUIRE(said.epoch() == order.epoch());
  REQUIRE(said.group() == order.group());
  REQUIRE((said.stage() == order.stage() && said.stages() == std::max(order.stages(), 1)));
  REQUIRE(said.last_window() <= part.window);
  part.next_window = said.last_window() + 1;
  part.connection = connection;
  part.since_us = now_us;
  if (std::ranges::all_of(epoch.parts, &Part::back)) adoptions_++;
}

// ---- orders ----

void GroupPromises::Sent(uint64_t connection, const worker::v1::CoordinatorMessage& message,
                         const worker::v1::Hello* hello, int64_t now_us) {
  // That it has gone comes behind its mail, which may be late: until then it is a silent one.
  const auto said = hellos_.find(connection);
  if (hello == nullptr && said != hellos_.end()) hello = &said->second;
  if (message.has_welcome()) {
    OnWelcome(connection, message.welcome(), hello, now_us);
  } else if (message.has_form_group()) {
    OnFormGroup(connection, message.form_group(), hello, now_us);
  } else if (message.has_dissolve_group()) {
    const int64_t epoch = message.dissolve_group().epoch();
    asleep_.erase(epoch);
    if (const auto found = epochs_.find(epoch); found != epochs_.end()) {
      found->second.dissolved = true;
    }
    OnDissolve(connection, epoch, now_us);
  } else if (message.has_window()) {
    OnWindow(connection, message.window());
  } else if (message.has_cut()) {
    OnCut(connection, message.cut());
  } else if (message.has_acknowledge()) {
    OnAcknowledge(connection, message.acknowledge());
  }
}

// What of an epoch has come from a worker is acknowledged in that epoch, to that worker.
void GroupPromises::OnAcknowledge(uint64_t connection,
                                  const worker::v1::AcknowledgeReports& order) const {
  const Part* part = FindPart(order.epoch(), connection);
  if (part == nullptr || mistrusted_.contains(connection)) return;
  INFO("epoch " << order.epoch() << ", worker " << part->worker << ": report " << order.number()
                << " is acknowledged, " << part->report << " came last");
  REQUIRE(order.number() <= part->report);
}

void GroupPromises::OnWindow(uint64_t connection, const worker::v1::Window& window) {
  INFO("window " << window.number() << " of epoch " << window.epoch());
  Part* part = FindPart(window.epoch(), connection);
  if (part == nullptr) return;  // a stream of it has ended, which the coordinator does not know
  const Epoch& epoch = epochs_.at(window.epoch());
  REQUIRE(std::ranges::all_of(epoch.parts, &Part::back));
  REQUIRE(window.number() == part->next_window++);
  if (window.number() <= part->window) return OnWindowAgain(window, *part);
  part->window = window.number();
  part->windows[window.number()] = window.SerializeAsString();
  if (part->windows.size() > kWindowsKept) part->windows.erase(part->windows.begin());
  for (const worker::v1::Microbatch& microbatch : window.microbatches()) {
    REQUIRE(microbatch.number() > part->microbatch);
    part->microbatch = microbatch.number();
  }
  for (const worker::v1::Operation& operation : window.operations()) {
    if (operation.kind() == worker::v1::Operation::LOAD_SLOT) {
      OnLoad(window, operation.slot(), *part);
    }
  }
}

// It was lost on its way, and others may have begun it.
void GroupPromises::OnWindowAgain(const worker::v1::Window& window, const Part& part) {
  const auto first = part.windows.find(window.number());
  REQUIRE(first != part.windows.end());
  REQUIRE(window.SerializeAsString() == first->second);
}

// It is of windows that all stages have, for what one has begun waits for the others: also those that
// were sent before and did not come.
void GroupPromises::OnCut(uint64_t connection, const worker::v1::Cut& cut) {
  const Part* asked = FindPart(cut.epoch(), connection);
  if (asked == nullptr) return;
  for (const Part& part : epochs_.at(cut.epoch()).parts) {
    INFO("cut " << cut.cut() << " of epoch " << cut.epoch() << ", worker " << part.worker);
    if (part.connection == 0) continue;
    REQUIRE(part.next_window == asked->next_window);
    REQUIRE(part.next_window > part.window);
  }
}

void GroupPromises::OnLoad(const worker::v1::Window& window, const worker::v1::SlotSpec& slot,
                           Part& part) {
  // A job is in one group at a time.
  INFO("job " << slot.job());
  for (const auto& [number, epoch] : epochs_) {
    if (number == window.epoch() || epoch.over_us >= 0) continue;
    for (const Part& other : epoch.parts) REQUIRE_FALSE(other.slots.contains(slot.job()));
  }
  planner::AdapterShape adapter(slot.rank(),
                                {slot.target_modules().begin(), slot.target_modules().end()});
  adapter.trains = !slot.answers_only();
  const planner::ModelShape& shape = epochs_.at(window.epoch()).model->shape;
  const int64_t bytes = planner::BytesOfSlot(shape, adapter, part.device, part.range).total();
  part.slots[slot.job()] = {window.number(), bytes};
  CheckBudget(part);
}

// ---- workers ----

void GroupPromises::Introduced(uint64_t connection, const worker::v1::Hello& hello) {
  hellos_[connection] = hello;
}

void GroupPromises::Heard(uint64_t connection, const worker::v1::WorkerMessage& message,
                          int64_t now_us) {
  heard_[connection].newest_us = now_us;
  if (!message.has_report()) return;
  const worker::v1::Report& report = message.report();
  Part* part = FindPart(report.epoch(), connection);
  if (part == nullptr) return;
  part->report = std::max(part->report, report.number());
  OnReport(report, *part);
  Epoch& epoch = epochs_.at(report.epoch());
  if (report.group_failed().reason() != "STAGE_LOST") return;
  part->lost_another = true;
  if (epoch.broken_us < 0) epoch.broken_us = now_us;
  if (epoch.all_broken_us < 0 && std::ranges::all_of(epoch.parts, &Part::lost_another)) {
    epoch.all_broken_us = now_us;
  }
}

void GroupPromises::MailTaken() {
  for (auto& [connection, heard] : heard_) heard.applied_us = heard.newest_us;
}

void GroupPromises::OnReport(const worker::v1::Report& report, Part& part) {
  if (report.has_slot_loaded()) {
    part.slots[report.slot_loaded().job()].window = 0;
  } else if (report.has_slot_freed()) {
    part.slots.erase(report.slot_freed().job());
  } else if (report.has_slot_failed()) {
    part.slots.erase(report.slot_failed().job());
  } else if (report.has_window_done()) {
    // What it was to load and did not was cut, or could not be had.
    std::erase_if(part.slots, [&](const auto& entry) {
      const int64_t window = entry.second.window;
      return window != 0 && window <= report.window_done().window();
    });
  }
}

void GroupPromises::StreamEnded(uint64_t connection, int64_t now_us) {
  LetGo(connection, now_us);
  heard_.erase(connection);
  hellos_.erase(connection);
  ended_.insert(connection);
}

void GroupPromises::CoordinatorDied() {
  for (auto& [number, epoch] : epochs_) {
    if (!epoch.dissolved) asleep_[number] = std::move(epoch);
  }
  epochs_.clear();
  for (auto& [number, epoch] : asleep_) {
    epoch.over_us = epoch.broken_us = epoch.all_broken_us = -1;
    for (Part& part : epoch.parts) {
      part.lost_another = false;
      part.connection = 0;
      part.back = false;
    }
  }
  hellos_.clear();
  heard_.clear();
  ended_.clear();
}

void GroupPromises::CheckClose(uint64_t connection, const absl::Status& reason,
                               int64_t now_us) const {
  const std::string why(reason.message());
  INFO("stream " << connection << " was ended: " << why);
  if (mistrusted_.contains(connection)) return;
  REQUIRE(why.find("does not fit") == std::string::npos);
  REQUIRE(why.find(" came after ") == std::string::npos);
  if (why.find("silent for") == std::string::npos) return;
  // A standstill of up to a quarter of a lease is not told from silence. What came while the
  // decision waited for the disk could not change it any more.
  const auto heard = heard_.find(connection);
  REQUIRE((heard == heard_.end() || now_us - heard->second.applied_us > lease_us_ - lease_us_ / 4));
}

void GroupPromises::CheckWaits(int64_t now_us) const {
  const int64_t tick_us = lease_us_ / kTicksOfLease;
  for (const auto& [number, epoch] : epochs_) {
    for (const Part& part : epoch.parts) {
      if (part.connection == 0 || mistrusted_.contains(part.connection)) continue;
      const auto waits = [&](const char* what, int64_t since_us, int64_t bound_us) {
        const int64_t waited_us = now_us - std::max(since_us, waits_from_us_);
        if (waited_us <= bound_us + 2 * tick_us + kMailUs) return;
        FAIL("epoch " << number << ", worker " << part.worker << ": " << what << " for "
                      << now_us - since_us << " us, at most " << bound_us);
      };
      const auto heard = heard_.find(part.connection);
      const int64_t heard_us = heard == heard_.end() ? 0 : heard->second.newest_us;
      waits("it is silent", std::max(heard_us, part.since_us), lease_us_);
      if (epoch.over_us >= 0) waits("its group has lost another", epoch.over_us, 0);
      if (epoch.broken_us >= 0) waits("its group is broken", epoch.broken_us, kBrokenUs);
      if (epoch.all_broken_us >= 0) waits("all are cut off", epoch.all_broken_us, 0);
    }
  }
}

}  // namespace lorad::sim
