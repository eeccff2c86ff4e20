#include "server/core/cluster/group_records.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lorad::server {
namespace {

using records::GroupRecord;

// ---- to a record ----

void Put(const BegunMicrobatches& microbatches,
         google::protobuf::RepeatedPtrField<GroupRecord::Begun>* begun) {
  for (const auto& [number, microbatch] : microbatches) {
    GroupRecord::Begun& entry = *begun->Add();
    entry.set_microbatch(number);
    for (const std::string& job : microbatch.jobs) entry.add_jobs(job);
    entry.set_tokens(microbatch.work.tokens);
    entry.set_squared_lengths(microbatch.work.squared_lengths);
    entry.set_adapter_work(microbatch.work.adapter_work);
  }
}

void Put(const std::string& job, const JobOrders& orders, GroupRecord::JobOrders* to) {
  to->set_job(job);
  if (orders.load_step) to->set_load_step(*orders.load_step);
  to->set_load_content(orders.load_content);
  for (const StepOrder& step : orders.steps) {
    GroupRecord::Step& entry = *to->add_steps();
    *entry.mutable_batch() = step.batch;
    entry.set_learning_rate(step.learning_rate);
  }
  to->set_evaluate_step(orders.evaluate_step);
  for (const int64_t sequence : orders.sequences) to->add_sequences(sequence);
  to->set_evaluate_first(orders.evaluate_first);
  to->set_evaluate_end(orders.evaluate_end);
  to->set_given_up(orders.given_up);
}

void Put(const SentWindow& window, GroupRecord::Window* to) {
  to->set_number(window.number);
  to->set_next_microbatch(window.next_microbatch);
  Put(window.begins, to->mutable_begins());
  for (const int64_t left : window.left) to->add_left(left);
  for (const auto& [job, orders] : window.jobs) Put(job, orders, to->add_jobs());
  for (const std::string& job : window.frees) to->add_frees(job);
}

void Put(const StageState& stage, GroupRecord::Stage* to) {
  to->set_worker(stage.worker);
  to->set_first_block(stage.range.first_block);
  to->set_end_block(stage.range.end_block);
  to->set_reserved_bytes(stage.reserved_bytes);
  to->set_last_report(stage.last_report);
  for (const SentWindow& window : stage.orders.windows) Put(window, to->add_windows());
  Put(stage.orders.microbatches, to->mutable_microbatches());
  for (const std::string& job : stage.orders.freeing) to->add_freeing(job);
}

void Put(const std::string& job, const Member& member, GroupRecord::Member* to) {
  to->set_job(job);
  to->set_slot(static_cast<int32_t>(member.slot));
  to->set_leaving(member.leaving);
  to->set_load_failed(member.load_failed);
  to->set_not_finite(member.not_finite);
  to->set_departing(member.departing);
  to->set_resumes(member.resumes);
  to->set_why_departs(member.why_departs);
  to->set_done_step(member.done_step);
  to->set_save_ordered(member.save_ordered);
  for (const int64_t step : member.saves) to->add_saves(step);
  if (member.adapter.trains) return;
  for (const planner::AdapterShape::Part& part : member.adapter.parts) {
    GroupRecord::AdapterPart& entry = *to->add_guest_adapter();
    entry.set_target(part.target);
    entry.set_rank(part.rank);
    entry.set_layers(part.layers);
  }
}

void Put(const planner::Place& place, GroupRecord::Place* to) {
  to->set_number(place.number);
  to->set_kind(static_cast<int32_t>(place.kind));
  for (const planner::BatchEnd& end : place.ends) {
    GroupRecord::BatchEnd& entry = *to->add_ends();
    entry.set_job(end.job);
    entry.set_step(end.step);
    entry.set_learning_rate(end.learning_rate);
    entry.set_save(end.save);
  }
}

// ---- from a record ----

// Unknown, if that is nothing that was ever computed.
planner::Workload WorkOf(const GroupRecord::Begun& entry) {
  const planner::Workload work{entry.tokens(), entry.squared_lengths(), entry.adapter_work()};
  const auto is_good = [](double value) { return value >= 0 && value < 1e18; };
  const bool good =
      is_good(work.tokens) && is_good(work.squared_lengths) && is_good(work.adapter_work);
  return good ? work : planner::Workload();
}

BegunMicrobatches Begun(const google::protobuf::RepeatedPtrField<GroupRecord::Begun>& begun) {
  BegunMicrobatches microbatches;
  for (const GroupRecord::Begun& entry : begun) {
    microbatches[entry.microbatch()] = {{entry.jobs().begin(), entry.jobs().end()}, WorkOf(entry)};
  }
  return microbatches;
}

JobOrders From(const GroupRecord::JobOrders& record) {
  JobOrders orders;
  if (record.has_load_step()) orders.load_step = record.load_step();
  orders.load_content = record.load_content();
  for (const GroupRecord::Step& step : record.steps()) {
    orders.steps.push_back({step.batch(), step.learning_rate()});
  }
  orders.evaluate_step = record.evaluate_step();
  orders.sequences = {record.sequences().begin(), record.sequences().end()};
  orders.evaluate_first = record.evaluate_first();
  orders.evaluate_end = record.evaluate_end();
  orders.given_up = record.given_up();
  return orders;
}

SentWindow From(const GroupRecord::Window& record) {
  SentWindow window;
  window.number = record.number();
  window.next_microbatch = record.next_microbatch();
  window.begins = Begun(record.begins());
  window.left = {record.left().begin(), record.left().end()};
  for (const GroupRecord::JobOrders& orders : record.jobs()) {
    window.jobs[orders.job()] = From(orders);
  }
  window.frees = {record.frees().begin(), record.frees().end()};
  return window;
}

StageState From(const GroupRecord::Stage& record) {
  StageState stage;
  stage.worker = record.worker();
  stage.range = {record.first_block(), record.end_block()};
  stage.formed = stage.connected = true;
  stage.reserved_bytes = record.reserved_bytes();
  // Its peak may be of before this coordinator's start: it tells nothing (memory.cc).
  stage.peak_before_bytes = std::numeric_limits<int64_t>::max();
  stage.last_report = record.last_report();
  for (const GroupRecord::Window& window : record.windows()) {
    stage.orders.windows.push_back(From(window));
  }
  stage.orders.microbatches = Begun(record.microbatches());
  stage.orders.freeing = {record.freeing().begin(), record.freeing().end()};
  return stage;
}

Member From(const GroupRecord::Member& record) {
  Member member;
  member.slot = static_cast<Member::Slot>(record.slot());
  member.leaving = record.leaving();
  member.load_failed = record.load_failed();
  member.not_finite = record.not_finite();
  member.departing = record.departing();
  member.resumes = record.resumes();
  member.why_departs = record.why_departs();
  member.joined_step = member.done_step = member.planned_step = record.done_step();
  member.save_ordered = record.save_ordered();
  member.saves = {record.saves().begin(), record.saves().end()};
  for (const GroupRecord::AdapterPart& part : record.guest_adapter()) {
    member.adapter.trains = false;
    member.adapter.parts.push_back({part.target(), part.rank(), part.layers()});
  }
  return member;
}

planner::Place From(const GroupRecord::Place& record) {
  planner::Place place;
  place.number = record.number();
  place.kind = static_cast<planner::OperationKind>(record.kind());
  for (const GroupRecord::BatchEnd& end : record.ends()) {
    place.ends.push_back({end.job(), end.step(), end.learning_rate(), end.save()});
  }
  return place;
}

// Numbers that name a value of an enumeration, and what a group always has.
bool IsWhole(const GroupRecord& record) {
  const auto within = [](int32_t value, auto last) {
    return value >= 0 && value <= static_cast<int32_t>(last);
  };
  bool whole = !record.group().empty() && record.epoch() > 0 && record.stages_size() > 0 &&
               record.capacity_tokens() > 0 && record.next_window() > 0 &&
               within(record.recomputation(), planner::Recomputation::kBlocks) &&
               within(record.then(), GroupState::Then::kStop);
  for (const GroupRecord::Member& member : record.members()) {
    whole = whole && within(member.slot(), Member::Slot::kFreeing);
  }
  for (const GroupRecord::Place& place : record.left()) {
    whole = whole && within(place.kind(), planner::OperationKind::kGenerate);
  }
  return whole;
}

bool FindMessages(const WindowRecords& windows, GroupState* group) {
  for (StageState& stage : group->stages) {
    for (SentWindow& window : stage.orders.windows) {
      const auto found = windows.find(KeyOfWindow(*group, stage, window.number));
      if (found == windows.end() || !window.message.ParseFromString(found->second)) return false;
      if (window.message.number() != window.number || window.message.epoch() != group->epoch) {
        return false;
      }
      group->stored_windows.insert(found->first);
      window.generates = GeneratesOf(window.message);
      window.generates_may_be_told = true;
    }
  }
  return true;
}

}  // namespace

records::GroupRecord ToRecord(const GroupState& group) {
  GroupRecord record;
  record.set_group(group.name);
  record.set_epoch(group.epoch);
  record.set_base_model(group.base_model);
  record.set_capacity_tokens(group.shape.capacity_tokens);
  record.set_longest_sequence(group.shape.longest_sequence);
  record.set_recomputation(static_cast<int32_t>(group.shape.recomputation));
  record.set_rank_max(group.shape.rank_max);
  record.set_slots_max(group.shape.slots_max);
  record.set_in_flight(group.shape.in_flight);
  for (const StageState& stage : group.stages) Put(stage, record.add_stages());
  for (const auto& [job, member] : group.members) Put(job, member, record.add_members());
  record.set_then(static_cast<int32_t>(group.then));
  record.set_reform_why(group.reform_why);
  for (const planner::Place& place : group.left) Put(place, record.add_left());
  for (const auto& [key, batch] : group.open_batches) *record.add_open_batches() = batch;
  record.set_drains(group.drains);
  record.set_next_window(group.next_window);
  record.set_next_microbatch(group.next_microbatch);
  record.set_cut(group.cut);
  record.set_adopted(group.adopted);
  return record;
}

std::string KeyOfWindow(const GroupState& group, const StageState& stage, int64_t number) {
  return absl::StrCat(group.name, "/", &stage - group.stages.data(), "/", number);
}

absl::StatusOr<GroupState> FromRecord(const records::GroupRecord& record,
                                      const WindowRecords& windows) {
  if (!IsWhole(record)) {
    return absl::InvalidArgumentError(absl::StrCat("the record of ", record.group(), " is none"));
  }
  GroupState group;
  group.name = record.group();
  group.epoch = record.epoch();
  group.base_model = record.base_model();
  group.shape.capacity_tokens = record.capacity_tokens();
  group.shape.longest_sequence = record.longest_sequence();
  group.shape.recomputation = static_cast<planner::Recomputation>(record.recomputation());
  group.shape.rank_max = record.rank_max();
  group.shape.slots_max = record.slots_max();
  group.shape.in_flight = record.in_flight();
  for (const GroupRecord::Stage& stage : record.stages()) group.stages.push_back(From(stage));
  if (!FindMessages(windows, &group)) {
    return absl::InvalidArgumentError(absl::StrCat("a window of ", record.group(), " is lost"));
  }
  for (const GroupRecord::Member& member : record.members()) {
    group.members[member.job()] = From(member);
  }
  // A stop that did not come to its end is over.
  group.then = static_cast<GroupState::Then>(record.then());
  if (group.then == GroupState::Then::kStop) group.then = GroupState::Then::kGoOn;
  group.reform_why = record.reform_why();
  for (const GroupRecord::Place& place : record.left()) group.left.push_back(From(place));
  for (const worker::v1::Batch& batch : record.open_batches()) {
    group.open_batches[{batch.job(), batch.step()}] = batch;
  }
  group.drains = record.drains();
  group.next_window = record.next_window();
  group.next_microbatch = record.next_microbatch();
  group.cut = record.cut();
  group.adopted = record.adopted();
  group.phase = GroupState::Phase::kReturning;
  return group;
}

}  // namespace lorad::server
