// The state of WorkerCore. Times in ms of Event::now_ms.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/core/core.h"
#include "worker/core/reports.h"
#include "worker/core/saves.h"

namespace lorad::worker {

class WorkerCore::State {
 public:
  explicit State(CoreOptions options) : options_(std::move(options)) {}

  std::vector<Effect> Apply(Event event);

  const Held& held() const { return held_; }
  bool idle() const;
  const ReportLog& reports() const { return reports_; }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct PendingWindow {
    std::shared_ptr<const v1::Window> window;
    bool begun = false;
    double begun_ms = 0;
    int next = 0;            // index of the operation not yet begun
    std::vector<bool> kept;  // one entry per operation once a cut has touched it; else empty
    std::set<std::string> cut_jobs;  // who has lost something to cuts, here or before
    int64_t dropped = 0;
    std::deque<int> frees_put_off;         // FreeSlots that wait for the saves of their slot
    std::deque<std::string> loads_undone;  // jobs whose LoadSlot was done before a cut dropped it
    absl::Status failure;                  // why it cannot be executed
    bool next_is_dropped() const { return !kept.empty() && !kept[static_cast<size_t>(next)]; }
  };
  enum class LinkState { kDown, kDialling, kStands, kHungUp };
  enum class Doing {
    kNothing,
    kForming,
    kConnecting,
    kLeaving,
    kDropping,
    kBeginning,
    kExecuting,
    kEnding
  };
  // To the other stages of the group that is held. Of one stage it stands.
  enum class Way { kAwaited, kOrdered, kStands };
  enum class Verdict { kGo, kWait, kSkip };

  // ---- core_stream.cc: the coordinator, time, the process ----
  void On(const Started& event);
  void On(CoordinatorSaid& event);
  void On(const StreamBroke& event);
  void On(const MemoryRead& event);
  void On(const TimerFired& event);
  void On(const StopRequested& event);
  void OnWelcome(const v1::Welcome& welcome);
  void OnOrder(v1::CoordinatorMessage& message);
  void OnTime();
  double NextDue() const;
  void Dial();
  void HangUpStream();
  void SayReport(const v1::Report& report);
  void SayLeaving();
  void EndWith(absl::Status status);

  // ---- core.cc: the group ----
  void OnFormGroup(v1::FormGroup& order);
  void OnConnect(v1::Connect& order);
  void OnDissolve(int64_t epoch);
  // Nothing is held any more; the engine leaves what it has.
  void GiveUpGroup();
  void LeaveEngine();
  bool leaving() const { return leave_by_ms_ < kNever; }
  void On(EngineReported& event);
  void On(const EngineDone& event);
  void BeWithoutGroup();
  void OnFormed(const EngineDone& event);
  void OnConnected(const EngineDone& event);
  void Report(v1::Report report);
  // The epoch is over for this worker: reports it to the coordinator and lets go of everything.
  void Fail(const absl::Status& status, std::string_view otherwise);
  // Gives the engine what it is to do next, if it does nothing.
  void GoOn();

  // ---- core_windows.cc: windows and saves ----
  void OnWindow(v1::Window& window);
  void OnCut(const v1::Cut& cut);
  void OnCutAt(const v1::CutAt& order);
  // The smallest microbatch that a cut may drop.
  int64_t FirstNotCommitted() const;
  // A LoadSlot of this window is done or under way.
  bool LoadHasBegun(const PendingWindow& pending) const;
  void GoOnWithWindow();
  Verdict MayBegin(PendingWindow& pending);
  Verdict MayBeginMicrobatch(const v1::Operation& operation);
  Verdict MayLoad(const PendingWindow& pending);
  Verdict MaySave(const v1::Operation& operation);
  Verdict MayStep(const v1::Operation& operation);
  Verdict MayFree(PendingWindow& pending);
  void OnExecuted(const EngineDone& event);
  void OnLoadFailed(PendingWindow& pending, const absl::Status& status);
  void OnWindowEnded();
  void On(const UploadDone& event);
  void BeginUploads();
  // True: the engine stages a save that had been put off.
  bool SaveWhatWasPutOff();

  void Do(Effect effect) { effects_.push_back(std::move(effect)); }
  void Order(Effect effect, Doing doing);
  void Log(Note::Level level, std::string text) { Do(Note{level, std::move(text)}); }

  const CoreOptions options_;
  std::vector<Effect> effects_;
  double now_ms_ = 0;
  double timer_at_ms_ = kNever;
  bool ended_ = false;

  LinkState link_ = LinkState::kDown;
  int64_t stream_ = 0;
  double pause_ms_ = 0;
  double dial_at_ms_ = kNever;     // kDown
  double welcome_by_ms_ = kNever;  // kDialling
  double heartbeat_at_ms_ = 0;     // kStands
  double away_since_ms_ = 0;       // not kStands
  double told_to_end_ms_ = kNever;
  int64_t heartbeat_ms_ = 1000;
  int64_t lease_ms_ = 10000;
  ReportLog reports_;

  Held held_;
  bool failed_ = false;          // nothing of held_.epoch is executed any more
  bool formed_ = false;          // the engine has a group
  bool leave_ = false;           // ... which is not wanted any more,
  double leave_by_ms_ = kNever;  // and is to be left by then
  std::optional<v1::FormGroup> form_;
  int64_t hello_epoch_ = 0;  // what the newest Hello said is held
  int32_t stage_ = 0;        // of the group that is held,
  int32_t stages_ = 1;       // of so many
  Way way_ = Way::kStands;
  std::optional<v1::Connect> connect_;
  double connect_begun_ms_ = 0;
  double drop_weights_at_ms_ = kNever;  // without a group: of the last one
  int64_t engine_epoch_ = 0;            // of the engine's group
  int32_t engine_stage_ = 0;            // what it has of the model: this stage
  int32_t engine_stages_ = 1;           // of so many
  Doing doing_ = Doing::kNothing;
  std::shared_ptr<const v1::Operation> executing_;
  bool executing_put_off_ = false;  // executing_ is not the front window's

  std::deque<PendingWindow> windows_;  // the front may be in execution
  int64_t last_window_ = 0;
  int64_t first_not_enqueued_ = 0;
  std::optional<int64_t> hold_from_;  // between Cut and CutAt
  double idle_since_ms_ = 0;

  Saves saves_;
  std::map<std::string, v1::Operation> saves_put_off_;  // by job: its staging memory was in use
  // The tries of the LoadSlot that is next.
  int load_tries_ = 0;
  double load_at_ms_ = 0;
  double load_give_up_ms_ = 0;
};

}  // namespace lorad::worker
