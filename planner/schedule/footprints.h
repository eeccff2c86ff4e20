// The bytes that jobs and groups take on the workers of a view, each worked out once: a view has
// few classes of jobs and fewer kinds of workers, and asks for each of their pairs many times.
// Within the planner only. Grows with what it is asked; owned by one Schedule().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "planner/schedule/view.h"
#include "planner/stages/stage_bytes.h"

namespace lorad::planner {

// What memory depends on: of a job,
struct Footprint {
  size_t base = 0;                    // number of its base model
  const ModelShape* model = nullptr;  // borrowed, like the adapter, from the view
  const AdapterShape* adapter = nullptr;
  int64_t longest_sequence = 0;
  int32_t stages = 0;                                // as in QueuedJob
  int64_t adapter_parameters = 0;                    // what time depends on beside
  const std::vector<std::string>* avoids = nullptr;  // as in QueuedJob; borrowed from the view
};
// and of a worker, or of several that have the stages of a base model.
struct WorkerKind {
  struct Stage {
    StageRange range;
    DeviceShape device;
    int64_t budget_bytes = 0;
    int borders_by_nccl = 0;

    bool operator==(const Stage&) const = default;
  };
  DeviceShape device;              // of several: of the first, as in their group's shape
  int64_t budget_bytes = 0;        // likewise
  int64_t microbatch_tokens = 0;   // as in ClusterView
  std::vector<Stage> stages = {};  // of several;
  size_t base = 0;                 // then the number of their base model
  std::string avoided = {};        // of one that jobs avoid: its name

  bool operator==(const WorkerKind&) const = default;
};

class Footprints {
 public:
  // Numbers for what is alike. REQUIRES: what is given outlives this.
  size_t BaseOf(const std::string& base_model);
  size_t ClassOf(const std::string& base_model, const ModelShape& model,
                 const AdapterShape& adapter, int64_t longest_sequence, int32_t stages = 0,
                 const std::vector<std::string>& avoids = kAvoidsNobody);
  size_t KindOf(WorkerKind kind, const std::string& worker = {});
  // Workers that jobs avoid are kinds of their own. REQUIRES: no kind was asked for yet.
  void Avoid(const std::vector<std::string>& workers);

  const Footprint& of(size_t job_class) const { return classes_[job_class].footprint; }
  const WorkerKind& kind(size_t worker_kind) const { return kinds_[worker_kind].kind; }

  // Of several workers bytes are by stage. REQUIRES, where the kind is of several: the job, or the
  // group, is of their base model.
  StageBytes SlotBytes(size_t job_class, size_t worker_kind);
  // Of a group without its slots.
  StageBytes GroupBytes(size_t base, const ModelShape& model, const GroupShape& shape,
                        size_t worker_kind);
  // Whether the job is not to be on that worker.
  bool Avoids(size_t job_class, size_t worker_kind) const;
  // Whether each worker has memory for its stage.
  bool Fit(const StageBytes& bytes, size_t worker_kind) const;
  // The first of ShapesAlone that fits, else the last.
  struct Alone {
    GroupShape shape;
    StageBytes bytes;  // with its slot
  };
  const Alone& AloneOn(size_t job_class, size_t worker_kind);
  // Whether the job may be on such workers, and alone fits them in that shape.
  bool FitsAlone(size_t job_class, size_t worker_kind);

 private:
  static const std::vector<std::string> kAvoidsNobody;

  using ClassKey = std::tuple<size_t, int64_t, int32_t, AdapterShape, std::vector<std::string>>;
  using ShapeKey =
      std::tuple<size_t, size_t, int64_t, int64_t, int, int, int, int, int, int64_t, int64_t>;
  // Kinds that differ in budgets alone have one layout, by which bytes go: workers of one device
  // may all have other budgets.
  struct Kind {
    WorkerKind kind;
    size_t layout = 0;  // the first kind of it
  };
  struct Rung {
    Alone alone;
    StageBytes wanted;  // with room for as many slots as it is tried with
  };
  struct Choice {
    int8_t rung = -1;  // not asked for yet
    bool fits = false;
  };
  struct Class {
    Footprint footprint;
    std::vector<StageBytes> slot_bytes;     // by layout; of no stages: not asked for yet
    std::vector<std::vector<Rung>> ladder;  // likewise: ShapesAlone
    std::vector<Choice> alone;              // by kind
  };

  size_t ClassOf(size_t base, const ModelShape& model, const AdapterShape& adapter,
                 int64_t longest_sequence, int32_t stages, const std::vector<std::string>& avoids);
  const std::vector<Rung>& LadderOf(Class& entry, size_t worker_kind);
  Choice ChoiceOn(size_t job_class, size_t worker_kind);

  std::set<std::string> avoided_;
  std::map<std::string, size_t> bases_;
  std::map<ClassKey, size_t, std::less<>> numbers_;  // found without a copy of the targets
  // Of jobs that avoid nobody, by where the adapter lies: thousands share one.
  absl::flat_hash_map<std::tuple<size_t, const AdapterShape*, int64_t, int32_t>, size_t> of_shared_;
  std::vector<Class> classes_;
  std::vector<Kind> kinds_;
  absl::flat_hash_map<ShapeKey, StageBytes> group_bytes_;
};

}  // namespace lorad::planner
